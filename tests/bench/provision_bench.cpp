// Group decisions: planted problems of N classes on L lanes, memory between the plan's and a tenth
// above it; and DeepSeek-V3's stage 1 on 64 lanes whose hottest receives 2.6 times the balanced
// load, of 1 or 8 layers, with 30 to 95 % of what they would keep. Counters: nodes a decision,
// share proven optimal, 99.9th percentile.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <vector>

#include <benchmark/benchmark.h>

#include "hw_profiles/hardware_profile.h"
#include "models/layer_operators.h"
#include "planner/action_catalogue.h"
#include "planner/provision.h"
#include "tests/support/jobs.h"
#include "tests/support/random_jobs.h"
#include "tests/support/random_provision.h"

namespace tidemark::provision_bench {
namespace {

void decide(benchmark::State& state, const std::vector<ProvisionProblem>& problems) {
  using Clock = std::chrono::steady_clock;
  ProvisionWorkspace workspace;
  for (const ProvisionProblem& problem : problems) provision(problem, {}, workspace);
  std::vector<double> microseconds;
  std::size_t i = 0;
  std::int64_t nodes = 0;
  std::int64_t proven = 0;
  double gap = 0;
  for (auto _ : state) {
    const auto start = Clock::now();
    const SolveResult result = provision(problems[i++ % problems.size()], {}, workspace);
    microseconds.push_back(std::chrono::duration<double, std::micro>(Clock::now() - start).count());
    nodes += result.nodes;
    proven += result.status == SolveStatus::kOptimal || result.status == SolveStatus::kInfeasible;
    if (result.has_plan()) gap = std::max(gap, result.gap());
  }
  const auto decisions = static_cast<double>(state.iterations());
  std::sort(microseconds.begin(), microseconds.end());
  state.counters["nodes"] = static_cast<double>(nodes) / decisions;
  state.counters["proven"] = static_cast<double>(proven) / decisions;
  state.counters["worst_gap"] = gap;
  state.counters["p50_us"] = microseconds[microseconds.size() / 2];
  state.counters["p99.9_us"] = microseconds[microseconds.size() * 999 / 1000];
}

void BM_Planted(benchmark::State& state) {
  std::vector<ProvisionProblem> problems;
  for (std::uint64_t seed = 0; seed < 64; ++seed) {
    problems.push_back(planted_problem(seed, state.range(0), state.range(1), 0.1).problem);
  }
  decide(state, problems);
}
BENCHMARK(BM_Planted)->Args({6, 1})->Args({12, 1})->Args({12, 64})->Args({25, 1});

void BM_Spike(benchmark::State& state) {
  const Job job = deepseek_v3_1024();
  const HardwareProfile profile = load_hardware_profile(job.hardware);
  OperatorCosts costs(job, profile);
  const std::int64_t balanced = rows_sent(job);
  const ActionCatalogue catalogue =
      build_action_catalogue(build_operator_graph(job, 1), costs, balanced);
  ProvisionProblem problem;
  problem.classes = storage_classes(catalogue, 1).classes;
  // As many layers as asked for, of the eight; what cannot be moved is not decided.
  std::erase_if(problem.classes, [](const StorageClass& c) { return c.actions.size() == 1; });
  for (StorageClass& c : problem.classes) c.count = std::min(c.count, state.range(0));
  problem.floor = {{}};
  std::vector<ProvisionProblem> problems;
  for (std::uint64_t seed = 0; seed < 1000; ++seed) {
    Rng rng(seed);
    ProvisionProblem p = problem;
    const std::int64_t percent = rng.between(30, 95);
    for (std::int64_t lane = 0; lane < 64; ++lane) {
      ProvisionLane l;
      l.rows = balanced * (lane == 0 ? 260 : rng.between(60, 140)) / 100;
      for (const StorageClass& c : p.classes) {
        l.budget[0] += c.count * c.actions[0].held[0].at(balanced * 26 / 10) / 100 * percent;
      }
      l.host_budget = l.budget[0];
      p.lanes.push_back(l);
    }
    // Of a slot: up to 2 ms of idle compute, up to 10 ms of copies each way, a layer.
    p.compute_slack_ps = rng.below(2'000'000'000) * state.range(0);
    p.out_capacity_ps = {rng.below(10'000'000'000) * state.range(0)};
    p.in_capacity_ps = {rng.below(10'000'000'000) * state.range(0)};
    problems.push_back(std::move(p));
  }
  decide(state, problems);
}
BENCHMARK(BM_Spike)->Arg(1)->Arg(8);

}  // namespace
}  // namespace tidemark::provision_bench
