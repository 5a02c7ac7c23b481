// AdaPipe (planner/adapipe.h) and the vendor's adaptive recompute (planner/adaptive_recompute.h) as
// policies of runs: what they choose to recompute is chosen once, for every microbatch, and nothing
// reacts to routing.
//
// What each may run again is what one operator keeps (planner/action_catalogue.h). `rows` is the
// load that is planned for, over the balanced one: 1 as published; more leaves room for skew. A
// stage's memory beside what may be run again is that of the emulated card with everything run
// again.
//
//   AdaPipe   a knapsack a stage, with the microbatches that its schedule holds. The split of
//             layers stays the job's: AdaPipe's own is solve_adapipe.
//   vendor    a module is what operators of a layer share in the first part of their names. Layers
//             with the same operators are one kind and get their share of the stage's budget. As
//             the vendor does, the budget is the same part of the memory for every stage, and the
//             memory to plan for is found by bisection, here until the emulated card fits. The swap
//             that rescues a failed allocation is left out: here such a run is out of memory.
#pragma once

#include "hw_profiles/hardware_profile.h"
#include "models/job.h"
#include "planner/managed_run.h"

namespace tidemark {

// Requires: rows > 0.
ManagedRun adapipe_run(const Job& job, const HardwareProfile& profile, double rows);
ManagedRun adaptive_recompute_run(const Job& job, const HardwareProfile& profile, double rows);

}  // namespace tidemark
