// One stage by hand: layer l reads what layer l - 1 wrote and writes 64 MiB of its own; its
// backward reads both. Every tensor has a segment to itself, and those of two layers must be there
// at once.
#include "sim/rescue_swap.h"

#include <gtest/gtest.h>

#include "sim/card_memory.h"
#include "sim/program.h"
#include "tests/support/jobs.h"

namespace tidemark::rescue_swap_test {
namespace {

constexpr std::int32_t kLayers = 4;
constexpr Bytes kTensor = 64 * kMiB;

OperatorGraph chain_of_layers() {
  OperatorGraph graph;
  for (std::int32_t l = 0; l < kLayers; ++l) {
    graph.storages.push_back({"x" + std::to_string(l), {kTensor.value, 0}, l});
    Operator op;
    op.name = "layer";
    op.layer = l;
    op.work = StreamingWork{};
    if (l > 0) op.reads = {StorageId(l - 1)};
    op.writes = {StorageId(l)};
    graph.forward.push_back(op);
    op.reads.push_back(StorageId(l));
    op.writes = {};
    graph.backward.insert(graph.backward.begin(), op);
  }
  Chunk chunk;
  chunk.forward = {0, kLayers};
  chunk.backward = {0, kLayers};
  chunk.weight = {kLayers, kLayers};
  graph.chunks.push_back(chunk);
  return graph;
}

// Two microbatches, one after the other.
CardReplay replay(Bytes limit) {
  Job job = two_stage_job();
  job.layout.pipeline = 1;
  job.layout.cards /= 2;
  const OperatorGraph graph = chain_of_layers();
  const Schedule schedule = build_1f1b(1, 2);
  const MemorySequence sequence = build_memory_sequence(graph, schedule, 0);
  const LaneRows rows(job);
  Card card{job, 0, graph, schedule.stages[0], sequence, {}, rows};
  card.rescues = true;
  return replay_card(card, limit);
}

TEST(RescueSwap, SwapsTheOldestOfLayersThatTheForwardHasLeft) {
  const OperatorGraph graph = chain_of_layers();
  RescueSwap rescue(graph, 1);
  const auto size = [](const RescueSwap::Tensor&) { return kTensor.value; };
  const auto swapped = [&](Bytes requested) {
    std::vector<std::int32_t> out;
    for (const RescueSwap::Tensor& t : rescue.swap_out(requested.value, size)) {
      out.push_back(t.storage.value);
    }
    return out;
  };
  using Storages = std::vector<std::int32_t>;
  EXPECT_EQ(swapped(kTensor), Storages());
  for (std::int32_t l = 0; l < kLayers; ++l) EXPECT_TRUE(rescue.issue(l, 0).empty());
  // The last layer is the one that the forward is in; it has read x2.
  EXPECT_EQ(swapped(Bytes(1)), Storages{0});
  EXPECT_EQ(swapped(2 * kTensor), Storages{1}) << "there is no more";
  // Backwards of layers 3 and 2: the latter reads x1, and it stays.
  EXPECT_TRUE(rescue.issue(kLayers, 0).empty());
  EXPECT_EQ(rescue.issue(kLayers + 1, 0), std::vector<StorageId>{StorageId(1)});
  EXPECT_EQ(swapped(kTensor), Storages());
}

TEST(RescueSwap, LeavesWhatIsSmallOrFreed) {
  const OperatorGraph graph = chain_of_layers();
  RescueSwap rescue(graph, 1);
  for (std::int32_t l = 0; l < kLayers; ++l) rescue.issue(l, 0);
  rescue.freed(StorageId(0), 0);
  const auto out = [&](std::int64_t size) {
    return rescue.swap_out(1, [=](const RescueSwap::Tensor&) { return size; });
  };
  EXPECT_TRUE(out(RescueSwap::kLeastBytes - 1).empty());
  ASSERT_EQ(out(RescueSwap::kLeastBytes).size(), 1U);
  EXPECT_TRUE(out(RescueSwap::kLeastBytes).empty());
}

TEST(RescueSwap, ACardSwapsAsManyTensorsAsItLacks) {
  const Bytes beside = replay(CachingAllocator::kNoLimit).memory.reserved - kLayers * kTensor;
  for (std::int64_t room = 2; room <= kLayers; ++room) {
    const CardReplay r = replay(beside + room * kTensor);
    EXPECT_FALSE(r.out_of_memory) << room;
    EXPECT_EQ(r.swapped, 2 * (kLayers - room) * kTensor) << "of two microbatches, " << room;
    EXPECT_LE(r.memory.reserved, beside + room * kTensor);
  }
  EXPECT_TRUE(replay(beside + kTensor).out_of_memory) << "a layer needs two at once";
}

TEST(RescueSwap, TheCardStandsStillForBothCopies) {
  EXPECT_EQ(rescue_swap_ns(Bytes(), 1e9, 1e9), 0);
  EXPECT_EQ(rescue_swap_ns(Bytes(4000), 4e9, 2e9), 1000 + 2000);
}

}  // namespace
}  // namespace tidemark::rescue_swap_test
