// Decision times: two chains of 40 and 64 operators, exactly; a slot of 20 forward, 20 backward and
// 12 recomputed operators with four weight gradients and six copies, cold (with the work limit as
// argument) and from the cache, without and with a memory limit. Each over 64 seeds in turn.
#include <cstdint>
#include <vector>

#include <benchmark/benchmark.h>

#include "planner/interleaver.h"
#include "planner/order_cache.h"
#include "planner/two_chain_order.h"
#include "tests/support/random_slots.h"

namespace tidemark::interleaver_bench {
namespace {

constexpr std::uint64_t kSeeds = 64;
constexpr SlotSizes kLarge{20, 20, 12, 4, 3, 3};

std::vector<SlotProblem> slots(bool memory) {
  std::vector<SlotProblem> out;
  for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) {
    out.push_back(memory ? random_slot_with_memory(seed, kLarge, 0.5) : random_slot(seed, kLarge));
  }
  return out;
}

void BM_TwoChains(benchmark::State& state) {
  std::vector<SlotProblem> problems;
  for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) {
    problems.push_back(random_slot(seed, {state.range(0), state.range(1), 0, 0, 0, 0}));
  }
  TwoChainSolver solver;
  std::vector<std::int32_t> order;
  std::size_t i = 0;
  for (auto _ : state) {
    const SlotProblem& p = problems[i++ % kSeeds];
    benchmark::DoNotOptimize(solver.solve(p.chains[0].operators, p.chains[1].operators));
    solver.order(order);
    benchmark::DoNotOptimize(order.data());
  }
}
BENCHMARK(BM_TwoChains)->Args({20, 20})->Args({40, 64})->Unit(benchmark::kMicrosecond);

void cold(benchmark::State& state, bool memory) {
  const std::vector<SlotProblem> problems = slots(memory);
  Interleaver interleaver;
  std::int64_t nodes = 0;
  std::size_t i = 0;
  for (auto _ : state) {
    const StreamOrder& order = interleaver.solve(problems[i++ % kSeeds], {state.range(0)});
    nodes += order.nodes;
    benchmark::DoNotOptimize(order.makespan_ns);
  }
  state.counters["nodes/s"] =
      benchmark::Counter(static_cast<double>(nodes), benchmark::Counter::kIsRate);
}
void BM_Interleave(benchmark::State& state) { cold(state, false); }
void BM_InterleaveWithMemory(benchmark::State& state) { cold(state, true); }
BENCHMARK(BM_Interleave)->Arg(2048)->Arg(OrderLimit{}.nodes)->Unit(benchmark::kMicrosecond);
BENCHMARK(BM_InterleaveWithMemory)->Arg(OrderLimit{}.nodes)->Unit(benchmark::kMicrosecond);

void cached(benchmark::State& state, bool memory) {
  const std::vector<SlotProblem> problems = slots(memory);
  OrderCache cache({}, {3, 2});
  for (const SlotProblem& p : problems) cache.order(p);
  std::size_t i = 0;
  for (auto _ : state) {
    benchmark::DoNotOptimize(cache.order(problems[i++ % kSeeds]).makespan_ns);
  }
}
void BM_Cached(benchmark::State& state) { cached(state, false); }
void BM_CachedWithMemory(benchmark::State& state) { cached(state, true); }
BENCHMARK(BM_Cached)->Unit(benchmark::kMicrosecond);
BENCHMARK(BM_CachedWithMemory)->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace tidemark::interleaver_bench
