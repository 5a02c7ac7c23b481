#include "planner/bagualu2_offload.h"

#include <gtest/gtest.h>

namespace tidemark::bagualu2_offload_test {
namespace {

TEST(BaGuaLu2Offload, IsWhatExceedsTheLimit) {
  // Their own test.
  BaGuaLu2OffloadManager manager(1, 600);
  EXPECT_DOUBLE_EQ(manager.add_batch(0, 700), 100.0 / 700);
  EXPECT_DOUBLE_EQ(manager.resident_bytes(), 600);
  manager.remove_batch(0);
  EXPECT_DOUBLE_EQ(manager.resident_bytes(), 0);
}

TEST(BaGuaLu2Offload, IsNothingWhileTheProjectionFits) {
  // At most 4 active; 3 at the average of 300 stay under 1,000.
  BaGuaLu2OffloadManager manager(1, 1000);
  EXPECT_EQ(manager.add_batch(0, 300), 0);
  EXPECT_EQ(manager.add_batch(1, 300), 0);
  EXPECT_DOUBLE_EQ(manager.resident_bytes(), 600);
}

TEST(BaGuaLu2Offload, BeginsBeforeTheLimitIsReached) {
  // At most 6 active. With two of 400 the average is 400: (400 * 5 - 1000) / (6 - 2) = 250.
  BaGuaLu2OffloadManager manager(3, 1000);
  EXPECT_EQ(manager.add_batch(0, 400), 0);
  EXPECT_DOUBLE_EQ(manager.add_batch(1, 400), 250.0 / 400);
  // 550 resident. With a third the average is 950 / 3: (950 / 3 * 5 - 1000) / 3.
  EXPECT_DOUBLE_EQ(manager.add_batch(2, 400), (950.0 / 3 * 5 - 1000) / 3 / 400);
}

TEST(BaGuaLu2Offload, ProjectsOnceMoreThanATenthAreActive) {
  // One of at most 10 is a tenth and not more; one of at most 9 is more.
  BaGuaLu2OffloadManager ten(7, 1000);
  ten.add_batch(0, 400);
  EXPECT_EQ(ten.add_batch(1, 400), 0);
  BaGuaLu2OffloadManager nine(6, 1000);
  nine.add_batch(0, 400);
  EXPECT_DOUBLE_EQ(nine.add_batch(1, 400), (400.0 * 8 - 1000) / (9 - 2) / 400);
}

TEST(BaGuaLu2Offload, NeverTakesMoreThanTheMicrobatchNorExceedsTheLimit) {
  BaGuaLu2OffloadManager manager(5, 1000);
  for (std::int64_t m = 0; m < 7; ++m) {
    const double ratio = manager.add_batch(m, 100.0 + 150.0 * static_cast<double>(m % 3));
    EXPECT_GE(ratio, 0);
    EXPECT_LE(ratio, 1);
    EXPECT_LE(manager.resident_bytes(), 1000);
  }
  EXPECT_EQ(manager.num_active(), 7);
}

TEST(BaGuaLu2Offload, DependsOnRatiosOfBytesOnly) {
  BaGuaLu2OffloadManager bytes(4, 1000);
  BaGuaLu2OffloadManager kilobytes(4, 1000 * 1024.0);
  for (std::int64_t m = 0; m < 6; ++m) {
    const double size = 300.0 + 50.0 * static_cast<double>(m);
    EXPECT_DOUBLE_EQ(bytes.add_batch(m, size), kilobytes.add_batch(m, 1024 * size));
  }
}

TEST(BaGuaLu2Offload, ForgetsWhatIsRemoved) {
  BaGuaLu2OffloadManager manager(3, 1000);
  manager.add_batch(0, 400);
  const double ratio = manager.add_batch(1, 400);
  manager.remove_batch(1);
  manager.remove_batch(7);  // never added
  EXPECT_EQ(manager.num_active(), 1);
  EXPECT_DOUBLE_EQ(manager.resident_bytes(), 400);
  EXPECT_DOUBLE_EQ(manager.add_batch(1, 400), ratio);
}

}  // namespace
}  // namespace tidemark::bagualu2_offload_test
