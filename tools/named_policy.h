// What a policy's name stands for: one of planner/static_policies.h, or
//
//   megatron-best            the best of these by search (planner/static_search.h)
//   kwai-best                the least ratio of offloading that fits (planner/ratio_search.h)
//   adapipe, adaptive-recompute  planned for F times the balanced load (recompute_baselines.h)
//   bagualu2-offload         BaGuaLu-2's published rule (bagualu2_policy.h)
//   paged-stash              Megatron's, with capacity F and buffers of B (paged_stash.h)
//   fixed-plan               ours, decided once for the worst that is planned for
//   adaptive                 ours (adaptive_policy.h), rehearsed on N iterations (rehearsal.h)
//   bagualu2                 the system of its paper, as far as it is public (interleaved_run.h)
//   tidemark                 ours, with slots that hide communication (interleaved_run.h)
//   plan:FILE                ours, prepared by `tidemark plan`
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "planner/managed_run.h"
#include "planner/paged_stash.h"
#include "sim/training_run.h"
#include "tools/job_input.h"
#include "traces/routing_source.h"

namespace tidemark {

struct NamedPolicy {
  JobInput input;                     // with the job that the policy makes of the one it is given
  std::optional<ManagedRun> managed;  // empty: nothing is decided while the job runs
  std::optional<StashLimits> stash;   // of paged-stash
  std::optional<Rerun> rerun;         // the same
  bool rescues = false;               // adaptive-recompute: allocations that fail
  std::vector<std::string> notes;     // what it was prepared for
};

std::string policies_help();

// `risk`: of running out of memory in an iteration. `source`: the job's routing.
// Throws: InputError where there is no such policy, or where it does not suit the job.
NamedPolicy named_policy(const JobInput& given, const std::string& name,
                         const RoutingSource& source, double risk);

}  // namespace tidemark
