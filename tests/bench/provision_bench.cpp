// Decisions a second: planted problems of N classes on L lanes, memory between the plan's and a
// tenth above it. Counters: nodes a decision, share proven optimal.
#include <cstdint>
#include <vector>

#include <benchmark/benchmark.h>

#include "planner/provision.h"
#include "tests/support/random_provision.h"

namespace tidemark {
namespace {

void BM_Planted(benchmark::State& state) {
  std::vector<ProvisionProblem> problems;
  for (std::uint64_t seed = 0; seed < 64; ++seed) {
    problems.push_back(planted_problem(seed, state.range(0), state.range(1), 0.1).problem);
  }
  ProvisionWorkspace workspace;
  std::size_t i = 0;
  std::int64_t nodes = 0;
  std::int64_t proven = 0;
  for (auto _ : state) {
    const SolveResult result = provision(problems[i++ % problems.size()], {}, workspace);
    nodes += result.nodes;
    proven += result.status == SolveStatus::kOptimal;
  }
  const auto decisions = static_cast<double>(state.iterations());
  state.counters["nodes"] = static_cast<double>(nodes) / decisions;
  state.counters["proven"] = static_cast<double>(proven) / decisions;
}
BENCHMARK(BM_Planted)->Args({6, 1})->Args({12, 1})->Args({12, 64})->Args({25, 1});

}  // namespace
}  // namespace tidemark
