#include "tools/segment_map.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "models/units.h"

namespace tidemark::segment_map_test {
namespace {

using testing::HasSubstr;

// One segment of 96 MiB in rows of 64: 48 MiB resident, 32 of microbatch 3, the rest free.
TEST(SegmentMap, WrapsBlocksAtTheEndOfARow) {
  AllocatorSnapshot snapshot;
  snapshot.owners = {{"weights", -1, -1, true}, {"output", 0, 3, false}};
  const std::int64_t mi = kMiB.value;
  snapshot.segments = {{0, false, {}}};
  snapshot.segments[0].blocks = {{0, 48 * mi, 48 * mi, BlockState::kAllocated, 0},
                                 {48 * mi, 32 * mi, 32 * mi, BlockState::kAllocated, 1},
                                 {80 * mi, 16 * mi, 0, BlockState::kFree, -1}};
  const std::string script = segment_map(snapshot, 3, "a title");
  // x, y, x from, x to, y from, y to
  EXPECT_THAT(script, HasSubstr("set title \"a title\""));
  EXPECT_THAT(script, HasSubstr("$kind0 << end_of_data\n0 0 0 48 0 0.9\n"));
  EXPECT_THAT(script, HasSubstr("$kind2 << end_of_data\n48 0 48 64 0 0.9\n0 1 0 16 1 1.9\n"));
  EXPECT_THAT(script, HasSubstr("$kind4 << end_of_data\n16 1 16 32 1 1.9\n"));
}

}  // namespace
}  // namespace tidemark::segment_map_test
