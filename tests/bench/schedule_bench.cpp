// Cases: building the schedule of 16 stages and 256 microbatches (public schedulers take 0.4 s to
// 4.5 s): interleaved with four chunks a stage, each of the other orders; and checking the first.
#include <benchmark/benchmark.h>

#include "sim/check_schedule.h"
#include "sim/dual_pipe.h"
#include "sim/schedule.h"
#include "sim/v_schedules.h"
#include "sim/zero_bubble.h"

namespace tidemark::schedule_bench {
namespace {

constexpr std::int32_t kStages = 16;
constexpr std::int32_t kMicrobatches = 256;

Schedule interleaved() {
  return build_interleaved_1f1b(kStages, kMicrobatches, {4, kStages, true, true});
}

void BM_BuildInterleaved(benchmark::State& state) {
  for (auto _ : state) benchmark::DoNotOptimize(interleaved().stages.data());
}
BENCHMARK(BM_BuildInterleaved)->Unit(benchmark::kMillisecond);

void BM_CheckInterleaved(benchmark::State& state) {
  const Schedule schedule = interleaved();
  for (auto _ : state) benchmark::DoNotOptimize(check_schedule(schedule).size());
}
BENCHMARK(BM_CheckInterleaved)->Unit(benchmark::kMillisecond);

using Build = SlotOrders (*)(std::int32_t, std::int32_t);
void build(benchmark::State& state, Build orders, std::int32_t chunks, Placement placement) {
  for (auto _ : state) {
    const Schedule schedule =
        with_transfers(orders(kStages, kMicrobatches), kMicrobatches, chunks, placement);
    benchmark::DoNotOptimize(schedule.stages.data());
  }
}
BENCHMARK_CAPTURE(build, zb_h1, build_zb_h1, 1, Placement::kRing)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(build, zb_h2, build_zb_h2, 1, Placement::kRing)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(build, zb_v, build_zb_v, 2, Placement::kV)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(build, v_half, build_v_half, 2, Placement::kV)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(build, v_min, build_v_min, 2, Placement::kV)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(build, dual_pipe, build_dual_pipe, 2, Placement::kBidirectional)
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(build, dual_pipe_v, build_dual_pipe_v, 2, Placement::kV)
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace tidemark::schedule_bench
