// Counts a second of one unit's iteration (90 MoE layers, 32 microbatches, 256 experts: an
// iteration of 12,288 cards has about 26 of these) for the synthetic workloads.
#include <benchmark/benchmark.h>

#include "traces/routing_source.h"

namespace tidemark::routing_bench {
namespace {

void BM_RoutingCounts(benchmark::State& state) {
  constexpr RoutingShape kShape{24, 32, 90, 256, 8, 65536, 64};
  Workload workload;
  workload.kind = static_cast<WorkloadKind>(state.range(0));
  workload.drift_iterations = 200;
  const auto source = make_routing(kShape, workload, 1);
  RoutingCounts counts;
  std::int64_t iteration = 0;
  for (auto _ : state) {
    source->counts(iteration++, 0, counts);
    benchmark::DoNotOptimize(counts.counts.data());
  }
  state.SetLabel(name_of(workload.kind));
  state.SetItemsProcessed(state.iterations() * kShape.counts_per_unit());
}
BENCHMARK(BM_RoutingCounts)
    ->Arg(static_cast<int>(WorkloadKind::kMultinomial))
    ->Arg(static_cast<int>(WorkloadKind::kDirichlet))
    ->Arg(static_cast<int>(WorkloadKind::kPeriodic))
    ->Arg(static_cast<int>(WorkloadKind::kBagualu2))
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace tidemark::routing_bench
