#include "planner/layer_times.h"

#include <gtest/gtest.h>

#include "tests/support/jobs.h"

namespace tidemark::layer_times_test {
namespace {

// An operator that takes `ns`, after the one before it on its stream and after operator `dep`.
void add(StageProgram& stage, SlotProgram& slot, std::vector<Operator>& list, std::int32_t layer,
         Stream stream, std::int64_t ns, std::int32_t dep = -1) {
  ProgramOp op;
  op.operator_index = static_cast<std::int32_t>(stage.graph.size());
  op.stream = stream;
  op.cost.fixed_ns = ns;
  op.dep_begin = static_cast<std::int32_t>(slot.deps.size());
  if (dep >= 0) slot.deps.push_back(dep);
  op.dep_end = static_cast<std::int32_t>(slot.deps.size());
  slot.ops.push_back(op);
  list.emplace_back().layer = layer;
}

TEST(LayerTimes, AddUpToTheSlotHoweverStreamsOverlap) {
  // Forward: 10 outside layers; layer 0 computes until 30 and exchanges until 45; layer 1 computes
  // from 30 to 60, so the slot is 15 longer for it. Backward: layer 1 until 50, layer 0 until 120.
  // An optional operator does not run.
  Program p;
  p.schedule = build_1f1b(1, 3);
  StageProgram& stage = p.stages.emplace_back();
  ChunkProgram chunk;
  std::vector<Operator>& forward = stage.graph.forward;
  add(stage, chunk.forward, forward, -1, Stream::kCompute, 10);
  add(stage, chunk.forward, forward, 0, Stream::kCompute, 20);
  add(stage, chunk.forward, forward, 0, Stream::kExpertComm, 15, 1);
  add(stage, chunk.forward, forward, 1, Stream::kCompute, 30);
  add(stage, chunk.forward, forward, 1, Stream::kCompute, 1000);
  chunk.forward.ops.back().action = 0;
  std::vector<Operator>& backward = stage.graph.backward;
  add(stage, chunk.backward, backward, 1, Stream::kCompute, 50);
  add(stage, chunk.backward, backward, 0, Stream::kCompute, 70);
  chunk.first_forward = chunk.forward;
  chunk.last_backward = chunk.backward;
  chunk.first_forward.ops[0].cost.fixed_ns = 5000;  // a gather and a reduction, which do not count
  chunk.last_backward.ops[0].cost.fixed_ns = 5000;
  stage.chunks.push_back(chunk);
  for_each_slot_program(stage, [&](SlotProgram& slot) { prepare(slot, p.host_issue_ns); });

  const LaneRows rows(two_stage_job());
  const auto times = layer_times(p, rows);
  ASSERT_EQ(times.size(), 1U);
  ASSERT_EQ(times[0].size(), 3U);
  EXPECT_EQ(times[0].at(-1).forward_ns, 10);
  EXPECT_EQ(times[0].at(0).forward_ns, 45 - 10);
  EXPECT_EQ(times[0].at(1).forward_ns, 60 - 45);
  EXPECT_EQ(times[0].at(-1).backward_ns, 0);
  EXPECT_EQ(times[0].at(1).backward_ns, 50);
  EXPECT_EQ(times[0].at(0).backward_ns, 70);
}

}  // namespace
}  // namespace tidemark::layer_times_test
