// Programs made by hand: two stages of 1F1B with equal slots and free messages, a forward of 100 ns
// and a backward of 200 ns.
#include "planner/time_prediction.h"

#include <functional>
#include <initializer_list>

#include <gtest/gtest.h>

#include "hw_profiles/hardware_profile.h"
#include "planner/static_policies.h"
#include "sim/lane_engine.h"
#include "sim/simulation.h"
#include "tests/support/jobs.h"

namespace tidemark::time_prediction_test {
namespace {

constexpr std::int32_t kStages = 2;
constexpr std::int32_t kMicrobatches = 3;
constexpr std::int64_t kPlain = (kMicrobatches + kStages - 1) * (100 + 200);

void add(SlotProgram& slot, Stream stream, std::int64_t ns, std::int32_t action = -1,
         std::initializer_list<std::int32_t> deps = {}) {
  ProgramOp op;
  op.stream = stream;
  op.cost.fixed_ns = ns;
  op.action = action;
  op.dep_begin = static_cast<std::int32_t>(slot.deps.size());
  slot.deps.insert(slot.deps.end(), deps);
  op.dep_end = static_cast<std::int32_t>(slot.deps.size());
  slot.ops.push_back(op);
}

Program program_of(const SlotProgram& forward, const SlotProgram& backward) {
  Program p;
  p.schedule = build_1f1b(kStages, kMicrobatches);
  ChunkProgram chunk;
  chunk.forward = chunk.first_forward = forward;
  chunk.backward = chunk.last_backward = backward;
  p.stages.resize(kStages);
  for (StageProgram& stage : p.stages) {
    stage.chunks.push_back(chunk);
    for_each_slot_program(stage, [&](SlotProgram& slot) { prepare(slot, p.host_issue_ns); });
  }
  return p;
}

SlotProgram slot_of(std::initializer_list<std::int64_t> kernels) {
  SlotProgram slot;
  for (const std::int64_t ns : kernels) add(slot, Stream::kCompute, ns);
  return slot;
}

Program plain_program() { return program_of(slot_of({40, 60}), slot_of({120, 80})); }

// Predicted of `program`, whose only action `taken` says who takes.
std::int64_t predicted(const Program& program,
                       const std::function<bool(std::int32_t stage, std::int32_t mb)>& taken) {
  const LaneRows rows(two_stage_job());
  const Program plain = plain_program();
  UnitDecisions decisions;
  for (std::int32_t s = 0; s < kStages; ++s) {
    StageDecisions& stage = decisions.emplace_back(kMicrobatches, 1);
    for (std::int32_t mb = 0; mb < kMicrobatches; ++mb) stage.at(mb, 0) = taken(s, mb) ? 1 : 0;
  }
  return TimePrediction(plain, rows).iteration_ns(program, &decisions);
}

bool nobody(std::int32_t, std::int32_t) { return false; }
bool everybody(std::int32_t, std::int32_t) { return true; }

Program with_rerun(std::int64_t ns) {
  SlotProgram backward = slot_of({120});
  add(backward, Stream::kCompute, ns, 0);
  add(backward, Stream::kCompute, 80);
  return program_of(slot_of({40, 60}), backward);
}

TEST(TimePrediction, WithoutActionsIsThePlainRun) {
  const LaneRows rows(two_stage_job());
  const Program plain = plain_program();
  const TimePrediction prediction(plain, rows);
  EXPECT_EQ(prediction.plain_ns(), kPlain);
  EXPECT_EQ(prediction.iteration_ns(plain, nullptr), kPlain);
  EXPECT_EQ(predicted(with_rerun(50), nobody), kPlain);
}

// Every backward of the longest path: one a microbatch, and p - 1 while the pipeline drains.
TEST(TimePrediction, ARerunOfEveryMicrobatchCountsInSteadyStateAndDrain) {
  EXPECT_EQ(predicted(with_rerun(50), everybody), kPlain + (kMicrobatches + kStages - 1) * 50);
}

// The last stage is never idle between its first forward and its last backward.
TEST(TimePrediction, ARerunOnTheLastStageCountsOnce) {
  EXPECT_EQ(predicted(with_rerun(50), [](auto s, auto mb) { return s == 1 && mb == 1; }),
            kPlain + 50);
}

// Stage 0 waits a whole backward and more for the gradient of microbatch 0 after its last warm-up
// forward; a copy hides there. Of microbatch 0 the copy begins at 40 ns and ends 30 ns after the
// forward, which the next stage's first forward waits for.
TEST(TimePrediction, ACopyOutCostsWhatItIsLaterThanTheSlotWhereNothingElseWaits) {
  SlotProgram forward = slot_of({40, 60});
  add(forward, Stream::kDeviceToHost, 90, 0, {0});
  const Program program = program_of(forward, slot_of({120, 80}));
  EXPECT_EQ(predicted(program, [](auto s, auto mb) { return s == 0 && mb == 0; }), kPlain + 30);
  EXPECT_EQ(predicted(program, [](auto s, auto mb) { return s == 0 && mb == 1; }), kPlain);
}

// Two copies in of 100 ns queue from the beginning of a backward; the operator at 120 ns reads the
// second.
TEST(TimePrediction, CopiesInQueueAndDelayTheirReader) {
  SlotProgram backward;
  add(backward, Stream::kHostToDevice, 100, 0);
  add(backward, Stream::kHostToDevice, 100, 0);
  add(backward, Stream::kCompute, 120);
  add(backward, Stream::kCompute, 80, -1, {1});
  const Program program = program_of(slot_of({40, 60}), backward);
  EXPECT_EQ(predicted(program, everybody), kPlain + (kMicrobatches + kStages - 1) * 80);
}

// A collective of 70 ns beside a kernel of 50 ns exposes 20 ns before what reads it.
TEST(TimePrediction, ARerunsCollectiveCostsWhatNoKernelHides) {
  SlotProgram backward = slot_of({120});
  add(backward, Stream::kTensorComm, 70, 0, {0});
  add(backward, Stream::kCompute, 50, 0);
  add(backward, Stream::kCompute, 80, -1, {1});
  const Program program = program_of(slot_of({40, 60}), backward);
  EXPECT_EQ(predicted(program, everybody), kPlain + (kMicrobatches + kStages - 1) * 70);
}

// What slots take beyond their price is the engine's, so a plain run is predicted exactly.
TEST(TimePrediction, PlainRunsOfRealJobsAreTheEngines) {
  const HardwareProfile profile = load_hardware_profile("bw1000");
  for (const Job& given : {small_moe_job(4, 6), llama2_70b(), qwen3_32b()}) {
    const Job job = on_platform(static_policy(given, "keep-everything").job, profile);
    const LaneRows rows(job, balanced_routing(job));
    const Program plain = build_program(job, profile);
    const TimePrediction prediction(plain, rows);
    EXPECT_EQ(prediction.plain_ns(), run_units(plain, {&rows, 1}).iteration_ns) << job.name;
    EXPECT_EQ(prediction.iteration_ns(plain, nullptr), prediction.plain_ns()) << job.name;
  }
}

// Ratio offloading moves bytes in the memory model only; the engine times no copy of it.
TEST(TimePrediction, RatioOffloadTakesNoTime) {
  const HardwareProfile profile = load_hardware_profile("bw1000");
  Job job = on_platform(static_policy(llama2_70b(), "keep-everything").job, profile);
  const LaneRows rows(job, balanced_routing(job));
  const Program plain = build_program(job, profile);
  const TimePrediction prediction(plain, rows);
  job.options.offload_ratio = 0.5;
  EXPECT_EQ(prediction.iteration_ns(build_program(job, profile), nullptr), prediction.plain_ns());
}

}  // namespace
}  // namespace tidemark::time_prediction_test
