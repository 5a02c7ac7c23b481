// Provisioning while a job runs: at each gate the lightest plan that leaves the future recoverable.
//
// A state is recoverable if every card stays within its limit when everything still to come gives
// up all it can, for rows up to a stated bound (a multiple of the balanced load). What a
// microbatch holds more than that is its excess; the excess of all that is in flight, on any lane,
// stays below the headroom that the most frugal plan leaves under the bound. A gate takes its
// share of what is left, in proportion to what it would like to keep and what is still to come
// before the pipeline is full; when a microbatch's backward ends, its excess comes back. So a
// spike's layers climb the ladder (planner/action_ladder.h) and calm ones come down, without
// restart or configuration.
//
// Bytes are reserved ones: the headroom is that of the emulated allocator.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "hw_profiles/hardware_profile.h"
#include "models/job.h"
#include "sim/policy.h"
#include "sim/program.h"

namespace tidemark {

// A program with optional actions and who decides about them.
struct ManagedRun {
  Program program;
  std::unique_ptr<Policy> policy;

  struct Stage {
    std::int64_t headroom_bytes = 0;  // under the most frugal plan and the bound; negative: none
  };
  std::vector<Stage> stages;
};

// `rows_bound`: rows of a card over the balanced load that decisions are safe for, >= 1.
// Activations are saved, recomputed or offloaded; not quantized, which changes the training.
ManagedRun adaptive_run(const Job& job, const HardwareProfile& profile, double rows_bound);

}  // namespace tidemark
