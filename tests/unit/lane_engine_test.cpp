// Programs made by hand: one stage of a few lanes, one forward slot, unless said otherwise.
#include "sim/lane_engine.h"

#include <algorithm>
#include <initializer_list>
#include <stdexcept>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/jobs.h"

namespace tidemark::lane_engine_test {
namespace {

using testing::ElementsAre;

ProgramOp op(Stream stream, std::int64_t ns) {
  ProgramOp out;
  out.stream = stream;
  out.cost.fixed_ns = ns;
  return out;
}

// An operator that takes one ns a row.
ProgramOp routed(Stream stream, Group group = Group::kNone) {
  ProgramOp out = op(stream, 0);
  out.moe_layer = 0;
  out.cost.per_row_q20 = 1 << 20;
  out.group = group;
  return out;
}

void add(SlotProgram& slot, ProgramOp op, std::initializer_list<std::int32_t> deps = {}) {
  op.dep_begin = static_cast<std::int32_t>(slot.deps.size());
  slot.deps.insert(slot.deps.end(), deps);
  op.dep_end = static_cast<std::int32_t>(slot.deps.size());
  slot.ops.push_back(op);
}

// The slot as forward of the only microbatch, followed by an empty backward.
Program one_slot(const SlotProgram& slot, std::int64_t lanes) {
  Program p;
  p.lanes = lanes;
  p.schedule = build_1f1b(1, 1);
  p.stages.resize(1);
  p.stages[0].chunks.resize(1);
  p.stages[0].chunks[0].first_forward = slot;
  prepare(p.stages[0].chunks[0].first_forward, p.host_issue_ns);
  return p;
}

// rows[lane] of the only MoE layer in the only microbatch.
LaneRows rows_of(std::vector<std::int64_t> rows) {
  Job job = two_stage_job();
  job.layout.pipeline = 1;
  job.layout.cards = job.layout.expert = std::ssize(rows);
  RoutingCounts counts;
  counts.microbatches = counts.moe_layers = 1;
  counts.experts = std::ssize(rows);
  counts.counts.assign(rows.begin(), rows.end());
  return LaneRows(job, counts);
}

IterationTimes run_alone(const Program& program, std::vector<std::int64_t> rows,
                         Recorder* recorder = nullptr) {
  const LaneRows unit = rows_of(std::move(rows));
  return run_units(program, {&unit, 1}, {&recorder, 1});
}

// Starts and ends of the operators, [operator][lane], in the order they were seen.
class Trace : public Recorder {
 public:
  void on_operator(std::int32_t, std::int32_t, std::int32_t, const SlotProgram&,
                   std::span<const std::int64_t> s, std::span<const std::int64_t> e) override {
    start.emplace_back(s.begin(), s.end());
    end.emplace_back(e.begin(), e.end());
  }
  void on_transfer(std::int32_t stage, std::int32_t, std::span<const std::int64_t> s,
                   std::span<const std::int64_t> e) override {
    transfers.push_back({stage, s[0], e[0]});
  }
  struct Moved {
    std::int32_t stage;
    std::int64_t start;
    std::int64_t end;
    friend bool operator==(const Moved&, const Moved&) = default;
  };
  std::vector<std::vector<std::int64_t>> start;
  std::vector<std::vector<std::int64_t>> end;
  std::vector<Moved> transfers;
};

Trace run(const Program& program, const LaneRows& rows) {
  Trace trace;
  Recorder* const recorders[] = {&trace};
  run_units(program, {&rows, 1}, recorders);
  return trace;
}

TEST(RunUnit, AStreamRunsOneOperatorAfterTheOther) {
  SlotProgram slot;
  add(slot, op(Stream::kCompute, 10));
  add(slot, op(Stream::kCompute, 5));
  EXPECT_THAT(run(one_slot(slot, 1), rows_of({0})).start,
              ElementsAre(ElementsAre(0), ElementsAre(10)));
}

TEST(RunUnit, StreamsRunSideBySideButForDependencies) {
  SlotProgram slot;
  add(slot, op(Stream::kCompute, 10));
  add(slot, op(Stream::kTensorComm, 20));
  add(slot, op(Stream::kCompute, 1), {1});
  add(slot, op(Stream::kTensorComm, 1), {0});
  const Trace t = run(one_slot(slot, 1), rows_of({0}));
  EXPECT_THAT(t.start,
              ElementsAre(ElementsAre(0), ElementsAre(0), ElementsAre(20), ElementsAre(20)));
}

TEST(RunUnit, AnOperatorStartsWhenTheHostHasIssuedIt) {
  SlotProgram slot;
  for (int i = 0; i < 3; ++i) add(slot, op(Stream::kCompute, i == 1 ? 9 : 1));
  Program p = one_slot(slot, 1);
  p.host_issue_ns = 4;
  // Issued at 4, 8, 12; the second is done at 17.
  EXPECT_THAT(run(p, rows_of({0})).start,
              ElementsAre(ElementsAre(4), ElementsAre(8), ElementsAre(17)));
}

TEST(RunUnit, TheHostWaitsAtAGate) {
  SlotProgram slot;
  add(slot, op(Stream::kCompute, 100));
  ProgramOp gate = op(Stream::kCompute, 0);
  gate.host_waits = true;
  add(slot, gate);
  add(slot, op(Stream::kTensorComm, 1));
  Program p = one_slot(slot, 1);
  p.host_issue_ns = 4;
  // The gate is done at 104: only then is the next one issued, although its stream is free.
  EXPECT_THAT(run(p, rows_of({0})).start,
              ElementsAre(ElementsAre(4), ElementsAre(104), ElementsAre(108)));
  slot.ops[1].host_waits = false;
  p.stages[0].chunks[0].first_forward = slot;
  prepare(p.stages[0].chunks[0].first_forward, p.host_issue_ns);
  EXPECT_THAT(run(p, rows_of({0})).start,
              ElementsAre(ElementsAre(4), ElementsAre(104), ElementsAre(12)));
}

TEST(RunUnit, LanesTakeTheTimeOfTheirRows) {
  SlotProgram slot;
  ProgramOp product = routed(Stream::kCompute);
  product.cost.fixed_ns = 2;
  product.cost.floor_ns = 5;
  add(slot, product);
  EXPECT_THAT(run(one_slot(slot, 4), rows_of({0, 3, 4, 100})).end,
              ElementsAre(ElementsAre(5, 5, 6, 102)));
}

TEST(RunUnit, RowsCostWholeNanosecondsRoundedUp) {
  OpCost cost;
  cost.per_row_q20 = (1 << 20) / 4;
  EXPECT_EQ(cost.at(0), 0);
  EXPECT_EQ(cost.at(1), 1);
  EXPECT_EQ(cost.at(4), 1);
  EXPECT_EQ(cost.at(5), 2);
}

TEST(RunUnit, AGroupStartsWithItsLastMemberAndTakesAsLongAsItsLargest) {
  SlotProgram slot;
  add(slot, routed(Stream::kCompute));
  add(slot, routed(Stream::kExpertComm, Group::kExpert), {0});
  Program p = one_slot(slot, 4);
  p.groups[static_cast<int>(Group::kExpert)] = {2, 1};  // {0, 1}, {2, 3}
  const Trace t = run(p, rows_of({1, 5, 20, 10}));
  EXPECT_THAT(t.start[1], ElementsAre(5, 5, 20, 20));
  EXPECT_THAT(t.end[1], ElementsAre(10, 10, 40, 40));
}

TEST(RunUnit, MembersOfAGroupAreAStrideApart) {
  SlotProgram slot;
  add(slot, routed(Stream::kExpertComm, Group::kExpert));
  Program p = one_slot(slot, 8);
  p.groups[static_cast<int>(Group::kExpert)] = {2, 2};  // {0, 2}, {1, 3}, {4, 6}, {5, 7}
  EXPECT_THAT(run(p, rows_of({1, 2, 3, 4, 8, 7, 6, 5})).end,
              ElementsAre(ElementsAre(3, 4, 3, 4, 8, 7, 8, 7)));
}

TEST(RunUnit, AGroupOfOneLaneDoesNotMeetAnyone) {
  SlotProgram slot;
  add(slot, routed(Stream::kExpertComm, Group::kExpert));
  EXPECT_THAT(run(one_slot(slot, 2), rows_of({1, 2})).end, ElementsAre(ElementsAre(1, 2)));
}

// Two stages, one microbatch, one lane: F on each, B on each, and what they take.
Program two_stages(std::int64_t f0, std::int64_t f1, std::int64_t b1, std::int64_t b0) {
  Program p;
  p.schedule = build_1f1b(2, 1);
  p.stages.resize(2);
  for (StageProgram& stage : p.stages) stage.chunks.resize(1);
  add(p.stages[0].chunks[0].first_forward, op(Stream::kCompute, f0));
  add(p.stages[1].chunks[0].first_forward, op(Stream::kCompute, f1));
  add(p.stages[1].chunks[0].last_backward, op(Stream::kCompute, b1));
  add(p.stages[0].chunks[0].last_backward, op(Stream::kCompute, b0));
  return p;
}

TEST(RunUnit, ATransferStartsWhenBothStagesHaveComeToIt) {
  Program p = two_stages(10, 20, 40, 80);
  p.exchange_ns = 3;
  Trace t;
  const IterationTimes times = run_alone(p, {0}, &t);
  // F0 to 10, activation to 13, F1 and B1 to 73, gradient to 76, B0 to 156.
  EXPECT_THAT(t.transfers,
              testing::UnorderedElementsAre(Trace::Moved{0, 10, 13}, Trace::Moved{1, 10, 13},
                                            Trace::Moved{0, 73, 76}, Trace::Moved{1, 73, 76}));
  EXPECT_EQ(times.iteration_ns, 156);
  EXPECT_THAT(times.units[0].stages[1].finish_ns, ElementsAre(76));
}

TEST(RunUnit, ABlockingTransferWaitsForAllStreamsOfBothStages) {
  Program p = two_stages(10, 20, 40, 80);
  add(p.stages[0].chunks[0].first_forward, op(Stream::kDataComm, 1000));
  const Trace t = run(p, rows_of({0}));
  EXPECT_EQ(t.transfers[0].start, 1000);
}

TEST(RunUnit, TheIterationEndsAfterReductionOptimizerAndGatherOfTheSlowest) {
  Program p = two_stages(10, 20, 40, 80);  // the stages finish at 150 and 70
  p.stages[0].end = {5, 7, 11};
  p.stages[1].end = {100, 8, 9};
  const IterationTimes times = run_alone(p, {0});
  EXPECT_EQ(times.pipeline_ns, std::max(150 + 5, 70 + 100));
  EXPECT_EQ(times.iteration_ns, 170 + 8 + 11);
}

TEST(RunUnit, OnlyTheFirstForwardAndTheLastBackwardAreSpecial) {
  Program p;
  p.schedule = build_1f1b(1, 3);
  p.stages.resize(1);
  p.stages[0].chunks.resize(1);
  add(p.stages[0].chunks[0].first_forward, op(Stream::kCompute, 1));
  add(p.stages[0].chunks[0].forward, op(Stream::kCompute, 10));
  add(p.stages[0].chunks[0].backward, op(Stream::kCompute, 100));
  add(p.stages[0].chunks[0].last_backward, op(Stream::kCompute, 1000));
  EXPECT_EQ(run_alone(p, {0}).iteration_ns, 1 + 2 * 10 + 2 * 100 + 1000);
}

TEST(RunUnit, AccountsForWhatLaneZeroIsBusyWith) {
  SlotProgram slot;
  ProgramOp product = routed(Stream::kCompute);
  product.time_class = TimeClass::kGroupedGemm;
  product.cost.kind = CostKind::kInterpolated;
  ProgramOp exchange = routed(Stream::kExpertComm, Group::kExpert);
  exchange.time_class = TimeClass::kExpertComm;
  add(slot, product);
  add(slot, exchange, {0});
  Program p = one_slot(slot, 2);
  p.groups[static_cast<int>(Group::kExpert)] = {2, 1};
  const IterationTimes times = run_alone(p, {3, 8});
  const StageTimes& s = times.units[0].stages[0];
  EXPECT_EQ(s.busy_ns[static_cast<std::size_t>(TimeClass::kGroupedGemm)], 3);
  EXPECT_EQ(s.busy_ns[static_cast<std::size_t>(TimeClass::kExpertComm)], 8);  // with lane 1
  EXPECT_EQ(s.compute_by_kind_ns[static_cast<std::size_t>(CostKind::kInterpolated)], 3);
  EXPECT_EQ(s.slots_ns, 16);
  EXPECT_THAT(s.finish_ns, ElementsAre(16, 16));
}

TEST(RunUnit, Of1F1BTakesAsManySlotsAsMicrobatchesAndOtherStages) {
  // F = 1, B = 2, exchanges free: every stage is busy for m of m + p - 1 pairs.
  for (std::int32_t p = 1; p <= 8; ++p) {
    for (std::int32_t m = 1; m <= 20; ++m) {
      Program program;
      program.schedule = build_1f1b(p, m);
      program.stages.resize(static_cast<std::size_t>(p));
      for (StageProgram& stage : program.stages) {
        ChunkProgram& chunk = stage.chunks.emplace_back();
        add(chunk.forward, op(Stream::kCompute, 1));
        add(chunk.backward, op(Stream::kCompute, 2));
        chunk.first_forward = chunk.forward;
        chunk.last_backward = chunk.backward;
      }
      const IterationTimes times = run_alone(program, {0});
      EXPECT_EQ(times.iteration_ns, (m + p - 1) * (1 + 2)) << "p = " << p << ", m = " << m;
      for (const StageTimes& stage : times.units[0].stages) EXPECT_EQ(stage.slots_ns, 3 * m);
    }
  }
}

TEST(RunUnit, RefusesAScheduleThatDeadlocks) {
  Program p = two_stages(1, 1, 1, 1);
  p.schedule.stages[1].erase(p.schedule.stages[1].begin());  // never receives the activation
  EXPECT_THROW(run_alone(p, {0}), std::logic_error);
}

TEST(RunUnit, RefusesNeighboursThatSendDifferentMicrobatches) {
  Program p = two_stages(1, 1, 1, 1);
  std::get<Transfer>(p.schedule.stages[1][0]).receive_activation.microbatch = 7;
  EXPECT_THROW(run_alone(p, {0}), std::logic_error);
}

}  // namespace
}  // namespace tidemark::lane_engine_test
