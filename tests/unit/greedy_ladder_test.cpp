#include "planner/greedy_ladder.h"

#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "hw_profiles/hardware_profile.h"
#include "models/job_reader.h"
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

// Of a ladder: what the first rung exposes that holds at most `budget`.
std::int64_t exposed_within(const std::vector<LadderRung>& ladder, const ActionCatalogue& catalogue,
                            std::int64_t rows, std::int64_t budget) {
  for (const LadderRung& rung : ladder) {
    if (held_by(rung, catalogue, rows) <= budget) return rung.exposed_ns;
  }
  return std::numeric_limits<std::int64_t>::max();
}

// Of the first stage of a job: every share of what a microbatch keeps, between both ladders.
void expect_no_worse_than_greedy(const Job& given, std::int64_t period_ns) {
  const HardwareProfile profile = load_hardware_profile("bw1000");
  const Job job = on_platform(given, profile);
  OperatorCosts costs(job, profile);
  LadderOptions o;
  o.balanced_rows = balanced_lane_rows(job);
  o.period_ns = period_ns;
  const std::int64_t rows = o.balanced_rows;
  const ActionCatalogue catalogue =
      build_action_catalogue(build_operator_graph(job, 0), costs, rows);
  const std::vector<LadderRung> ladder = build_ladder(catalogue, o);
  const std::vector<LadderRung> greedy = build_greedy_ladder(catalogue, o);
  const std::int64_t most = held_by(ladder.front(), catalogue, rows);
  const std::int64_t least = held_by(ladder.back(), catalogue, rows);
  for (std::int64_t r = 0; r < o.rungs; ++r) {
    const std::int64_t budget = most - (most - least) * r / (o.rungs - 1);
    EXPECT_LE(exposed_within(ladder, catalogue, rows, budget),
              exposed_within(greedy, catalogue, rows, budget))
        << budget;
  }
}

// What the solver finds for a rung's memory is the least that any plan of no more exposes.
TEST(GreedyLadder, NeverExposesLessThanTheSolver) {
  expect_no_worse_than_greedy(small_moe_job(2, 6), 5'000'000);
}

// With 20 classes some searches end at the work limit, here one with a plan that exposes more time
// than the greedy one.
TEST(GreedyLadder, NeverExposesLessThanASearchThatDidNotEnd) {
  expect_no_worse_than_greedy(
      read_job(TIDEMARK_SOURCE_DIR "/validation/jobs/dsv3-93l-bw1000-12288.json"), 12'000'000);
}

}  // namespace
}  // namespace tidemark::greedy_ladder_test
