// The adaptive policy after a rehearsal: what its estimates of memory miss, measured beforehand.
//
// The policy's headroom (planner/adaptive_policy.h) knows two of its plans under even rows. Plans
// in between, under rows that differ from layer to layer, leave the allocator with more that no
// request fits into. So iterations of one unit are drawn that the run will not see; where a card
// dies of routing within the bound, the most that any was short by is withheld from the policy's
// card, until a rehearsal passes or a limit of rehearsals is reached.
#pragma once

#include <cstdint>

#include "planner/adaptive_policy.h"
#include "traces/routing_source.h"

namespace tidemark {

struct Rehearsal {
  AdaptiveRun run;
  std::int64_t withheld_bytes = 0;  // of the card
  std::int64_t deaths = 0;          // within the bound, in the last rehearsal
};

// `iterations`: of each rehearsal. Requires: rows_bound >= 1; `routing` of the job's shape.
// Cost: the policy and a run of `iterations` of one unit, up to kMostRehearsals times.
Rehearsal rehearsed_adaptive_run(const Job& job, const HardwareProfile& profile, double rows_bound,
                                 const RoutingSource& routing, std::int64_t iterations);
constexpr int kMostRehearsals = 5;

}  // namespace tidemark
