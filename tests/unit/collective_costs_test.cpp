#include "hw_profiles/collective_costs.h"

#include <array>
#include <cmath>

#include <gtest/gtest.h>

namespace tidemark::collective_costs_test {
namespace {

constexpr std::array kOps = {Collective::kAllGather, Collective::kReduceScatter,
                             Collective::kAllReduce, Collective::kAllToAll,
                             Collective::kSendReceive};
constexpr double kMiB1 = 1 << 20;
constexpr double kGiB1 = 1 << 30;

const CollectiveCosts& costs() {
  static const CollectiveCosts costs(load_hardware_profile("bw1000"));
  return costs;
}

TEST(GroupShape, FollowsStrideAndNodeSize) {
  const auto on_node = [](std::int64_t size, std::int64_t stride) {
    return group_shape(size, stride, 8).ranks_per_node;
  };
  EXPECT_EQ(on_node(4, 1), 4);   // tensor parallel: four neighbours
  EXPECT_EQ(on_node(64, 1), 8);  // expert parallel: eight whole nodes
  EXPECT_EQ(on_node(16, 4), 2);  // data parallel beside TP 4
  EXPECT_EQ(on_node(32, 8), 1);
  EXPECT_EQ(on_node(2, 128), 1);  // pipeline neighbours
  EXPECT_EQ(group_shape(64, 1, 8).nodes(), 8);
}

TEST(BusFactor, IsTheShareThatCrossesARanksLinks) {
  EXPECT_DOUBLE_EQ(bus_factor(Collective::kAllGather, 4), 0.75);
  EXPECT_DOUBLE_EQ(bus_factor(Collective::kAllReduce, 4), 1.5);
  EXPECT_DOUBLE_EQ(bus_factor(Collective::kSendReceive, 2), 1);
}

TEST(CollectiveCosts, ReproducesARow) {
  // all_gather, one node, 4 ranks, 32 MiB: 99.37 GB/s.
  const Cost cost = costs().time(Collective::kAllGather, 32 * kMiB1, {4, 4});
  EXPECT_DOUBLE_EQ(cost.seconds, 32 * kMiB1 * 0.75 / 99.37e9);
  EXPECT_EQ(cost.kind, CostKind::kMeasured);
}

TEST(CollectiveCosts, InterpolatesTimeBetweenSizes) {
  const double low = costs().time(Collective::kAllGather, 32 * kMiB1, {4, 4}).seconds;
  const double high = costs().time(Collective::kAllGather, 64 * kMiB1, {4, 4}).seconds;
  const Cost middle = costs().time(Collective::kAllGather, 48 * kMiB1, {4, 4});
  EXPECT_DOUBLE_EQ(middle.seconds, (low + high) / 2);
  EXPECT_EQ(middle.kind, CostKind::kInterpolated);
}

TEST(CollectiveCosts, InterpolatesTimeBetweenRanks) {
  const double four = costs().time(Collective::kAllGather, kMiB1, {4, 4}).seconds;
  const double six = costs().time(Collective::kAllGather, kMiB1, {6, 6}).seconds;
  const double eight = costs().time(Collective::kAllGather, kMiB1, {8, 8}).seconds;
  EXPECT_DOUBLE_EQ(six, (four + eight) / 2);
}

TEST(CollectiveCosts, KeepsTheLatencyOfTheSmallestSizeAndTheBandwidthOfTheLargest) {
  EXPECT_DOUBLE_EQ(costs().time(Collective::kAllReduce, 8, {8, 8}).seconds,
                   costs().time(Collective::kAllReduce, 1024, {8, 8}).seconds);
  EXPECT_DOUBLE_EQ(costs().time(Collective::kAllReduce, 4 * kGiB1, {8, 8}).seconds,
                   4 * costs().time(Collective::kAllReduce, kGiB1, {8, 8}).seconds);
}

TEST(CollectiveCosts, RepairsADisturbedRow) {
  // all_to_all, one node, 2 ranks: 81.86, 44.76, 102.54 GB/s at 64, 128, 256 MiB. At 44.76 GB/s
  // 128 MiB would take longer than 256 MiB did.
  EXPECT_DOUBLE_EQ(costs().time(Collective::kAllToAll, 128 * kMiB1, {2, 2}).seconds,
                   256 * kMiB1 * 0.5 / 102.54e9);
}

TEST(CollectiveCosts, TimeNeverFallsWithSize) {
  for (const Collective op : kOps) {
    for (const GroupShape group :
         {GroupShape{2, 2}, GroupShape{2, 1}, GroupShape{4, 4}, GroupShape{8, 8}, GroupShape{16, 8},
          GroupShape{64, 8}, GroupShape{32, 1}, GroupShape{8, 2}}) {
      if (op == Collective::kSendReceive && group.ranks != 2) continue;
      double before = 0;
      for (double bytes = 1000; bytes < 4e9; bytes *= 1.1) {
        const double now = costs().time(op, bytes, group).seconds;
        EXPECT_GE(now, before) << bytes << " bytes on " << group.ranks << " ranks";
        before = now;
      }
    }
  }
}

TEST(CollectiveCosts, ARingOverMoreNodesCountsItsSteps) {
  // Same chunk of 1/n of the buffer, 63 steps instead of 15.
  const double two_nodes = costs().time(Collective::kAllGather, 16 * kMiB1, {16, 8}).seconds;
  const double eight_nodes = costs().time(Collective::kAllGather, 64 * kMiB1, {64, 8}).seconds;
  EXPECT_DOUBLE_EQ(eight_nodes, two_nodes * 63 / 15);
  // Large buffers keep the bus bandwidth: 122.76 GB/s at 1 GiB.
  EXPECT_NEAR(costs().time(Collective::kAllGather, 4 * kGiB1, {64, 8}).seconds,
              4 * kGiB1 * 63 / 64 / 122.76e9, 1e-12);
}

TEST(CollectiveCosts, AllToAllOverMoreNodesIsBoundByWhatLeavesTheNode) {
  // DeepSeek-V3's dispatch: 64 ranks on 8 nodes. The same bytes to each peer on 16 ranks run at
  // 26.8 GB/s of bus bandwidth, of which 8 of 15 leave the node.
  const double bytes = 64 * kMiB1;
  const double rate = 26.78e9 * 8 / 15;
  EXPECT_NEAR(costs().time(Collective::kAllToAll, bytes, {64, 8}).seconds, bytes * 56 / 64 / rate,
              1e-9);
}

TEST(CollectiveCosts, GroupsOfOneNodeShareItsNetwork) {
  // 32 data-parallel ranks, one a node, seven sibling groups: 1/8 of 123.6 GB/s each, although one
  // pair alone reaches 17.8.
  EXPECT_NEAR(costs().time(Collective::kAllGather, kGiB1, {32, 1}).seconds,
              kGiB1 * 31 / 32 / (123.6e9 / 8), 1e-9);
  EXPECT_NEAR(costs().time(Collective::kSendReceive, 64 * kMiB1, {2, 1}).seconds,
              64 * kMiB1 / (123.6e9 / 8), 1e-9);
}

TEST(CollectiveCosts, NothingToDoTakesNoTime) {
  for (const Collective op : kOps) {
    EXPECT_EQ(costs().time(op, 1e6, {1, 1}).seconds, 0);
    EXPECT_EQ(costs().time(op, 0, {8, 8}).seconds, 0);
  }
}

TEST(CollectiveCosts, WithoutATableLatencyAndBandwidthAreAssumed) {
  const HardwareProfile h20 = load_hardware_profile("h20");
  const CollectiveCosts modelled(h20);
  const double inside = h20.fabric->intra_node_gb_per_s.value * 1e9;
  const double between = h20.fabric->inter_node_gb_per_s.value * 1e9;
  const double step = h20.fabric->intra_node_latency_us.value * 1e-6;
  const double far_step = h20.fabric->inter_node_latency_us.value * 1e-6;
  const Cost gather = modelled.time(Collective::kAllGather, kGiB1, {8, 8});
  EXPECT_DOUBLE_EQ(gather.seconds, 7 * step + kGiB1 * 7 / 8 / inside);
  EXPECT_EQ(gather.kind, CostKind::kAssumed);
  // Two ranks a node: the ring leaves the node through two ports.
  EXPECT_DOUBLE_EQ(modelled.time(Collective::kAllGather, kGiB1, {8, 2}).seconds,
                   7 * far_step + kGiB1 * 7 / 8 / 2 / between);
  EXPECT_DOUBLE_EQ(modelled.time(Collective::kAllToAll, kGiB1, {64, 8}).seconds,
                   63 * far_step + kGiB1 * 56 / 64 / between);
}

}  // namespace
}  // namespace tidemark::collective_costs_test
