// Provisioning and interleaving together.
//
// `tidemark`, the project's own policy: the adaptive policy on the job with combined slots, where a
// forward and a backward of two microbatches run as one, so that each computes while the other's
// tokens are exchanged; in the interleaver's order (planner/slot_interleaving.h), or in Megatron's
// if only that fits. The job's own schedule is taken where it is faster in a typical iteration, or
// where combined slots do not fit. So the pair is never predicted slower than provisioning alone.
//
// `bagualu2`: BaGuaLu-2 as far as its paper is public, with heuristics where ours solves, and
// nothing held back for a future that is not balanced (heuristic_run); combined slots in Megatron's
// order. Its rules are not published: this is a reproduction of the idea, not of the system.
#pragma once

#include <cstdint>
#include <optional>

#include "hw_profiles/hardware_profile.h"
#include "models/job.h"
#include "planner/adaptive_policy.h"
#include "traces/routing.h"

namespace tidemark {

// The job with combined slots: Megatron's where it has virtual stages, else combined-1f1b; weight
// gradients delayed, shared experts without a stream of their own. Empty where it cannot have them.
std::optional<Job> with_combined_slots(const Job& job);
// The same job in 1F1B or Megatron's interleaving, where its slots were combined.
Job without_combined_slots(Job job);

struct InterleavedRun {
  Job job;  // with the schedule that was taken
  AdaptiveRun run;
  // Of the typical iteration, of one unit: as taken, and what the job's own schedule takes at
  // least, with nothing given up or, where combined slots are not faster than that, as provisioned.
  std::int64_t iteration_ns = 0;
  std::int64_t own_schedule_ns = 0;
};

// `typical`: of one unit in one iteration. Requires: a validated job, rows_bound >= 1.
InterleavedRun interleaved_run(const Job& job, const HardwareProfile& profile, double rows_bound,
                               const RoutingCounts& typical);
InterleavedRun bagualu2_run(const Job& job, const HardwareProfile& profile,
                            const RoutingCounts& typical);

}  // namespace tidemark
