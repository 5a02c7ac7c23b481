// Cost queries a second: a dense product, a grouped product over E experts of different sizes,
// attention, an all-to-all; and the fit of a whole profile.
#include <cstdint>
#include <vector>

#include <benchmark/benchmark.h>

#include "hw_profiles/collective_costs.h"
#include "hw_profiles/kernel_costs.h"

namespace tidemark::kernel_costs_bench {
namespace {

const HardwareProfile& profile() {
  static const HardwareProfile profile = load_hardware_profile("bw1000");
  return profile;
}

void BM_Gemm(benchmark::State& state) {
  const KernelCosts costs(profile());
  std::int64_t tokens = 4096;
  for (auto _ : state) {
    benchmark::DoNotOptimize(costs.gemm({12800, tokens, 5120}, Pass::kForward));
    tokens ^= 1;
  }
  state.SetItemsProcessed(state.iterations());
}
BENCHMARK(BM_Gemm);

void BM_GroupedGemm(benchmark::State& state) {
  const KernelCosts costs(profile());
  std::vector<std::int64_t> tokens;
  for (std::int64_t expert = 0; expert < state.range(0); ++expert) tokens.push_back(expert * 137);
  for (auto _ : state) {
    benchmark::DoNotOptimize(costs.grouped_gemm(4096, 7168, tokens, Pass::kForward));
  }
  state.SetItemsProcessed(state.iterations());
}
BENCHMARK(BM_GroupedGemm)->Arg(4)->Arg(32);

void BM_Attention(benchmark::State& state) {
  const KernelCosts costs(profile());
  for (auto _ : state) {
    benchmark::DoNotOptimize(
        costs.attention({1, 4096, 4096, 32, 192, 128, true}, Direction::kBackward));
  }
  state.SetItemsProcessed(state.iterations());
}
BENCHMARK(BM_Attention);

void BM_AllToAll(benchmark::State& state) {
  const CollectiveCosts costs(profile());
  double bytes = 61e6;
  for (auto _ : state) {
    benchmark::DoNotOptimize(costs.time(Collective::kAllToAll, bytes, {64, 8}));
    bytes += 1;
  }
  state.SetItemsProcessed(state.iterations());
}
BENCHMARK(BM_AllToAll);

void BM_FitProfile(benchmark::State& state) {
  for (auto _ : state) benchmark::DoNotOptimize(kernel_rates(profile()));
}
BENCHMARK(BM_FitProfile)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace tidemark::kernel_costs_bench
