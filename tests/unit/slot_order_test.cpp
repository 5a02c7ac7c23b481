#include "planner/slot_order.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "models/input_error.h"

namespace tidemark::slot_order_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// forward: compute 5, comm 7, compute 2; backward: comm 3, compute 4; a weight gradient of 6 on
// compute after backward[1].
SlotProblem example() {
  SlotProblem problem;
  problem.chains = {{"forward", {{0, 5}, {1, 7}, {0, 2}}}, {"backward", {{1, 3}, {0, 4}}}};
  problem.floating = {{{0, 6}, {1, 1}, {}}};
  return problem;
}

std::vector<std::string> refused(const SlotProblem& problem) {
  std::vector<std::string> texts;
  try {
    validate(problem);
  } catch (const InputError& error) {
    for (const Violation& v : error.violations()) texts.push_back(v.text());
  }
  return texts;
}

TEST(OrderMakespan, IsTheLastEndOfTheStreamsQueues) {
  // comm: backward[0] 0-3, forward[1] 5-12; compute: forward[0] 0-5, backward[1] 5-9, forward[2]
  // 12-14, the weight gradient 14-20; or the weight gradient 9-15 and forward[2] 15-17.
  EXPECT_EQ(order_makespan(example(), std::vector{0, 3, 1, 4, 2, 5}), 20);
  EXPECT_EQ(order_makespan(example(), std::vector{0, 3, 1, 4, 5, 2}), 17);
  // The backward waits behind the forward on comm: forward[1] 5-12, backward[0] 12-15, [1] 15-19.
  EXPECT_EQ(order_makespan(example(), std::vector{0, 1, 2, 3, 4, 5}), 25);
}

TEST(OrderMakespan, WaitsForPrecedencesAndDeadlines) {
  SlotProblem problem = example();
  problem.precedences = {{{1, 1}, {0, 2}}};
  problem.floating = {{{2, 100}, {0, 0}, {1, 1}}};  // a copy 5-105, then backward[1] 105-109
  EXPECT_EQ(order_makespan(problem, std::vector{0, 3, 5, 1, 4, 2}), 111);
}

TEST(WithinMemory, CountsBeforeAndAfterEachOperator) {
  SlotProblem problem;
  problem.chains = {{"forward", {{0, 1, 30, -20}, {0, 1, 5, 0}}}, {"backward", {{0, 1, 0, -10}}}};
  problem.memory.held_bytes = 70;
  SlotGraph graph;
  graph.assign(problem);
  const std::vector<std::int32_t> forward_first = {0, 1, 2};   // 100, 80, 85, 75
  const std::vector<std::int32_t> backward_first = {2, 0, 1};  // 60, 90, 70, 75
  EXPECT_TRUE(within_memory(graph, {70, 100}, forward_first));
  EXPECT_FALSE(within_memory(graph, {70, 99}, forward_first));
  EXPECT_TRUE(within_memory(graph, {70, 90}, backward_first));
  EXPECT_FALSE(within_memory(graph, {70, 89}, backward_first));
}

TEST(OperatorName, CountsChainByChainThenFloating) {
  EXPECT_EQ(operator_name(example(), 2), "forward[2]");
  EXPECT_EQ(operator_name(example(), 4), "backward[1]");
  EXPECT_EQ(operator_name(example(), 5), "floating[0]");
}

TEST(SlotProblem, OfGoodInputIsAccepted) { EXPECT_NO_THROW(validate(example())); }

TEST(SlotProblem, IsRefusedWithEveryBadDurationStreamAndPoint) {
  SlotProblem problem = example();
  problem.chains[1].operators[0].duration_ns = -5;
  problem.chains[0].operators[2].stream = 64;
  problem.precedences = {{{1, 0}, {0, 3}}};
  problem.floating[0].after = {2, 0};
  EXPECT_THAT(refused(problem),
              ElementsAre(HasSubstr("forward[2].stream: 64, expected 0 to 63"),
                          HasSubstr("backward[0].duration_ns: -5, expected >= 0"),
                          HasSubstr("precedence[0].then: forward[3], expected an operator"),
                          HasSubstr("floating[0].after: chain 2[0], expected an operator")));
}

TEST(SlotProblem, IsRefusedWithADeadlineThatIsNotAfterItsProducer) {
  SlotProblem problem = example();
  problem.floating[0] = {{2, 1}, {0, 2}, {0, 2}};
  EXPECT_THAT(refused(problem),
              ElementsAre(HasSubstr("floating[0]: deadline forward[2], expected a deadline after "
                                    "its producer forward[2]")));
}

TEST(SlotProblem, IsRefusedWithACycle) {
  SlotProblem problem = example();
  problem.precedences = {{{0, 2}, {1, 0}}, {{1, 1}, {0, 1}}};
  const std::vector<std::string> texts = refused(problem);
  ASSERT_EQ(texts.size(), 1u);
  // In the direction of time, back to where it begins.
  EXPECT_THAT(texts[0], HasSubstr("forward[1] -> forward[2] -> backward[0] -> backward[1] -> "));
}

TEST(SlotProblem, IsRefusedWithACycleThroughACopy) {
  SlotProblem problem = example();
  problem.precedences = {{{0, 1}, {1, 0}}};
  problem.floating[0] = {{2, 1}, {1, 1}, {0, 1}};
  EXPECT_THAT(refused(problem), ElementsAre(HasSubstr("floating[0] -> ")));
}

}  // namespace
}  // namespace tidemark::slot_order_test
