#include "planner/order_cache.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "planner/check_order.h"

namespace tidemark::order_cache_test {
namespace {

using testing::IsEmpty;

constexpr OrderLimit kEnough{1 << 20};

SlotProblem problem(std::int64_t attention_ns) {
  SlotProblem p;
  p.chains = {{"forward", {{0, attention_ns, 3 << 10, 0}, {1, 5000}, {0, 900}}},
              {"backward", {{1, 4000}, {0, 2000, 0, -(3 << 10)}, {1, 1000}}}};
  p.floating = {{{0, 700}, {1, 1}, {}}};
  return p;
}

TEST(OrderCache, SharesAnOrderWithinABucket) {
  // With four bits, 2048 to 2303 ns are one bucket: 8 times 256.
  OrderCache cache(kEnough, {4, 20});
  cache.order(problem(2048));
  EXPECT_EQ(cache.misses(), 1);
  cache.order(problem(2303));
  EXPECT_EQ(cache.hits(), 1);
  cache.order(problem(2304));
  cache.order(problem(2047));
  EXPECT_EQ(cache.misses(), 3);
}

TEST(OrderCache, TakesTimesFromTheProblemNotFromTheBucket) {
  OrderCache cache(kEnough, {4, 20});
  const std::int64_t low = cache.order(problem(2048)).makespan_ns;
  const StreamOrder high = cache.order(problem(2300));
  EXPECT_GE(high.makespan_ns, low);
  EXPECT_EQ(high.makespan_ns, order_makespan(problem(2300), high.order));
  EXPECT_THAT(check_order(problem(2300), high), IsEmpty());
}

TEST(OrderCache, TellsProblemsApartThatDifferInAnythingElse) {
  OrderCache cache(kEnough, {4, 20});
  cache.order(problem(2048));
  SlotProblem other = problem(2048);
  other.chains[0].operators[2].stream = 2;
  cache.order(other);
  other = problem(2048);
  other.precedences = {{{0, 0}, {1, 1}}};
  cache.order(other);
  other = problem(2048);
  other.floating[0].after = {1, 0};
  cache.order(other);
  other = problem(2048);
  other.memory = {0, 1 << 30};
  cache.order(other);
  EXPECT_EQ(cache.misses(), 5);
}

TEST(OrderCache, RoundsMemoryToTheSafeSide) {
  // 3 KiB on top of 61 fit into 64, and 3 KiB + 1 into the next unit only.
  OrderCache cache(kEnough, {4, 10});
  SlotProblem p = problem(2048);
  p.memory = {61 << 10, 64 << 10};
  const std::int64_t forward_first = cache.order(p).makespan_ns;
  ++p.chains[0].operators[0].before_bytes;
  const StreamOrder tight = cache.order(p);
  EXPECT_EQ(cache.misses(), 2);
  EXPECT_THAT(check_order(p, tight), IsEmpty());
  EXPECT_GE(tight.makespan_ns, forward_first);
}

TEST(OrderCache, SolvesAsItIsWhatRoundingMakesImpossible) {
  // One operator takes 1 byte of the last one; rounded up it would take 1 KiB.
  SlotProblem p;
  p.chains = {{"forward", {{0, 10, 1, 0}}}};
  p.memory = {99, 100};
  OrderCache cache(kEnough, {4, 10});
  const StreamOrder order = cache.order(p);
  EXPECT_EQ(order.status, SolveStatus::kOptimal);
  EXPECT_THAT(check_order(p, order), IsEmpty());
}

TEST(OrderCache, DoesNotDependOnWhatItRemembers) {
  OrderCache large(kEnough, {4, 20});
  OrderCache small(kEnough, {4, 20}, 1);
  for (std::int64_t ns : {2048, 5000, 2100, 2048, 900, 5100, 2200}) {
    EXPECT_EQ(large.order(problem(ns)).order, small.order(problem(ns)).order);
  }
  EXPECT_GT(large.hits(), small.hits());
}

}  // namespace
}  // namespace tidemark::order_cache_test
