// A policy decides, during a run, which optional actions a stage takes (sim/decisions.h).
//
// It decides at gates: when the counts of a MoE layer have come to the CPU, and before a slot's
// first gate. Known at a gate are the rows of this and earlier layers of the microbatch, of earlier
// microbatches that are in flight, and what was decided for them; later layers and microbatches are
// not. All members of the group know the same, so all lanes take the same actions. Decisions depend
// on nothing that a clock shows, so they can be made for a whole iteration before it is timed.
#pragma once

#include <cstddef>
#include <cstdint>

#include "sim/decisions.h"
#include "traces/lane_rows.h"

namespace tidemark {

class Policy {
 public:
  virtual ~Policy() = default;
  // Of one stage of a unit in one iteration: a pure function, called from any thread.
  virtual StageDecisions decide(std::int32_t stage, const LaneRows& rows) const = 0;
};

// Of all stages of a unit, [stage], in order.
inline UnitDecisions decide_unit(const Policy& policy, std::size_t stages, const LaneRows& rows) {
  UnitDecisions out;
  for (std::size_t s = 0; s < stages; ++s) {
    out.push_back(policy.decide(static_cast<std::int32_t>(s), rows));
  }
  return out;
}

}  // namespace tidemark
