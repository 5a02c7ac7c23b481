// Provisioning and interleaving together: the project's own policy.
//
// The adaptive policy on the job's schedule, and on the job with combined slots: a forward and a
// backward of two microbatches run as one, so that each computes while the other's tokens are
// exchanged; in Megatron's order and in the interleaver's (planner/slot_interleaving.h). Of those
// whose most frugal plan fits, the fastest in a typical iteration is taken. So the pair is never
// predicted slower than provisioning alone.
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
  // Of the typical iteration, of one unit: as taken, and of provisioning on the job's own schedule.
  std::int64_t iteration_ns = 0;
  std::int64_t own_schedule_ns = 0;
};

// `typical`: of one unit in one iteration. Requires: a validated job, rows_bound >= 1.
InterleavedRun interleaved_run(const Job& job, const HardwareProfile& profile, double rows_bound,
                               const RoutingCounts& typical);

}  // namespace tidemark
