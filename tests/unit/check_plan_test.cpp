#include "planner/check_plan.h"

#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tidemark::check_plan_test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// Two storages of 10 bytes; recompute is collective and takes 3 ns, offload 4 ns each way.
ProvisionProblem two_storages() {
  ProvisionProblem p;
  StorageAction save;
  save.held[0] = {10, 0};
  StorageAction recompute;
  recompute.kind = ActionKind::kRecompute;
  recompute.compute_ps = {3000, 0};
  recompute.collective = true;
  StorageAction offload;
  offload.kind = ActionKind::kOffload;
  offload.out_ps = {4000, 0};
  offload.in_ps = {4000, 0};
  offload.host_bytes = {10, 0};
  p.classes = {{"fc1.output", 2, {save, recompute, offload}}};
  p.floor = {{5, 1}};
  p.lanes = {{1, {16}, 20}, {1, {16}, 20}};
  p.compute_slack_ps = 1000;
  p.out_capacity_ps = {2000};
  p.in_capacity_ps = {1000};
  return p;
}

struct Plan {
  std::vector<std::int32_t> counts;
  std::vector<std::int32_t> choice{0, 0};
  std::int64_t objective_ns = 0;

  std::vector<std::string> check(const ProvisionProblem& problem) const {
    SolveResult r;
    r.status = SolveStatus::kOptimal;
    r.counts = counts;
    r.choice = choice;
    r.objective_ns = r.bound_ns = objective_ns;
    return check_plan(problem, r);
  }
};

TEST(CheckPlan, AcceptsPlansThatAreWhatTheySay) {
  // Floor 6; one storage saved: 16. Recompute: 3 - 1 ns exposed.
  EXPECT_THAT((Plan{{1, 1, 0}, {0, 0}, 2}.check(two_storages())), IsEmpty());
  // Offload: out 4 - 2, in 4 - 1.
  EXPECT_THAT((Plan{{1, 0, 1}, {0, 0}, 5}.check(two_storages())), IsEmpty());
  // Recompute of one on both lanes; lane 1 offloads the other one too.
  EXPECT_THAT((Plan{{1, 1, 0, 0, 1, 1}, {0, 1}, 7}.check(two_storages())), IsEmpty());
}

TEST(CheckPlan, RejectsOneByteTooMany) {
  ProvisionProblem p = two_storages();
  p.lanes[1].budget[0] = 15;
  EXPECT_THAT((Plan{{1, 1, 0}, {0, 0}, 2}.check(p)),
              ElementsAre("lane 1: 1 bytes over the budget at moment 0"));
}

TEST(CheckPlan, RejectsTooMuchHostMemory) {
  ProvisionProblem p = two_storages();
  p.lanes[0].host_budget = 9;
  EXPECT_THAT((Plan{{1, 0, 1}, {0, 0}, 5}.check(p)),
              ElementsAre("lane 0: 1 bytes over the host's"));
}

TEST(CheckPlan, RejectsStoragesWithoutAnAction) {
  EXPECT_THAT((Plan{{0, 1, 0}, {0, 0}, 2}.check(two_storages())),
              ElementsAre("lane 0: 1 actions for 2 storages of fc1.output",
                          "lane 1: 1 actions for 2 storages of fc1.output"));
}

TEST(CheckPlan, RejectsCollectivesThatDisagree) {
  EXPECT_THAT((Plan{{1, 1, 0, 1, 0, 1}, {0, 1}, 5}.check(two_storages())),
              ElementsAre("lane 1: fc1.output takes a collective action 0 times, lane 0 1 times"));
}

TEST(CheckPlan, RejectsBrokenRules) {
  ProvisionProblem p = two_storages();
  p.rules = {{{{0, 1}, {0, 2}}, 0}};
  EXPECT_THAT((Plan{{1, 1, 0}, {0, 0}, 2}.check(p)),
              ElementsAre("lane 0: rule 0 allows 0, not 1", "lane 1: rule 0 allows 0, not 1"));
}

TEST(CheckPlan, RejectsAnotherObjective) {
  EXPECT_THAT((Plan{{1, 1, 0}, {0, 0}, 1}.check(two_storages())),
              ElementsAre("the objective is 2 ns, not 1"));
}

TEST(CheckPlan, RejectsMissingChoices) {
  EXPECT_THAT((Plan{{1, 1, 0}, {0}, 2}.check(two_storages())),
              ElementsAre("1 choices for 2 lanes"));
  EXPECT_THAT((Plan{{1, 1, 0}, {0, 1}, 2}.check(two_storages())), ElementsAre("lane 1: no choice"));
}

}  // namespace
}  // namespace tidemark::check_plan_test
