#include "planner/provision.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "planner/check_plan.h"

namespace tidemark::provision_test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

StorageAction saved(Size bytes) {
  StorageAction a;
  a.held[0] = bytes;
  return a;
}

StorageAction recomputed(Size ps) {
  StorageAction a;
  a.kind = ActionKind::kRecompute;
  a.compute_ps = ps;
  return a;
}

StorageAction offloaded(Size bytes, Size ps, std::int32_t deadline) {
  StorageAction a;
  a.kind = ActionKind::kOffload;
  a.out_ps = ps;
  a.out_deadline = deadline;
  a.host_bytes = bytes;
  return a;
}

ProvisionProblem one_lane(std::int64_t budget) {
  ProvisionProblem p;
  p.floor = {{}};
  p.lanes = {{0, {budget}, 1000}};
  return p;
}

TEST(ProvisionExamples, DoesNothingInCalmPhases) {
  ProvisionProblem p = one_lane(100);
  p.classes = {{"a", 10, {saved({10, 0}), recomputed({1000, 0})}}};
  ProvisionWorkspace workspace;
  const SolveResult r = provision(p, {}, workspace);
  EXPECT_EQ(r.status, SolveStatus::kOptimal);
  EXPECT_EQ(r.objective_ns, 0);
  EXPECT_THAT(r.counts, ElementsAre(10, 0));
}

TEST(ProvisionExamples, GivesUpJustEnough) {
  // 99 bytes hold nine of ten; the cheapest to re-run is one of the second class.
  ProvisionProblem p = one_lane(99);
  p.classes = {{"a", 5, {saved({10, 0}), recomputed({3000, 0})}},
               {"b", 5, {saved({10, 0}), recomputed({2000, 0})}}};
  ProvisionWorkspace workspace;
  const SolveResult r = provision(p, {}, workspace);
  EXPECT_EQ(r.objective_ns, 2);
  EXPECT_THAT(r.counts, ElementsAre(5, 0, 4, 1));
  // With slack for two of either the time is free.
  p.compute_slack_ps = 6000;
  EXPECT_EQ(provision(p, {}, workspace).objective_ns, 0);
}

TEST(ProvisionExamples, SomeTimeIsExposedWhateverTheSlack) {
  // One of three goes: re-run in 3 ns, of which 2 are exposed, or in 5 of which 1 is.
  ProvisionProblem p = one_lane(20);
  StorageAction long_one = recomputed({4000, 0});
  long_one.exposed_ps = {1000, 0};
  StorageAction short_one = recomputed({1000, 0});
  short_one.exposed_ps = {2000, 0};
  p.classes = {{"a", 3, {saved({10, 0}), short_one, long_one}}};
  ProvisionWorkspace workspace;
  EXPECT_EQ(provision(p, {}, workspace).objective_ns, 3);
  p.compute_slack_ps = 4000;
  const SolveResult r = provision(p, {}, workspace);
  EXPECT_EQ(r.objective_ns, 1);
  EXPECT_THAT(r.counts, ElementsAre(2, 0, 1));
}

TEST(ProvisionExamples, TheLargestMissOfADeadlineCountsOnce) {
  // Both must go: due by 0: 5 of 3 ns, by 1: 5 + 4 of 6 ns. Late by 2, then by 3.
  ProvisionProblem p = one_lane(0);
  p.classes = {{"a", 1, {saved({1, 0}), offloaded({1, 0}, {5000, 0}, 0)}},
               {"b", 1, {saved({1, 0}), offloaded({1, 0}, {4000, 0}, 1)}}};
  p.out_capacity_ps = {3000, 6000};
  ProvisionWorkspace workspace;
  EXPECT_EQ(provision(p, {}, workspace).objective_ns, 3);
}

TEST(ProvisionExamples, TimesAreOfTheHottestLane) {
  // No room at all: both lanes re-run both, lane 0 for ten rows.
  ProvisionProblem p;
  p.floor = {{}};
  p.lanes = {{10, {0}, 1000}, {1, {0}, 1000}};
  StorageAction shared = recomputed({0, 100});
  shared.collective = true;
  p.classes = {{"a", 1, {saved({0, 1}), shared}}, {"b", 1, {saved({0, 1}), recomputed({0, 200})}}};
  ProvisionWorkspace workspace;
  const SolveResult r = provision(p, {}, workspace);
  // (100 + 200) ps a row, 10 rows: 3 ns.
  EXPECT_EQ(r.objective_ns, 3);
  EXPECT_THAT(r.choice, ElementsAre(0, 0));
  EXPECT_THAT(check_plan(p, r), IsEmpty());
}

TEST(ProvisionExamples, AGroupPaysForItsTightestLane) {
  // Lane 0 alone would re-run `a` for 1 ns. Lane 1 has room for nothing and needs the collective
  // re-run of `b` too, 1 + 4 ns; then lane 0 runs that as well.
  ProvisionProblem p;
  p.floor = {{}};
  p.lanes = {{0, {10}, 0}, {0, {0}, 0}};
  StorageAction shared = recomputed({4000, 0});
  shared.collective = true;
  p.classes = {{"a", 1, {saved({10, 0}), recomputed({1000, 0})}},
               {"b", 1, {saved({10, 0}), shared}}};
  ProvisionWorkspace workspace;
  const SolveResult r = provision(p, {}, workspace);
  EXPECT_EQ(r.status, SolveStatus::kOptimal);
  EXPECT_EQ(r.objective_ns, 5);
  EXPECT_THAT(check_plan(p, r), IsEmpty());
}

TEST(ProvisionExamples, NamesTheLaneAndWhatNoActionCanFree) {
  ProvisionProblem p;
  p.floor = {{7, 2}};
  p.lanes = {{1, {20}, 0}, {10, {20}, 0}};
  StorageAction half;
  half.kind = ActionKind::kQuantize;
  half.held[0] = {0, 1};
  p.classes = {{"a", 3, {saved({0, 2}), half}}};
  ProvisionWorkspace workspace;
  const SolveResult r = provision(p, {}, workspace);
  ASSERT_EQ(r.status, SolveStatus::kInfeasible);
  EXPECT_EQ(r.shortage.lane, 1);
  EXPECT_EQ(r.shortage.moment, 0);
  // 7 + 2 * 10 rows, and three halves of 10 rows.
  EXPECT_EQ(r.shortage.floor_bytes, 57);
  EXPECT_EQ(r.shortage.bytes_short, 37);
}

TEST(ProvisionExamples, AWorkLimitIsStated) {
  // Half of 24 different storages must go; nothing can be proven without nodes.
  ProvisionProblem p = one_lane(0);
  for (std::int64_t i = 0; i < 24; ++i) {
    const std::int64_t bytes = 1'000'003 + 7919 * i * i % 104'729;
    p.classes.push_back({"s", 1, {saved({bytes, 0}), recomputed({bytes * 1000 + i * 977, 0})}});
    p.lanes[0].budget[0] += bytes / 2;
  }
  ProvisionWorkspace workspace;
  const SolveResult r = provision(p, {0}, workspace);
  ASSERT_EQ(r.status, SolveStatus::kFeasible);
  EXPECT_LT(r.bound_ns, r.objective_ns);
  EXPECT_GT(r.gap(), 0);
  EXPECT_LT(r.gap(), 0.1);
  EXPECT_THAT(check_plan(p, r), IsEmpty());
}

}  // namespace
}  // namespace tidemark::provision_test
