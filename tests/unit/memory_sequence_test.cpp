// Two stages, two microbatches, stages of one operator each way:
//
//   stage 0: forward writes a (kept) and out (sent); backward reads dout (received) and a
//   stage 1: forward reads in (received), writes a; backward reads a and in, writes din (sent)
#include "sim/memory_sequence.h"

#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/graphs.h"

namespace tidemark::memory_sequence_test {
namespace {

using testing::ElementsAre;

Operator op(std::vector<StorageId> reads, std::vector<StorageId> writes) {
  Operator out;
  out.name = "op";
  out.work = StreamingWork{};
  out.reads = std::move(reads);
  out.writes = std::move(writes);
  return out;
}

StorageId add(OperatorGraph& graph, std::string name, StorageRole role = StorageRole::kActivation) {
  graph.storages.push_back({std::move(name), {512, 0}, -1, role});
  return StorageId(std::ssize(graph.storages) - 1);
}

OperatorGraph first_stage() {
  OperatorGraph g;
  const StorageId a = add(g, "a");
  const StorageId out = add(g, "out");
  const StorageId dout = add(g, "dout");
  g.forward.push_back(op({}, {a, out}));
  g.backward.push_back(op({dout, a}, {}));
  Chunk& chunk = close_chunk(g);
  chunk.output = out;
  chunk.output_gradient = dout;
  return g;
}

OperatorGraph last_stage() {
  OperatorGraph g;
  const StorageId in = add(g, "in");
  const StorageId a = add(g, "a");
  const StorageId din = add(g, "din");
  g.forward.push_back(op({in}, {a}));
  g.backward.push_back(op({a, in}, {din}));
  Chunk& chunk = close_chunk(g);
  chunk.input = in;
  chunk.input_gradient = din;
  return g;
}

// "2+a1": in step 2 storage a of microbatch 1 is allocated ("-": freed; "p": previous iteration).
std::string text(const OperatorGraph& graph, const MemorySequence& sequence) {
  std::string out;
  for (const MemoryEvent& e : sequence.events) {
    if (!out.empty()) out += " ";
    out += std::to_string(e.step) + (e.allocates ? "+" : "-") +
           graph.storages[static_cast<std::size_t>(e.storage)].name +
           (e.microbatch == kPreviousIteration ? "p" : std::to_string(e.microbatch));
  }
  return out;
}

TEST(MemorySequence, OfTheFirstStageFreesOutputsWhenSentAndGradientsWhenReplaced) {
  // Steps: F0, send 0, F1, send 1 and receive 0, B0, receive 1, B1.
  const OperatorGraph g = first_stage();
  const MemorySequence s = build_memory_sequence(g, build_1f1b(2, 2), 0);
  EXPECT_EQ(text(g, s),
            "0+a0 0+out0 "
            "1-out0 "
            "2+a1 2+out1 "
            "3+dout0 3-out1 "
            "4-a0 "
            "5+dout1 5-dout0 "  // output_tensor_grad named the old one until then
            "6-a1 "
            "6-dout1");  // the schedule returns
  EXPECT_TRUE(s.carried_over.empty());
}

TEST(MemorySequence, OfTheLastStageKeepsTheLastInputAndItsGradient) {
  // Steps: receive 0, F0, B0, send 0 and receive 1, F1, B1, send 1.
  const OperatorGraph g = last_stage();
  const MemorySequence s = build_memory_sequence(g, build_1f1b(2, 2), 1);
  EXPECT_EQ(
      text(g, s),
      "0+in0 "
      "1-inp 1-dinp "  // decoder.input_tensor names the new input; the old had its gradient
      "1+a0 "
      "2+din0 2-a0 "
      "3+in1 "  // in0 is still named by decoder.input_tensor and by the graph of output_tensor
      "4+a1 "
      "4-in0 "  // output_tensor is now that of microbatch 1
      "5+din1 5-a1 "
      "5-din0");  // input_tensor_grad named it; the last ones stay
  EXPECT_THAT(s.carried_over, ElementsAre(g.chunks[0].input, g.chunks[0].input_gradient));
}

TEST(MemorySequence, OfOneStageFollowsTheGraphAlone) {
  OperatorGraph g;
  const StorageId a = add(g, "a");
  g.forward.push_back(op({}, {a}));
  g.backward.push_back(op({a}, {}));
  close_chunk(g);
  EXPECT_EQ(text(g, build_memory_sequence(g, build_1f1b(1, 2), 0)), "0+a0 1-a0 2+a1 3-a1");
}

TEST(MemorySequence, KeepsAModulesAttributeUntilItsNextForward) {
  OperatorGraph g;
  const StorageId map = add(g, "map", StorageRole::kModuleState);
  g.forward.push_back(op({}, {map}));
  g.backward.push_back(op({map}, {}));
  close_chunk(g);
  const MemorySequence s = build_memory_sequence(g, build_1f1b(1, 2), 0);
  EXPECT_EQ(text(g, s), "0+map0 0-mapp 2+map1 2-map0");
  EXPECT_THAT(s.carried_over, ElementsAre(map));
}

TEST(MemorySequence, InTheCooldownOldInputsGoBeforeTheNextGradientComes) {
  // Megatron pops input_tensors and output_tensors, then receives: stage 1 of three, one microbatch
  // in warm-up. Steps: receive 0, F0, send 0, receive 1, F1, send 1 and receive 0, B0, send 0,
  // receive 1 (here), B1, send 1.
  OperatorGraph g = last_stage();
  g.chunks[0].output = add(g, "out");
  g.chunks[0].output_gradient = add(g, "dout");
  g.forward[0].writes.push_back(g.chunks[0].output);
  g.backward[0].reads.push_back(g.chunks[0].output_gradient);
  EXPECT_EQ(text(g, build_memory_sequence(g, build_1f1b(3, 2), 1)),
            "0+in0 "
            "1-inp 1-dinp 1+a0 1+out0 "
            "2-out0 "
            "3+in1 "
            "4+a1 4+out1 "
            "5+dout0 5-out1 "
            "6+din0 6-a0 "
            "8-in0 8+dout1 8-dout0 "
            "9+din1 9-a1 9-din0 "
            "10-dout1");
}

TEST(MemorySequence, FreesAHeldStorageWithItsHolder) {
  OperatorGraph g;
  const StorageId a = add(g, "a");
  const StorageId b = add(g, "b");
  g.forward.push_back(op({}, {a}));
  g.forward.push_back(op({a}, {b}));
  g.forward.push_back(op({b}, {}));
  g.forward.back().holds = {a};
  close_chunk(g);
  const MemorySequence s = build_memory_sequence(g, build_1f1b(1, 1), 0);
  EXPECT_EQ(text(g, s), "0+a0 0+b0 0-a0 0-b0");
  EXPECT_EQ(s.events[2].op, 2);  // not 1, where it was last read
}

// A recomputed forward writes the module's attribute anew.
TEST(MemorySequence, ARecomputedAttributeTakesThePlaceOfTheFirst) {
  OperatorGraph g;
  const StorageId map = add(g, "map", StorageRole::kModuleState);
  const StorageId again = add(g, "map", StorageRole::kModuleState);
  g.forward.push_back(op({}, {map}));
  g.backward.push_back(op({}, {again}));
  close_chunk(g);
  const MemorySequence s = build_memory_sequence(g, build_1f1b(1, 2), 0);
  EXPECT_EQ(text(g, s), "0+map0 0-mapp 1+map0 1-map0 2+map1 2-map0 3+map1 3-map1");
  EXPECT_THAT(s.carried_over, ElementsAre(again));
}

// Two chunks of the first of two stages, each with an operator each way; a of 4 MiB is kept.
OperatorGraph two_chunks() {
  OperatorGraph g;
  for (int c = 0; c < 2; ++c) {
    Chunk& chunk = g.chunks.emplace_back();
    const StorageId a = add(g, "a");
    g.storages[a.index()].bytes.fixed = 4 << 20;
    chunk.output = add(g, "out");
    chunk.output_gradient = add(g, "dout");
    if (c == 1) {
      chunk.input = add(g, "in");
      chunk.input_gradient = add(g, "din");
    }
    g.forward.push_back(op({}, {a, chunk.output}));
    g.backward.push_back(op({chunk.output_gradient, a}, {}));
    if (c == 1) {
      g.forward.back().reads = {chunk.input};
      g.backward.back().writes = {chunk.input_gradient};
    }
    chunk.forward = chunk.backward = {c, c + 1};
  }
  return g;
}

// "F2+a": a storage of the chunk's microbatch is allocated ("-": freed) in or before the third
// forward; "B": backward. What crosses the stage's borders is left out.
std::string text_of(const OperatorGraph& graph, const Schedule& schedule,
                    const std::vector<ChunkOffload>& offload, ChunkTensor tensor) {
  const ChunkOffload& chunk = offload[static_cast<std::size_t>(tensor.chunk)];
  const StorageId a = graph.forward[static_cast<std::size_t>(tensor.chunk)].writes[0];
  std::string out;
  for (const MemoryEvent& e : build_memory_sequence(graph, schedule, 0, offload).events) {
    const StorageId s(e.storage);
    const bool of_chunk = s == a || s == chunk.remainder || s == chunk.reloaded_border;
    if (e.microbatch != tensor.microbatch || !of_chunk) continue;
    int forwards = 0;
    int backwards = 0;
    for (std::int32_t step = 0; step < e.step; ++step) {
      const Slot* slot = std::get_if<Slot>(&schedule.stages[0][static_cast<std::size_t>(step)]);
      if (slot != nullptr) ++(slot->kind == SlotKind::kForward ? forwards : backwards);
    }
    const Slot& slot = std::get<Slot>(schedule.stages[0][static_cast<std::size_t>(e.step)]);
    if (!out.empty()) out += " ";
    out += slot.kind == SlotKind::kForward ? "F" + std::to_string(forwards)
                                           : "B" + std::to_string(backwards);
    out += (e.allocates ? "+" : "-") + graph.storages[s.index()].name;
  }
  return out;
}

Schedule stand_in_schedule(std::int32_t microbatches) {
  Schedule schedule = build_interleaved_1f1b(2, microbatches, {2, 2, true});
  schedule.lists_stand_ins = true;
  return schedule;
}

std::vector<ChunkOffload> offload_of_both(OperatorGraph& g, double ratio) {
  return {plan_ratio_offload(g, 0, ratio), plan_ratio_offload(g, 1, ratio)};
}

// Forwards: chunk 0 of microbatches 0 and 1, chunk 1 of both, then microbatches 2 and 3. Warm-up: 2
// (PP - 1) + PP = 4 of them. Backwards begin with chunk 1: microbatch 0 of chunk 0 has the third.
TEST(MemorySequence, FreesWhatIsOffloadedWhenTheNextCopyBegins) {
  OperatorGraph g = two_chunks();
  const std::vector<ChunkOffload> all = offload_of_both(g, 1);
  // Comes back as a part of a buffer that is no storage.
  EXPECT_EQ(text_of(g, stand_in_schedule(4), all, {0, 0}), "F0+a F2-a");
  // The sixth forward, of the steady phase: copied beside its step's backward, the second.
  EXPECT_EQ(text_of(g, stand_in_schedule(4), all, {0, 3}), "F5+a B2-a");
}

TEST(MemorySequence, KeepsTheRemainderOfABorderStorageUntilItIsReloaded) {
  OperatorGraph g = two_chunks();
  const std::vector<ChunkOffload> half = offload_of_both(g, 0.5);
  EXPECT_EQ(text_of(g, stand_in_schedule(4), half, {0, 0}),
            "F0+a F1+offload.remainder F2-a "
            "B2+offload.reloaded_border B2-offload.remainder B2-offload.reloaded_border");
}

TEST(MemorySequence, OffloadsTheLastForwardOfAScheduleOfWarmUpOnly) {
  OperatorGraph g = two_chunks();
  const std::vector<ChunkOffload> half = offload_of_both(g, 0.5);
  EXPECT_EQ(text_of(g, stand_in_schedule(2), half, {1, 1}),
            "F3+a B0+offload.remainder B0-a "
            "B1+offload.reloaded_border B1-offload.remainder B1-offload.reloaded_border");
}

TEST(MemorySequence, FreesAReceivedInputWhenItIsOffloadedOrByItsBackward) {
  // Storage 6 is chunk 1's input: of 4 MiB it is offloaded, of 512 bytes kept.
  for (const std::int64_t bytes : {std::int64_t{4} << 20, std::int64_t{512}}) {
    OperatorGraph g = two_chunks();
    g.storages[6].bytes.fixed = bytes;
    g.backward[1].reads.push_back(StorageId(6));
    const Schedule schedule = stand_in_schedule(4);
    const std::vector<ChunkOffload> all = offload_of_both(g, 1);
    int frees = 0;
    for (const MemoryEvent& e : build_memory_sequence(g, schedule, 0, all).events) {
      if (e.storage != 6 || e.microbatch != 0 || e.allocates) continue;
      ++frees;
      const Step& step = schedule.stages[0][static_cast<std::size_t>(e.step)];
      EXPECT_EQ(std::get<Slot>(step).kind, bytes > 512 ? SlotKind::kForward : SlotKind::kBackward);
    }
    EXPECT_EQ(frees, 1);
  }
}

}  // namespace
}  // namespace tidemark::memory_sequence_test
