#include "planner/adaptive_recompute.h"

#include <gtest/gtest.h>

namespace tidemark::adaptive_recompute_test {
namespace {

// Attention (5 ns, keeps 40 of which 10 are its input) holds a core (3 ns, 20, 5); a norm keeps
// less than its input.
AdaptiveRecomputeProblem three_modules(std::int64_t bytes_a_stage) {
  AdaptiveRecomputeProblem p;
  p.modules = {{5, 40, 10, -1}, {3, 20, 5, 0}, {1, 8, 10, -1}};
  p.layer_ns = 12;
  p.layer_bytes = 100;
  p.layer_input_bytes = 10;
  p.layers = 2;
  p.stages = 4;
  p.device_bytes = 1000 + 4 * bytes_a_stage;
  p.static_bytes = 1000;
  return p;
}

TEST(AdaptiveRecompute, RunsNothingAgainWhereAllFits) {
  const AdaptiveRecomputePlan plan = solve_adaptive_recompute(three_modules(200));
  EXPECT_TRUE(plan.fits);
  EXPECT_EQ(plan.cost_ns, 0);
  EXPECT_EQ(plan.bytes, 200);
}

TEST(AdaptiveRecompute, TakesTheCheapestMix) {
  // 199: the core of one layer, 85 + 100. 184: one attention, 70 + 100, for 5 ns rather than both
  // cores, 85 + 85, for 6. 169: an attention and a core, 70 + 85.
  EXPECT_EQ(solve_adaptive_recompute(three_modules(199)).cost_ns, 3);
  EXPECT_EQ(solve_adaptive_recompute(three_modules(184)).cost_ns, 5);
  EXPECT_EQ(solve_adaptive_recompute(three_modules(169)).cost_ns, 8);
  // 139: two attentions, 140, are too much; full and none, 110, for 12 ns.
  EXPECT_EQ(solve_adaptive_recompute(three_modules(140)).cost_ns, 10);
  EXPECT_EQ(solve_adaptive_recompute(three_modules(139)).cost_ns, 12);
}

// Of the 65,537 options of a layer, 17 are worth while: so many modules, whichever.
TEST(AdaptiveRecompute, SolvesSixteenModulesThatAreAlike) {
  AdaptiveRecomputeProblem p;
  p.modules.assign(16, {1, 10, 0, -1});
  p.layer_ns = 17;
  p.layer_bytes = 160;
  p.layers = 4;
  for (std::int64_t bytes = 0; bytes <= 640; bytes += 37) {
    p.device_bytes = bytes;
    const std::int64_t least = (640 - bytes + 9) / 10;
    EXPECT_EQ(solve_adaptive_recompute(p).cost_ns, least) << bytes;
  }
}

TEST(AdaptiveRecompute, FallsBackToFull) {
  const AdaptiveRecomputePlan least = solve_adaptive_recompute(three_modules(20));
  EXPECT_TRUE(least.fits);
  EXPECT_EQ(least.cost_ns, 24);
  const AdaptiveRecomputePlan none = solve_adaptive_recompute(three_modules(19));
  EXPECT_FALSE(none.fits);
  EXPECT_EQ(none.cost_ns, 24);
  ASSERT_EQ(none.options.size(), 1U);
  EXPECT_TRUE(none.options[0].full);
}

}  // namespace
}  // namespace tidemark::adaptive_recompute_test
