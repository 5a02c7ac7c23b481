// One chunk: input 2 MiB, a and c 4 MiB each, and b, saved through views, 6 MiB, are kept for the
// backward; small is kept but less than 1 MiB, and t dies in the forward.
#include "sim/ratio_offload.h"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/graphs.h"

namespace tidemark::ratio_offload_test {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

constexpr std::int64_t kMi = 1 << 20;

struct Example {
  OperatorGraph graph;
  StorageId input = add("input", 2 * kMi);
  StorageId a = add("a", 4 * kMi);
  StorageId b = add("b", 6 * kMi);
  StorageId small = add("small", kMi - 512);
  StorageId c = add("c", 4 * kMi);
  StorageId t = add("t", 8 * kMi);

  Example() {
    graph.storages[b.index()].saved_as_views = true;
    Operator forward;
    forward.reads = {input};
    forward.writes = {a, b, small, t, c};
    graph.forward.push_back(forward);
    Operator backward;
    backward.reads = {input, a, b, small, c};
    graph.backward.push_back(backward);
    close_chunk(graph).input = input;
  }
  StorageId add(const char* name, std::int64_t bytes) {
    graph.storages.push_back({name, {bytes, 0}});
    return StorageId(std::ssize(graph.storages) - 1);
  }
  std::int64_t bytes(StorageId s) const { return graph.storages[s.index()].bytes.fixed; }
};

TEST(RatioOffload, TakesLargeContiguousStoragesFirst) {
  Example e;  // a, c, input, b: a quarter of 16 MiB is a
  const ChunkOffload plan = plan_ratio_offload(e.graph, 0, 0.25);
  EXPECT_EQ(plan.bytes, 4 * kMi);
  EXPECT_THAT(plan.whole, ElementsAre(e.a));
  EXPECT_FALSE(plan.border.valid());
}

TEST(RatioOffload, DividesTheStorageOnTheBorder) {
  Example e;  // 0.3 * 16 = 4.8, rounded up to 5 MiB: a and 1 MiB of c
  const ChunkOffload plan = plan_ratio_offload(e.graph, 0, 0.3);
  EXPECT_EQ(plan.bytes, 5 * kMi);
  EXPECT_THAT(plan.whole, ElementsAre(e.a));
  EXPECT_EQ(plan.border, e.c);
  EXPECT_EQ(e.bytes(plan.remainder), 3 * kMi);
  EXPECT_EQ(e.bytes(plan.reloaded_border), 4 * kMi);
}

TEST(RatioOffload, StartsFromTheOtherEndAboveOneHalf) {
  Example e;  // b, input, c, a: 0.6 * 16 = 9.6, rounded up to 10 MiB: b, input and 2 MiB of c
  const ChunkOffload plan = plan_ratio_offload(e.graph, 0, 0.6);
  EXPECT_EQ(plan.bytes, 10 * kMi);
  EXPECT_THAT(plan.whole, ElementsAre(e.b, e.input));
  EXPECT_EQ(plan.border, e.c);
  EXPECT_EQ(e.bytes(plan.remainder), 2 * kMi);
}

TEST(RatioOffload, TakesAllWithoutABorderAtOne) {
  Example e;
  const ChunkOffload plan = plan_ratio_offload(e.graph, 0, 1);
  EXPECT_EQ(plan.bytes, 16 * kMi);
  EXPECT_THAT(plan.whole, ElementsAre(e.b, e.input, e.c, e.a));
  EXPECT_FALSE(plan.border.valid());
}

TEST(RatioOffload, NeedsASecondBufferOnlyForViewsOfTheFirst) {
  ChunkOffload border_only;
  border_only.bytes = 5;
  ChunkOffload whole = border_only;
  whole.bytes = 3;
  whole.whole = {StorageId(0)};
  EXPECT_THAT(reload_buffers({}), IsEmpty());
  EXPECT_THAT(reload_buffers({{}, {}}), IsEmpty());
  EXPECT_THAT(reload_buffers({border_only}), ElementsAre(5));
  EXPECT_THAT(reload_buffers({border_only, whole}), ElementsAre(5, 5));
}

}  // namespace
}  // namespace tidemark::ratio_offload_test
