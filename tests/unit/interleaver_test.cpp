#include "planner/interleaver.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "models/input_error.h"
#include "planner/check_order.h"

namespace tidemark::interleaver_test {
namespace {

using testing::IsEmpty;

constexpr OrderLimit kEnough{1 << 20};

// `layers` times compute 10, comm 10.
Chain alternating(const char* name, int layers) {
  Chain chain{name, {}};
  for (int i = 0; i < layers; ++i)
    chain.operators.insert(chain.operators.end(), {{0, 10}, {1, 10}});
  return chain;
}

TEST(Interleaver, FillsTheGapsOfTwoChainsWithAThird) {
  // Three of 3 x (10 + 10) on two streams: 90 of work each, and 10 at an end when one waits.
  SlotProblem problem;
  problem.chains = {alternating("a", 3), alternating("b", 3), alternating("c", 3)};
  const StreamOrder found = interleave(problem, kEnough);
  EXPECT_EQ(found.status, SolveStatus::kOptimal);
  EXPECT_EQ(found.makespan_ns, 100);
  EXPECT_THAT(check_order(problem, found), IsEmpty());
}

TEST(Interleaver, PutsAWeightGradientWhereComputeWouldWait) {
  // backward: compute 10, comm 30, compute 10; its weight gradient of 25 fits beside the comm.
  SlotProblem problem;
  problem.chains = {{"backward", {{0, 10}, {1, 30}, {0, 10}}}};
  problem.floating = {{{0, 25}, {0, 0}, {}}};
  const StreamOrder found = interleave(problem, kEnough);
  EXPECT_EQ(found.makespan_ns, 50);
  EXPECT_THAT(check_order(problem, found), IsEmpty());
}

TEST(Interleaver, StartsCopiesEarlyEnoughForTheirDeadlines) {
  // Two reloads of 40 beside compute of 30, 50 and 20: the one with the earlier deadline goes
  // first.
  SlotProblem problem;
  problem.chains = {{"backward", {{0, 30}, {0, 50}, {0, 20}}}};
  problem.floating = {{{3, 40}, {}, {0, 2}}, {{3, 40}, {}, {0, 1}}};
  const StreamOrder found = interleave(problem, kEnough);
  EXPECT_EQ(found.makespan_ns, 110);  // backward[1] starts at 40, the second copy ends at 80
  EXPECT_EQ(found.status, SolveStatus::kOptimal);
  EXPECT_THAT(check_order(problem, found), IsEmpty());
}

TEST(Interleaver, RunsTheBackwardFirstWhenMemoryIsShort) {
  // forward takes 10 a layer, backward gives 10 a layer. Forward first is shorter: its comm of 100
  // runs beside the backward.
  SlotProblem problem;
  problem.chains = {{"forward", {{0, 10, 10, 0}, {1, 100}}}, {"backward", {{0, 50, 0, -10}}}};
  problem.memory = {100, 110};
  EXPECT_EQ(interleave(problem, kEnough).makespan_ns, 110);
  problem.memory = {100, 109};
  const StreamOrder found = interleave(problem, kEnough);
  EXPECT_EQ(found.makespan_ns, 160);
  EXPECT_EQ(found.status, SolveStatus::kOptimal);
  EXPECT_THAT(check_order(problem, found), IsEmpty());
}

TEST(Interleaver, SaysWhenNoOrderFits) {
  SlotProblem problem;
  problem.chains = {{"forward", {{0, 10, 30, 0}}}, {"backward", {{0, 10, 5, -20}}}};
  problem.memory = {100, 109};  // 105, 85, 115
  const StreamOrder found = interleave(problem, kEnough);
  EXPECT_EQ(found.status, SolveStatus::kInfeasible);
  EXPECT_THAT(found.order, IsEmpty());
}

TEST(Interleaver, MergesOperatorsThatNothingCanSeparate) {
  // The shared expert's stream has one user: five operators and one of the same length are alike.
  SlotProblem merged;
  merged.chains = {{"forward", {{0, 10}, {2, 50}, {0, 10}}}, alternating("backward", 4)};
  merged.floating = {{{0, 7}, {1, 2}, {}}};
  SlotProblem split = merged;
  split.chains[0] = {"forward", {{0, 10}, {2, 10}, {2, 10}, {2, 10}, {2, 10}, {2, 10}, {0, 10}}};
  const StreamOrder one = interleave(merged, kEnough);
  const StreamOrder five = interleave(split, kEnough);
  EXPECT_EQ(one.makespan_ns, five.makespan_ns);
  EXPECT_EQ(one.nodes, five.nodes);
  EXPECT_THAT(check_order(split, five), IsEmpty());
}

TEST(Interleaver, RefusesBadInput) {
  SlotProblem problem;
  problem.chains = {{"forward", {{0, -10}}}};
  EXPECT_THROW(interleave(problem, kEnough), InputError);
}

TEST(Interleaver, OfNothingIsEmpty) {
  const StreamOrder found = interleave({}, kEnough);
  EXPECT_EQ(found.status, SolveStatus::kOptimal);
  EXPECT_EQ(found.makespan_ns, 0);
}

}  // namespace
}  // namespace tidemark::interleaver_test
