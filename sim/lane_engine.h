// The discrete-event core: evaluates a program in dependency order with arrays over the lanes of a
// stage (operators outer, lanes inner, no allocation inside). Between the meeting points of a group
// lanes advance separately; stages meet in transfers.
//
// Units run side by side, on the machine's cores. They join where a stage waits for gradient
// reductions: of the embedding and attention with all cards that hold the same tensor-parallel
// part, of the experts with all that hold the same. (Parameter gathers in the first forwards start
// before routing has moved cards apart, and join nothing.)
//
// Times are ns from the start of the iteration. The iteration ends when every stage of every unit
// has its gradients (a global norm joins all cards), the slowest optimizer step and the slowest
// gather.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "sim/decisions.h"
#include "sim/program.h"
#include "traces/lane_rows.h"

namespace tidemark {

// Sees every operator of every stage as it is evaluated: traces, tests, the time of a peak.
class Recorder {
 public:
  virtual ~Recorder() = default;
  // A stage that nobody watches runs faster.
  virtual bool watches(std::int32_t /*stage*/) const { return true; }
  // `start`, `end`: [lane]. `op`: position in the slot's program. One of an action that is not
  // taken starts and ends when its stream was free.
  virtual void on_operator(std::int32_t stage, std::int32_t step, std::int32_t op,
                           const SlotProgram& slot, std::span<const std::int64_t> start,
                           std::span<const std::int64_t> end) = 0;
  // A blocking transfer or a wait: from when the last message moves. A transfer that is only
  // posted: `start` == `end`, when it is ready.
  virtual void on_transfer(std::int32_t stage, std::int32_t step,
                           std::span<const std::int64_t> start,
                           std::span<const std::int64_t> end) = 0;
};

struct StageTimes {
  std::vector<std::int64_t> finish_ns;                  // [lane]: everything issued is done
  std::vector<std::int64_t> group_wait_ns;              // [lane]: for its groups' later members
  std::int64_t slots_ns = 0;                            // lane 0: sum over slots of their duration
  std::array<std::int64_t, kNumTimeClasses> busy_ns{};  // lane 0, by what it was spent on
  std::array<std::int64_t, 4> compute_by_kind_ns{};     // lane 0, compute streams, by CostKind
};

struct UnitTimes {
  std::vector<StageTimes> stages;
};

struct IterationTimes {
  std::int64_t iteration_ns = 0;
  std::int64_t pipeline_ns = 0;  // until every stage has finished its slots and reductions
  std::vector<UnitTimes> units;
};

// `rows`: of each unit, for every microbatch and MoE layer of the program; of one lane where all of
// a stage's are alike (LaneRows::alike). `recorders`: of each unit, null where nobody looks; or
// none at all. `decisions`: of each unit; without, no optional action is taken. Throws:
// std::logic_error when stages wait for each other (a schedule that deadlocks).
IterationTimes run_units(const Program& program, std::span<const LaneRows> rows,
                         std::span<Recorder* const> recorders = {},
                         std::span<const UnitDecisions> decisions = {});

}  // namespace tidemark
