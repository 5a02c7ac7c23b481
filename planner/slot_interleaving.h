// The order of slots that combine a forward and a backward, from the interleaver
// (planner/interleaver.h) instead of Megatron's (models/combined_order.h).
//
// One order for all lanes, from the balanced load. What the interleaver sees of a slot:
//
//   chains     the operators of the forward and of the backward, each in its own order; where the
//              job delays weight gradients (delay_wgrad_compute) these are a third chain, each
//              after what makes its operands
//   floating   collectives that the next operator of their pass does not wait for
//   durations  those of the engine, alone and under the balanced load
//
// Operators of optional actions (planner/optional_actions.h), which differ from microbatch to
// microbatch, are not in the problem: each is issued where it was in its pass, behind the operator
// before it.
//
// Operators are issued as they start. So while the host waits at a gate the device has all that it
// can begin before the gate, of the other microbatch. Collectives of tensor and context groups and
// copies are issued right behind the operator before them: their streams wait for whatever the
// compute stream has been given until then. There is no memory limit: what an order costs in memory
// shows in the simulation.
//
// An order that the engine does not find shorter than Megatron's for the slot alone is dropped, and
// all of them where the iteration under the balanced load is not shorter.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "hw_profiles/hardware_profile.h"
#include "models/job.h"
#include "models/operator_graph.h"
#include "planner/slot_order.h"
#include "sim/decisions.h"
#include "sim/program.h"
#include "traces/lane_rows.h"

namespace tidemark {

// A slot by itself: every stream is free when it begins, the host too.
struct SlotRun {
  struct Span {
    std::int64_t start_ns = 0;
    std::int64_t end_ns = 0;
  };
  std::vector<Span> spans;  // [operator of the slot], on lane 0
  std::int64_t ns = 0;      // until all of it is done
};
// `slot`: fused, of the program's stage; its microbatches are 1 (forward) and 0. `taken`: of three
// microbatches; empty: nothing is optional.
SlotRun run_alone(const Program& program, const SlotProgram& slot, const LaneRows& rows,
                  const StageDecisions& taken = {});

struct InterleavableSlot {
  SlotProblem problem;
  std::vector<std::int32_t> operators;  // [of the problem] -> position in the graph's lists
  // [of the problem]: issued right behind it, by position in the graph's lists; optional ones, too.
  std::vector<std::vector<std::int32_t>> followers;
};
// `slot`: a fused slot in Megatron's order, without operators of an iteration's border; `alone`:
// its times.
InterleavableSlot interleavable_slot(const OperatorGraph& graph, const SlotProgram& slot,
                                     const SlotRun& alone);
// As OperatorGraph::slot_orders has it.
std::vector<std::int32_t> issue_order(const InterleavableSlot& slot,
                                      std::span<const std::int32_t> order);

// Whether the job names an order for its combined slots that has to be sought.
bool seeks_orders(const Job& job);

// The job's program on its platform, with the order that the job names for its combined slots
// (combined_slot_order). Requires: a validated job.
Program ordered_program(const Job& job, const HardwareProfile& profile);
// The same of a program with optional actions; orders are kept where they are shorter if all
// microbatches take those of `taken`, [stage][action]. Requires: `job` as on_platform gives it.
Program ordered_program(const Job& job, const HardwareProfile& profile, Program megatron,
                        const std::vector<std::vector<std::uint8_t>>& taken);

}  // namespace tidemark
