// Programs are data: for each stage the operators of a forward and a backward slot with their
// streams, groups, dependencies and costs, the schedule that strings slots together, and what
// happens at the borders of an iteration. Every engine interprets the same program; engines alone
// produce times.
//
// An operator starts at max(its stream is free, the host has issued it, its dependencies are done);
// one with a group starts when its last member may, and takes as long as its largest member. The
// host takes `host_issue_ns` for each operator, before it is in its stream's queue, and after one
// with `host_waits` goes on at that operator's end.
//
// A message between stages is lane by lane and takes `exchange_ns` from when both sides are ready.
// In a blocking transfer a stage is ready when its host has seen all its streams drained, and its
// host and streams go on when the last of the transfer's messages has moved. Otherwise it is ready
// when its host has come there and its compute stream has done what it was given, and a Wait holds
// the compute stream, not the host.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <vector>

#include "hw_profiles/collective_costs.h"
#include "hw_profiles/hardware_profile.h"
#include "hw_profiles/kernel_costs.h"
#include "models/gradient_buffers.h"
#include "models/operator_graph.h"
#include "sim/grouped_cost.h"
#include "sim/ratio_offload.h"
#include "sim/schedule.h"

namespace tidemark {

// duration(rows) = max(floor, fixed + ceil(per_row * rows)), in ns; per_row in units of 2^-20 ns.
// Traffic of routed rows is linear; a grouped product costs each expert's time on top.
struct OpCost {
  std::int64_t fixed_ns = 0;
  std::int64_t per_row_q20 = 0;
  std::int64_t floor_ns = 0;
  std::int32_t grouped = -1;  // index in Program::grouped_costs
  CostKind kind = CostKind::kRoofline;

  bool routed() const { return per_row_q20 != 0 || grouped >= 0; }
  // Without the experts of a grouped product.
  std::int64_t at(std::int64_t rows) const {
    const std::int64_t ns = fixed_ns + ((per_row_q20 * rows + (1 << 20) - 1) >> 20);
    return ns < floor_ns ? floor_ns : ns;
  }
};

// What an operator's time is spent on, for reports.
enum class TimeClass : std::uint8_t {
  kGemm,
  kGroupedGemm,
  kAttention,
  kElementwise,
  kLoss,
  kTensorComm,
  kContextComm,
  kExpertComm,
  kDataComm,
  kHostCopy,
};
constexpr int kNumTimeClasses = 10;

// Ranks whose gradients a reduction adds up: they join across the units of a job.
enum class DataGroup : std::uint8_t {
  kNone,
  kDense,   // all cards of a stage that hold the same tensor-parallel part
  kExpert,  // all cards of a stage that hold the same experts
};

struct ProgramOp {
  std::int32_t operator_index = -1;  // in the stage's graph, forward ++ backward; -1: data-parallel
  std::int32_t moe_layer = -1;       // of the rows table; -1 only where the cost is not routed
  std::int32_t action = -1;  // only where the microbatch takes this optional action; -1: always
  Stream stream = Stream::kCompute;
  Group group = Group::kNone;
  DataGroup reduces = DataGroup::kNone;
  bool beside = false;           // of the microbatch that a fused slot runs backward
  bool host_waits = false;       // the CPU goes on only when this is done
  std::int32_t awaited_as = -1;  // number among the slot's operators that later ones depend on
  TimeClass time_class = TimeClass::kElementwise;
  std::int32_t dep_begin = 0;  // range in SlotProgram::deps
  std::int32_t dep_end = 0;
  // Operators from this one on that are one piece of work for engines that nobody watches: of one
  // stream, costing all lanes the same, and depended on only at the end. Without what comes before
  // them they end `run_ns` after the stream was free, and not before `run_from_host_ns` after the
  // host began to issue them.
  std::int32_t run = 1;
  std::int64_t run_ns = 0;
  std::int64_t run_from_host_ns = 0;
  OpCost cost;
};

struct SlotProgram {
  std::vector<ProgramOp> ops;      // issue order
  std::vector<std::int32_t> deps;  // positions in ops, on other streams only: streams are FIFO
  std::int32_t awaited = 0;        // operators that others depend on
};

// Numbers the operators that others depend on, and finds runs. A slot needs it before it runs.
void prepare(SlotProgram& slot, std::int64_t host_issue_ns);

// Lanes of a stage that form one group: {first, first + stride, ..}, `size` of them; they agree in
// all but the digit (lane / stride) % size.
struct LaneGroup {
  std::int64_t size = 1;
  std::int64_t stride = 1;
};

// After a stage's last backward, when the gradients of all stages are there: see lane_engine.h.
struct IterationEnd {
  std::int64_t reduce_ns = 0;     // gradient reduction that nothing hides
  std::int64_t optimizer_ns = 0;  // clearing, checking and the optimizer step
  std::int64_t gather_ns = 0;     // parameter gather that nothing hides
};

struct ChunkProgram {
  SlotProgram forward;
  SlotProgram backward;
  SlotProgram first_forward;  // microbatch 0: waits for parameters where their gather is overlapped
  SlotProgram
      last_backward;  // of the last microbatch: starts reductions where these are overlapped
  SlotProgram backward_input;  // without the weight gradients that run by themselves
  SlotProgram backward_weight;
  SlotProgram last_backward_weight;
};

// A fused slot: chunk and variant of what runs forward and of what runs backward. The first of a
// chunk's forwards and the last of its backwards are variants.
struct FusedKey {
  std::int32_t forward_chunk = 0;
  bool first = false;
  std::int32_t backward_chunk = 0;
  bool last = false;
  friend constexpr auto operator<=>(const FusedKey&, const FusedKey&) = default;
};

struct StageProgram {
  OperatorGraph graph;
  std::vector<ChunkProgram> chunks;
  std::map<FusedKey, SlotProgram> fused;  // those that the schedule has
  std::vector<ChunkOffload> offload;      // [chunk]; empty: nothing is offloaded
  std::vector<std::int64_t> stash;        // bytes of buffers that a paged stash keeps for good
  IterationEnd end;
};

// Calls visit(SlotProgram&) for every one of a stage.
template <class Stage, class Visit>
void for_each_slot_program(Stage& stage, const Visit& visit) {
  for (auto& chunk : stage.chunks) {
    for (auto* slot :
         {&chunk.forward, &chunk.backward, &chunk.first_forward, &chunk.last_backward,
          &chunk.backward_input, &chunk.backward_weight, &chunk.last_backward_weight}) {
      visit(*slot);
    }
  }
  for (auto& [key, slot] : stage.fused) visit(slot);
}

struct Program {
  std::int64_t lanes = 1;  // of a stage
  LaneGroup groups[5];     // by Group
  std::vector<GroupedCost> grouped_costs;
  Schedule schedule;
  std::vector<StageProgram> stages;
  std::int64_t exchange_ns = 0;    // one message between neighbouring stages
  std::int64_t host_issue_ns = 0;  // CPU time of one operator

  const SlotProgram& slot_program(std::int32_t stage, const Slot& slot) const;
};

// The schedule of the job's pipeline. Requires: a validated job.
Schedule build_schedule(const Job& job);

// Requires: a validated job. Combined slots have Megatron's order; for the one that the job names
// see planner/slot_interleaving.h.
Program build_program(const Job& job, const HardwareProfile& profile);
// With the stages' graphs given: the job's, changed by actions (planner/optional_actions.h) or with
// orders for its combined slots.
Program build_program(const Job& job, const HardwareProfile& profile,
                      std::vector<OperatorGraph> graphs);

}  // namespace tidemark
