// Decisions of the adaptive policy, of one stage of a 12,288-card job with 64 microbatches: all
// that a card decides in an iteration (items = decisions); in calm, where it keeps everything, and
// in a spike of 2.4 times the balanced load on a card that keeping everything would not fit.
#include <cstdint>

#include <benchmark/benchmark.h>

#include "models/job_reader.h"
#include "planner/adaptive_policy.h"
#include "sim/simulation.h"
#include "tests/support/jobs.h"
#include "traces/lane_rows.h"

namespace tidemark::policy_bench {
namespace {

constexpr double kBound = 2.45;
constexpr double kSpike = 2.4;

// A stage's gates and the beginnings of its slots.
std::int64_t decisions(const Program& program, std::size_t stage) {
  std::int64_t gates = 0;
  const OperatorGraph& graph = program.stages[stage].graph;
  for (const Operator& op : graph.forward) {
    if (op.layer >= 0 && std::holds_alternative<HostWaitWork>(op.work)) ++gates;
  }
  return program.schedule.microbatches * (gates + std::ssize(graph.chunks));
}

void BM_DecisionsOfACard(benchmark::State& state) {
  const HardwareProfile profile = load_hardware_profile("bw1000");
  Job job = read_job(TIDEMARK_SOURCE_DIR "/validation/jobs/dsv3-93l-bw1000-12288.json");
  const bool spike = state.range(0) != 0;
  if (spike) job.batch.micro_batch_size = 2;  // everything kept needs 117 GiB
  job.batch.global_batch_size = 64 * job.batch.micro_batch_size * job.layout.data();
  job = on_platform(job, profile);
  const AdaptiveRun run = adaptive_run(job, profile, kBound);
  const LaneRows rows(job, spike ? spiked_routing(job, kSpike) : balanced_routing(job));
  for (auto _ : state) benchmark::DoNotOptimize(run.policy->decide(1, rows));
  state.SetItemsProcessed(state.iterations() * decisions(run.program, 1));
}
BENCHMARK(BM_DecisionsOfACard)->Arg(0)->Arg(1)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace tidemark::policy_bench
