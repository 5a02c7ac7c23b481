// One broken order for each rule.
#include "planner/check_order.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tidemark::check_order_test {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

// Compute 5, comm 7 | comm 3, compute 4, the latter after the former chain's compute; a copy of 2
// between. In order: comm 0-3 and 5-12, compute 0-5 and 7-11, copy 5-7.
SlotProblem problem() {
  SlotProblem p;
  p.chains = {{"forward", {{0, 5, 20, -10}, {1, 7}}}, {"backward", {{1, 3}, {0, 4, 5, -15}}}};
  p.precedences = {{{0, 0}, {1, 1}}};
  p.floating = {{{2, 2}, {0, 0}, {1, 1}}};
  p.memory = {10, 30};  // 30, 20, 25, 10
  return p;
}

StreamOrder good() { return {{0, 2, 1, 4, 3}, 12, 12, SolveStatus::kOptimal, 0}; }

TEST(CheckOrder, AcceptsALegalOrder) { EXPECT_THAT(check_order(problem(), good()), IsEmpty()); }

TEST(CheckOrder, RefusesMissingRepeatedAndUnknownOperators) {
  StreamOrder order = good();
  order.order = {0, 2, 2, 4, 5};
  EXPECT_THAT(check_order(problem(), order),
              ElementsAre("backward[0] is issued twice", "there is no operator 5",
                          "forward[1] is never issued", "backward[1] is never issued"));
}

TEST(CheckOrder, RefusesAChainOutOfOrder) {
  StreamOrder order = good();
  order.order = {1, 0, 2, 4, 3};
  EXPECT_THAT(check_order(problem(), order),
              ElementsAre("forward[1] is issued before its predecessor forward[0]"));
}

TEST(CheckOrder, RefusesAnOperatorBeforeWhatItWaitsFor) {
  StreamOrder order = good();
  order.order = {2, 3, 0, 1, 4};
  EXPECT_THAT(check_order(problem(), order),
              ElementsAre("backward[1] is issued before its predecessor forward[0]",
                          "backward[1] is issued before its predecessor floating[0]"));
}

TEST(CheckOrder, RefusesOneByteTooMany) {
  SlotProblem p = problem();
  p.memory.limit_bytes = 29;
  EXPECT_THAT(check_order(p, good()),
              ElementsAre("forward[0] exceeds the memory limit by 1 bytes"));
}

TEST(CheckOrder, RefusesAMakespanThatDoesNotFollow) {
  StreamOrder order = good();
  order.makespan_ns = 13;
  EXPECT_THAT(check_order(problem(), order),
              ElementsAre("the makespan is 13 ns, but the order takes 12"));
}

TEST(CheckOrder, RefusesAMakespanBelowItsBounds) {
  StreamOrder order = good();
  order.makespan_ns = 8;  // the critical path is 5 + 7, communication is 10
  EXPECT_THAT(check_order(problem(), order),
              ElementsAre("the makespan is 8 ns, but the order takes 12",
                          "the makespan is 8 ns, less than its bound, 12",
                          "the makespan is 8 ns, less than the critical path, 12",
                          "the makespan is 8 ns, less than the work of stream 0, 9",
                          "the makespan is 8 ns, less than the work of stream 1, 10"));
}

TEST(CheckOrder, RefusesAMakespanAboveTheSerialTime) {
  StreamOrder order = good();
  order.makespan_ns = 22;  // 5 + 7 + 3 + 4 + 2 = 21
  EXPECT_THAT(check_order(problem(), order),
              ElementsAre("the makespan is 22 ns, but the order takes 12",
                          "the makespan is 22 ns, more than the serial time, 21"));
}

}  // namespace
}  // namespace tidemark::check_order_test
