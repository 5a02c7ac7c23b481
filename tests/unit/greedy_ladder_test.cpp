#include "planner/greedy_ladder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "hw_profiles/hardware_profile.h"
#include "models/layer_operators.h"
#include "sim/simulation.h"
#include "tests/support/jobs.h"

namespace tidemark::greedy_ladder_test {
namespace {

using testing::ElementsAre;

CataloguedAction offload(std::int64_t bytes, std::int64_t ns) {
  CataloguedAction action;
  action.kind = ActionKind::kOffload;
  action.freed = action.host_bytes = {bytes, 0};
  action.out_ps = action.in_ps = {ns * kPsPerNs, 0};
  return action;
}

CataloguedAction recompute(std::int64_t bytes, std::int64_t ns) {
  CataloguedAction action;
  action.kind = ActionKind::kRecompute;
  action.freed = {bytes, 0};
  action.compute_ps = {ns * kPsPerNs, 0};
  return action;
}

CatalogueEntry entry(std::int64_t bytes, std::vector<CataloguedAction> actions) {
  CatalogueEntry out;
  out.kept.bytes = {bytes, 0};
  out.actions = std::move(actions);
  out.actions.insert(out.actions.begin(), CataloguedAction{});
  return out;
}

// Copies have 10 ns in each direction.
const ActionCatalogue kCatalogue{{entry(100, {offload(100, 8), recompute(100, 10)}),
                                  entry(100, {offload(100, 8), recompute(100, 4)}),
                                  entry(50, {recompute(50, 5)})}};

LadderOptions options() {
  LadderOptions out;
  out.rungs = 6;  // at most 250, 200, 150, 100, 50, 0 bytes
  out.period_ns = 10;
  return out;
}

// The first copy is hidden. A second would expose 2 * 6 ns for 100 bytes, running again 4 ns; that
// is less a byte than 5 ns for 50. Plans on the way hold 250, 150, 50 and 0 bytes.
TEST(GreedyLadder, TakesWhatExposesLeastForAByteNext) {
  const std::vector<LadderRung> ladder = build_greedy_ladder(kCatalogue, options());
  ASSERT_EQ(ladder.size(), 4U);
  EXPECT_THAT(ladder[0].choice, ElementsAre(0, 0, 0));
  EXPECT_THAT(ladder[1].choice, ElementsAre(1, 0, 0));
  EXPECT_THAT(ladder[2].choice, ElementsAre(1, 2, 0));
  EXPECT_THAT(ladder[3].choice, ElementsAre(1, 2, 1));
  EXPECT_EQ(ladder[1].exposed_ns, 0);
  EXPECT_EQ(ladder[2].exposed_ns, 4);
  EXPECT_EQ(ladder[3].exposed_ns, 4 + 5);
}

// 4 ns for 100 bytes, then 10 for 100 like 5 for 50: the larger.
TEST(GreedyLadder, PinsNoMoreThanTheHostAllows) {
  LadderOptions without = options();
  without.host_bytes = 99;
  const std::vector<LadderRung> ladder = build_greedy_ladder(kCatalogue, without);
  ASSERT_EQ(ladder.size(), 4U);
  EXPECT_THAT(ladder[1].choice, ElementsAre(0, 2, 0));
  EXPECT_THAT(ladder[2].choice, ElementsAre(2, 2, 0));
  EXPECT_THAT(ladder[3].choice, ElementsAre(2, 2, 1));
}

// What the solver finds for a rung's memory is the least that any plan of no more exposes.
TEST(GreedyLadder, NeverExposesLessThanTheSolver) {
  const Job job = on_platform(small_moe_job(2, 6), load_hardware_profile("bw1000"));
  const HardwareProfile profile = load_hardware_profile("bw1000");
  OperatorCosts costs(job, profile);
  const std::int64_t rows = balanced_lane_rows(job);
  const ActionCatalogue catalogue =
      build_action_catalogue(build_operator_graph(job, 0), costs, rows);
  LadderOptions o;
  o.balanced_rows = rows;
  o.period_ns = 5'000'000;
  int compared = 0;
  for (const LadderRung& exact : build_ladder(catalogue, o)) {
    for (const LadderRung& greedy : build_greedy_ladder(catalogue, o)) {
      if (held_by(greedy, catalogue, rows) > held_by(exact, catalogue, rows)) continue;
      EXPECT_LE(exact.exposed_ns, greedy.exposed_ns);
      ++compared;
    }
  }
  EXPECT_GT(compared, 50);
}

}  // namespace
}  // namespace tidemark::greedy_ladder_test
