#include "planner/adapipe.h"

#include <algorithm>
#include <limits>

#include <gtest/gtest.h>

#include "tests/support/random_jobs.h"

namespace tidemark::adapipe_test {
namespace {

AdaPipeProblem random_problem(Rng& rng) {
  AdaPipeProblem p;
  p.stages = rng.between(1, 3);
  p.microbatches = p.stages + rng.below(5);
  const std::int64_t layers = p.stages + rng.below(3);
  std::int64_t most = 0;
  for (std::int64_t l = 0; l < layers; ++l) {
    AdaPipeLayer layer;
    layer.static_bytes = rng.below(5);
    most += layer.static_bytes;
    const std::int64_t units = rng.between(1, 3);
    for (std::int64_t u = 0; u < units; ++u) {
      layer.units.push_back(
          {rng.between(1, 6), rng.between(1, 9), rng.between(1, 6), rng.below(4) == 0});
      most += p.stages * layer.units.back().bytes;
    }
    p.layers.push_back(layer);
  }
  p.capacity_bytes = rng.below(most);
  return p;
}

// Least backward time of all subsets; -1 if none fits.
std::int64_t cheapest_backward(const AdaPipeProblem& p, std::int64_t stage, std::int64_t first,
                               std::int64_t end) {
  std::vector<AdaPipeUnit> units;
  std::int64_t fixed = 0;
  for (std::int64_t l = first; l < end; ++l) {
    const AdaPipeLayer& layer = p.layers[static_cast<std::size_t>(l)];
    fixed += layer.static_bytes;
    units.insert(units.end(), layer.units.begin(), layer.units.end());
  }
  std::int64_t best = -1;
  for (std::uint32_t saved = 0; saved < 1U << units.size(); ++saved) {
    std::int64_t bytes = fixed;
    std::int64_t time = 0;
    bool legal = true;
    for (std::size_t u = 0; u < units.size(); ++u) {
      const bool save = (saved >> u & 1U) != 0;
      legal &= save || !units[u].always_saved;
      bytes += save ? (p.stages - stage) * units[u].bytes : 0;
      time += units[u].backward_ns + (save ? 0 : units[u].forward_ns);
    }
    if (legal && bytes <= p.capacity_bytes && (best < 0 || time < best)) best = time;
  }
  return best;
}

TEST(AdaPipe, SavesWhatIsDearestToRunAgain) {
  int fitting = 0;
  for (std::uint64_t seed = 0; seed < 500; ++seed) {
    Rng rng(seed);
    const AdaPipeProblem p = random_problem(rng);
    const std::int64_t stage = rng.below(p.stages);
    const auto layers = static_cast<std::int64_t>(p.layers.size());
    const AdaPipeStage solved = adapipe_stage(p, stage, 0, layers);
    const std::int64_t expected = cheapest_backward(p, stage, 0, layers);
    if (expected < 0) {
      EXPECT_EQ(solved.end_layer, solved.first_layer) << "seed " << seed;
      continue;
    }
    ++fitting;
    EXPECT_EQ(solved.backward_ns, expected) << "seed " << seed;
    // What it says it saves is what it charges for.
    std::int64_t bytes = 0;
    std::int64_t time = 0;
    for (std::int64_t l = 0; l < layers; ++l) {
      const AdaPipeLayer& layer = p.layers[static_cast<std::size_t>(l)];
      bytes += layer.static_bytes;
      for (std::size_t u = 0; u < layer.units.size(); ++u) {
        const bool saved = solved.saved[static_cast<std::size_t>(l)][u];
        EXPECT_TRUE(saved || !layer.units[u].always_saved);
        bytes += saved ? (p.stages - stage) * layer.units[u].bytes : 0;
        time += layer.units[u].backward_ns + (saved ? 0 : layer.units[u].forward_ns);
      }
    }
    EXPECT_LE(bytes, p.capacity_bytes);
    EXPECT_EQ(time, solved.backward_ns);
  }
  EXPECT_GT(fitting, 100);
}

TEST(AdaPipe, EqualLayersAndEnoughMemoryArePlain1F1B) {
  // Two layers a stage of 2 + 4 ns: F = 4, B = 8. Warm-up of stage 0 of 2: 4 + max(4 + 8, 4) = 16;
  // ending: 8 + max(8 + 4, 8) = 20; and 5 - 2 more slots of 12.
  AdaPipeProblem p;
  p.layers.assign(4, {{{2, 4, 10, false}}, 0});
  p.stages = 2;
  p.microbatches = 5;
  p.capacity_bytes = 40;
  const AdaPipePlan plan = solve_adapipe(p);
  ASSERT_EQ(plan.stages.size(), 2U);
  EXPECT_EQ(plan.stages[0].end_layer, 2);
  EXPECT_EQ(plan.iteration_ns, 16 + 20 + 3 * 12);
  // One byte less: stage 0 runs one unit again; so does nobody who keeps one microbatch.
  p.capacity_bytes = 39;
  const AdaPipePlan tight = solve_adapipe(p);
  EXPECT_GT(tight.iteration_ns, plan.iteration_ns);
}

TEST(AdaPipe, GivesTheFirstStageFewerLayersWhereMemoryIsShort) {
  // Nothing can be run again; stage 0 keeps two microbatches, so three layers go to stage 1.
  AdaPipeProblem p;
  p.layers.assign(4, {{{2, 4, 10, true}}, 0});
  p.stages = 2;
  p.microbatches = 5;
  p.capacity_bytes = 30;
  const AdaPipePlan plan = solve_adapipe(p);
  ASSERT_EQ(plan.stages.size(), 2U);
  EXPECT_EQ(plan.stages[0].end_layer, 1);
  EXPECT_EQ(plan.stages[1].end_layer, 4);
  p.capacity_bytes = 29;
  EXPECT_TRUE(solve_adapipe(p).stages.empty());
}

}  // namespace
}  // namespace tidemark::adapipe_test
