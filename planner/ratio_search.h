// Kwai's static setting, tuned for a job: the least ratio of offloading that fits, in hundredths,
// without recomputation; where none is enough, with its norms and SwiGLU run again ("Pipelining
// with activation rematerialization and offloading", USENIX ATC 2024). Their planner also weighs
// what copies take; here they take no time, so that less offloading is not slower.
#pragma once

#include <cstdint>
#include <optional>

#include "hw_profiles/hardware_profile.h"
#include "models/job.h"

namespace tidemark {

struct RatioSearch {
  std::optional<Job> best;  // empty: nothing fits
  double ratio = 0;
  bool recomputes = false;
  std::int64_t simulated = 0;
};

// The job's own ratio and recomputation do not matter. What fits is taken to fit at higher ratios.
// Throws: InputError for a job that is not of Kwai's fork.
RatioSearch least_offload_ratio(const Job& job, const HardwareProfile& profile);

}  // namespace tidemark
