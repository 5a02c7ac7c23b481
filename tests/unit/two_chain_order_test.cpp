#include "planner/two_chain_order.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "models/input_error.h"

namespace tidemark::two_chain_order_test {
namespace {

using testing::ElementsAre;

std::vector<SlotOperator> alternating(std::int64_t size, std::int32_t first_stream) {
  std::vector<SlotOperator> chain;
  for (std::int64_t i = 0; i < size; ++i) {
    chain.push_back({static_cast<std::int32_t>((first_stream + i) % 2), 10});
  }
  return chain;
}

TEST(TwoChainOrder, OfEqualAlternatingChainsIsOneOperatorLongerThanAChain) {
  // Both want the same stream first: one waits once, then they never meet again.
  for (std::int64_t size : {1, 2, 5, 40}) {
    EXPECT_EQ(two_chain_order(alternating(size, 0), alternating(size, 0)).makespan_ns,
              10 * (size + 1));
    EXPECT_EQ(two_chain_order(alternating(size, 0), alternating(size, 1)).makespan_ns, 10 * size);
  }
}

TEST(TwoChainOrder, OfOneStreamIsTheSum) {
  const std::vector<SlotOperator> first = {{0, 3}, {0, 4}};
  const std::vector<SlotOperator> second = {{0, 5}};
  EXPECT_EQ(two_chain_order(first, second).makespan_ns, 12);
}

TEST(TwoChainOrder, OfAnEmptyChainIsTheOther) {
  const std::vector<SlotOperator> chain = {{0, 3}, {1, 4}};
  EXPECT_EQ(two_chain_order({}, {}).makespan_ns, 0);
  EXPECT_THAT(two_chain_order({}, {}).order, ElementsAre());
  EXPECT_EQ(two_chain_order({}, chain).makespan_ns, 7);
  EXPECT_THAT(two_chain_order(chain, {}).order, ElementsAre(0, 1));
}

TEST(TwoChainOrder, HoldsAChainBackBeforeTheConflictIsReached) {
  // Compute (stream 0) meets compute when both have run for 4: second is then inside its operator
  // of
  // 3. Second first: it ends at 5, first's 10 and second's last 10 at 15.
  const std::vector<SlotOperator> first = {{1, 4}, {0, 10}};
  const std::vector<SlotOperator> second = {{2, 2}, {0, 3}, {3, 10}};
  EXPECT_EQ(two_chain_order(first, second).makespan_ns, 15);
  // First first: second is held back from 2 on, and the ends are 4 + 10 + 20 and 14 + 3 + 1; the
  // other way takes 5 + 10 + 20.
  const std::vector<SlotOperator> longer = {{1, 4}, {0, 10}, {4, 20}};
  const std::vector<SlotOperator> shorter = {{2, 2}, {0, 3}, {3, 1}};
  EXPECT_EQ(two_chain_order(longer, shorter).makespan_ns, 34);
}

TEST(TwoChainOrder, PutsOperatorsWithoutDurationBesideOthersNotInside) {
  // first: 5 on stream 1, then 0 on stream 0, then 5 on stream 1; second: 8 on stream 0. The empty
  // one waits until 8 (13 in all), or second waits until 5 (13).
  const std::vector<SlotOperator> first = {{1, 5}, {0, 0}, {1, 5}};
  const std::vector<SlotOperator> second = {{0, 8}};
  EXPECT_EQ(two_chain_order(first, second).makespan_ns, 13);
}

TEST(TwoChainOrder, RefusesANegativeDuration) {
  const std::vector<SlotOperator> chain = {{0, -1}};
  EXPECT_THROW(two_chain_order(chain, chain), InputError);
}

}  // namespace
}  // namespace tidemark::two_chain_order_test
