#include "traces/capacity.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tidemark::capacity_test {
namespace {

using testing::ElementsAre;

// 4 experts on 2 ranks, top-2 of 20 tokens: 40 rows, 10 an expert. Of 2 senders each: 5.
constexpr RoutingShape kShape{1, 1, 1, 4, 2, 20, 2};

RoutingCounts counts_of(std::vector<std::int64_t> values) {
  RoutingCounts counts;
  resize(counts, kShape);
  counts.counts.assign(values.begin(), values.end());
  return counts;
}

TEST(ExpertCapacity, IsRoundedUpForEachSender) {
  EXPECT_EQ(expert_capacity(kShape, {.factor = 1, .senders = 2}), 10);
  EXPECT_EQ(expert_capacity(kShape, {.factor = 1.1, .senders = 2}), 12);  // ceil(5.5) each
  EXPECT_EQ(expert_capacity(kShape, {.factor = 1.1, .senders = 1}), 11);
}

TEST(ApplyCapacity, DropsWhatIsAbove) {
  RoutingCounts counts = counts_of({20, 12, 8, 0});
  const Dropped dropped = apply_capacity(kShape, {.factor = 1}, counts);
  EXPECT_THAT(counts.counts, ElementsAre(10, 10, 8, 0));
  EXPECT_EQ(dropped.rows, 10 + 2);
  EXPECT_EQ(dropped.of, 40);
  EXPECT_EQ(dropped.padded, 0);
}

TEST(ApplyCapacity, PadsToIt) {
  RoutingCounts counts = counts_of({20, 12, 8, 0});
  const Dropped dropped = apply_capacity(kShape, {.factor = 1, .pad = true}, counts);
  EXPECT_THAT(counts.counts, ElementsAre(10, 10, 10, 10));
  EXPECT_EQ(dropped.rows, 12);
  EXPECT_EQ(dropped.padded, 2 + 10);
}

TEST(ApplyCapacity, OfADeviceLetsItsExpertsShare) {
  // Ranks of 32 and 8 rows, 20 each at most: the first loses 12, in proportion.
  RoutingCounts counts = counts_of({20, 12, 8, 0});
  const Dropped dropped =
      apply_capacity(kShape, {.factor = 1, .policy = DropPolicy::kDevice}, counts);
  // 20 * 20 / 32 = 12.5, remainder at the second.
  EXPECT_THAT(counts.counts, ElementsAre(12, 8, 8, 0));
  EXPECT_EQ(dropped.rows, 12);
}

TEST(ApplyCapacity, DropsNothingWhereItIsEnough) {
  RoutingCounts counts = counts_of({20, 12, 8, 0});
  EXPECT_EQ(apply_capacity(kShape, {.factor = 2}, counts).rows, 0);
  EXPECT_THAT(counts.counts, ElementsAre(20, 12, 8, 0));
}

}  // namespace
}  // namespace tidemark::capacity_test
