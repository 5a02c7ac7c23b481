#include "models/large_vector.h"

#include <cstdint>
#include <numeric>

#include <gtest/gtest.h>

namespace tidemark::large_vector_test {
namespace {

TEST(LargeVector, KeepsItsElementsWhereItGrowsOntoHugePages) {
  LargeVector<std::int32_t> values(1000);
  std::iota(values.begin(), values.end(), 0);
  values.resize(std::size_t{1} << 20);  // 4 MiB
  for (std::int32_t i = 0; i < 1000; ++i) ASSERT_EQ(values[static_cast<std::size_t>(i)], i);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(values.data()) % (std::uintptr_t{2} << 20), 0U);
}

TEST(LargeVector, TakesGivenValues) {
  const LargeVector<std::int64_t> values(3, 7);
  EXPECT_EQ(values, (LargeVector<std::int64_t>{7, 7, 7}));
}

}  // namespace
}  // namespace tidemark::large_vector_test
