// The best of Megatron-LM's static memory settings for a job, found by search.
//
// Settings are those of planner/static_policies.h: keep everything; full recompute of every layer
// (uniform, one layer a checkpoint) or of the first layers of each chunk (block); every set of
// selectively recomputed modules; every set of offloaded modules. Not both of the last two at once.
// One fits if every stage's reserved bytes do on a card whose every microbatch and layer receives
// `rows_bound` times the balanced rows; the fastest iteration under balanced routing is the best.
//
// Nothing is faster than keeping everything. Where that does not fit, the times of all settings are
// taken, which is cheap; memory is simulated from the fastest setting on, until one fits. Fewer
// modules are taken to allocate more: where a set of them allocates more than a card has, its
// subsets are passed over. What is reserved beyond that need not grow with it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "hw_profiles/hardware_profile.h"
#include "models/job.h"
#include "planner/static_policies.h"

namespace tidemark {

struct StaticSearch {
  std::optional<StaticPolicy> best;  // empty: nothing fits
  std::int64_t iteration_ns = 0;     // of the best, under balanced routing
  std::int64_t settings = 0;         // that the job can have
  std::int64_t simulated = 0;        // with their memory
};

// The job's own memory settings do not matter. Requires: a validated job, rows_bound >= 1.
// Cost: a program for each setting.
StaticSearch best_static_policy(const Job& job, const HardwareProfile& profile, double rows_bound);

// Memory settings as Megatron-LM's arguments; "" for none.
std::string megatron_memory_flags(const TrainingOptions& options);

}  // namespace tidemark
