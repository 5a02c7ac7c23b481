#include "models/units.h"

#include <gtest/gtest.h>

namespace tidemark::units_test {
namespace {

TEST(Quantity, KeepsItsDimensionUnderSumsAndIntegerScaling) {
  EXPECT_EQ(2 * kMiB + kKiB - kKiB, Bytes(2 << 20));
  EXPECT_EQ(kGiB / 1024, kMiB);
  EXPECT_EQ(-kKiB, Bytes(-1024));
  Bytes sum = kMiB;
  sum += kMiB;
  sum -= kKiB;
  EXPECT_EQ(sum, Bytes(2 * 1048576 - 1024));
  EXPECT_LT(kMiB, kGiB);
}

TEST(Quantity, ConvertsToTheUnitsPeopleRead) {
  EXPECT_DOUBLE_EQ(to_mib(Bytes(3 << 19)), 1.5);
  EXPECT_DOUBLE_EQ(to_gib(64 * kGiB), 64.0);
}

TEST(RoundUpNs, RoundsUpOnceAndKeepsWholeNanoseconds) {
  EXPECT_EQ(round_up_ns(0).count(), 0);
  EXPECT_EQ(round_up_ns(2e-9).count(), 2);
  EXPECT_EQ(round_up_ns(2.1e-9).count(), 3);
  EXPECT_EQ(round_up_ns(1.0).count(), 1'000'000'000);
}

TEST(RoundUp, GivesTheNextMultiple) {
  EXPECT_EQ(round_up(0, 512), 0);
  EXPECT_EQ(round_up(1, 512), 512);
  EXPECT_EQ(round_up(512, 512), 512);
  EXPECT_EQ(round_up(513, 512), 1024);
  EXPECT_EQ(ceil_div(7, 2), 4);
  EXPECT_EQ(ceil_div(8, 2), 4);
}

TEST(Id, IsInvalidUntilGivenAnIndex) {
  using ThingId = Id<struct ThingTag>;
  EXPECT_FALSE(ThingId().valid());
  EXPECT_TRUE(ThingId(0).valid());
  EXPECT_EQ(ThingId(7).index(), 7u);
}

}  // namespace
}  // namespace tidemark::units_test
