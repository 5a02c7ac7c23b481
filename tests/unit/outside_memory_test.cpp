#include "sim/outside_memory.h"

#include <cstdint>
#include <map>
#include <string>

#include <gtest/gtest.h>

#include "models/job_reader.h"
#include "tests/support/jobs.h"

namespace tidemark::outside_memory_test {
namespace {

// Two ends of a connection: 2 MiB where it sends from, 10 MiB where it receives, 10 MiB each
// between nodes.
constexpr std::int64_t kPairInNode = 2 + 10;
constexpr std::int64_t kPairOffNode = 10 + 10;

CommunicatorChannels channels(double in_node, double per_card) {
  const auto number = [](double value) {
    return SourcedNumber{value, NumberKind::kAssumed, "of the test"};
  };
  return {number(in_node), number(per_card)};
}

Bytes collectives(std::int64_t ranks, std::int64_t on_node, const CommunicatorChannels& c) {
  return communicator_memory({"", {ranks, on_node}}, c);
}

// The buffers' sizes, from the constants of NCCL's src/include/device.h.
TEST(CommunicatorMemory, ConnectionsAreTheProtocolsBuffersInPiecesOf2MiB) {
  const std::int64_t ll = 8 * 512 * 8 * 16;      // lines a thread, threads, steps, bytes
  const std::int64_t ll128 = 120 * 640 * 8 * 8;  // elements a thread, threads, steps, bytes
  const std::int64_t simple = 4 << 20;
  EXPECT_EQ(round_up(4096 + ll + ll128 + simple, 2 << 20), 10 << 20);
  EXPECT_EQ(round_up(4096, 2 << 20), 2 << 20);
  EXPECT_EQ(round_up(ll128 + simple, 2 << 20), 10 << 20);
}

// NVIDIA/nccl issue 964: four A100, all-reduces of each group of ranks.
TEST(CommunicatorMemory, IsWhatAnA100WasMeasuredToTake) {
  const CommunicatorChannels a100 = *load_hardware_profile("a100").communicator_channels;
  EXPECT_EQ(collectives(2, 2, a100), 544 * kMiB);
  // Measured is the rank at the end of the tree's chain, which lacks one connection of 6 MiB (an
  // A100 reads from its peer, so that both ends take 6) in each of 24 channels.
  EXPECT_EQ(collectives(4, 4, a100), (688 + 24 * 6) * kMiB);
}

TEST(CommunicatorMemory, BetweenNodesHasRingsAndTreesThroughEachCardsPort) {
  // Eight cards a node: 16 channels, 14 of them in the node, each with ring and tree both ways.
  // Through the port's two channels: two rings, and two trees that are inner (parent and two
  // children) in one and a leaf (parent) in the other.
  // Pool: 16 steps of 16 chunks of 128 KiB.
  EXPECT_EQ(collectives(256, 8, channels(16, 2)),
            (2 * 14 * kPairInNode + 2 * 3 * kPairOffNode + 32) * kMiB);
  // Two nodes have one other end for the trees.
  EXPECT_EQ(collectives(16, 8, channels(16, 2)),
            (2 * 14 * kPairInNode + 2 * 2 * kPairOffNode + 32) * kMiB);
  // One card a node: nothing in it. Two channels: 4 MiB.
  EXPECT_EQ(collectives(8, 1, channels(16, 2)), (2 * 3 * kPairOffNode + 4) * kMiB);
}

TEST(CommunicatorMemory, OfTransfersBetweenNodesHasASecondPool) {
  const Communicator pair{"", {2, 1}, 0, true};
  EXPECT_EQ(communicator_memory(pair, channels(16, 2)), (2 * kPairOffNode + 2 * 4) * kMiB);
}

TEST(CommunicatorMemory, OfAllToAllConnectsEveryPeerOnTheNode) {
  // 24 channels make 32 for single ranks: with each of 7 peers. Pool: 16 steps of 32 chunks of 512
  // KiB.
  const Communicator on_node{"", {8, 8}, 7, false};
  EXPECT_EQ(communicator_memory(on_node, channels(24, 2)),
            (2 * 24 * kPairInNode + 7 * 32 * kPairInNode + 256) * kMiB);
  // Over two nodes two channels a peer, and both pools of 16 channels.
  const Communicator over_nodes{"", {16, 8}, 7, true};
  EXPECT_EQ(communicator_memory(over_nodes, channels(24, 2)) - collectives(16, 8, channels(24, 2)),
            (7 * 2 * kPairInNode + 32) * kMiB);
}

TEST(CommunicatorMemory, IsThatOfTheChannelsAskedFor) {
  // Four channels of one pair each, a pool of 16 steps of four chunks of 512 KiB.
  const Communicator few{"", {2, 2}, 0, false, 4};
  EXPECT_EQ(communicator_memory(few, channels(16, 2)), (4 * kPairInNode + 32) * kMiB);
}

std::map<std::string, Communicator> by_name(const Job& job) {
  std::map<std::string, Communicator> out;
  for (const Communicator& c : communicators(job, 8)) out.emplace(c.name, c);
  return out;
}

TEST(Communicators, AreThoseOfTheLayoutWithMoreThanOneRank) {
  // TP4, PP8, DP32, EP64, ETP1 on 1,024 cards, 128 of each stage.
  const auto of = by_name(deepseek_v3_1024());
  EXPECT_EQ(of.size(), 6U);
  EXPECT_EQ(of.at("world").shape.ranks, 1024);
  EXPECT_EQ(of.at("tensor parallel").shape.ranks_per_node, 4);
  EXPECT_EQ(of.at("data parallel").shape.ranks, 32);
  EXPECT_EQ(of.at("data parallel").shape.ranks_per_node, 2);
  EXPECT_EQ(of.at("expert parallel").shape.ranks, 64);
  EXPECT_EQ(of.at("expert parallel").peers_on_node, 7);
  EXPECT_TRUE(of.at("expert parallel").peers_on_other_nodes);
  EXPECT_EQ(of.at("expert data parallel").shape.ranks, 2);
  EXPECT_EQ(of.at("expert data parallel").shape.ranks_per_node, 1);
  EXPECT_EQ(of.at("pipeline parallel").shape.ranks, 8);
  EXPECT_EQ(of.at("pipeline parallel").peers_on_node, 0);
  EXPECT_TRUE(of.at("pipeline parallel").peers_on_other_nodes);
}

TEST(Communicators, OfVirtualStagesArePairs) {
  Job job = deepseek_v3_1024();
  job.layout.virtual_pipeline = 2;
  const auto of = by_name(job);
  EXPECT_EQ(of.count("pipeline parallel"), 0U);
  EXPECT_EQ(of.at("next stage").shape.ranks, 2);
  EXPECT_EQ(of.at("previous stage").shape.ranks, 2);
}

TEST(OutsideMemory, OfAProfileWithoutChannelsIsTheContext) {
  const HardwareProfile bw1000 = load_hardware_profile("bw1000");
  ASSERT_FALSE(bw1000.communicator_channels);
  const std::vector<OutsideItem> items = outside_memory(deepseek_v3_1024(), bw1000);
  ASSERT_EQ(items.size(), 1U);
  EXPECT_EQ(items[0].bytes.value, static_cast<std::int64_t>(0.52 * (1 << 30)));
}

// Figure 7's job: TP2, CP2, PP8 with virtual stages, DP8 on H800; 4,096 tokens of width 8,192 a
// rank.
TEST(OutsideMemory, OfKwaisForkHasUserBuffersAndASecondContextParallelCommunicator) {
  const Job job = read_job(std::string(TIDEMARK_SOURCE_DIR) + "/validation/kwai_atc24/job.json");
  std::map<std::string, Bytes> of;
  for (const OutsideItem& item : outside_memory(job, load_hardware_profile("h800"))) {
    of[item.name] = item.bytes;
  }
  EXPECT_EQ(of.at("user buffers"), Bytes(2 * 2 * 4096 * 8192));
  EXPECT_EQ(of.at("communicator: tensor parallel"), (16 * kPairInNode + 128) * kMiB);
  EXPECT_EQ(of.at("communicator: context parallel"), (16 * kPairInNode + 128) * kMiB);
  EXPECT_EQ(of.at("communicator: context parallel, few channels"), (4 * kPairInNode + 32) * kMiB);
  // 16 ranks, four on each of four nodes: eight channels, two through each card's port.
  EXPECT_EQ(of.at("communicator: data parallel"),
            (2 * 6 * kPairInNode + 2 * 3 * kPairOffNode + 16) * kMiB);
}

}  // namespace
}  // namespace tidemark::outside_memory_test
