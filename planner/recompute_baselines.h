// AdaPipe (planner/adapipe.h) and the vendor's adaptive recompute (planner/adaptive_recompute.h) as
// policies of runs: what they choose to recompute is chosen once, for every microbatch, and nothing
// reacts to routing.
//
// What each may run again is what one operator keeps (planner/action_catalogue.h). `rows` is the
// load that is planned for, over the balanced one: 1 as published; more leaves room for skew. A
// stage's memory beside what may be run again is that of the emulated card with everything run
// again.
//
//   AdaPipe   deals the layers to the stages (planner/adapipe.h) where its formulas hold, on 1F1B
//             without virtual stages; elsewhere the split stays the job's. A layer takes what it
//             takes in a balanced iteration (planner/layer_times.h), embedding and loss lie with
//             the first and last. What a stage holds beside its layers is what the emulated card
//             holds beside them in the job's own split: too little where a stage gets more layers,
//             since what the allocator reserves beyond what is allocated grows with them. So each
//             knapsack of the split is solved again for its own emulated card, with the
//             microbatches that the schedule holds. The split stays AdaPipe's even if it is slower
//             than the job's.
//   vendor    a module is what operators of a layer share in the first part of their names. Layers
//             with the same operators are one kind and get their share of the stage's budget. As
//             the vendor does, the budget is the same part of the memory for every stage, and the
//             memory to plan for is found by bisection, here until the emulated card fits. A run
//             rescues allocations that fail after all (sim/rescue_swap.h).
#pragma once

#include <string>

#include "hw_profiles/hardware_profile.h"
#include "models/job.h"
#include "planner/adapipe.h"
#include "planner/managed_run.h"

namespace tidemark {

struct AdaPipeRun {
  Job job;  // with the split
  ManagedRun run;
  AdaPipePlan split;              // empty: the job's
  std::string keeps_split_since;  // why, then
};

// Requires: rows > 0.
AdaPipeRun adapipe_run(const Job& job, const HardwareProfile& profile, double rows);
ManagedRun adaptive_recompute_run(const Job& job, const HardwareProfile& profile, double rows);

}  // namespace tidemark
