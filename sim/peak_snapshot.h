// The allocator of a stage's hottest lane at the moment of its peak.
#pragma once

#include <cstdint>

#include "hw_profiles/hardware_profile.h"
#include "sim/allocator_snapshot.h"
#include "sim/simulation.h"

namespace tidemark {

// After the event of the lane's peak allocated, on a card without limit; the trace begins with that
// iteration. Requires: `simulation` of the job on the profile.
AllocatorSnapshot snapshot_at_peak(const Job& job, const HardwareProfile& profile,
                                   const Simulation& simulation, std::int64_t stage);

}  // namespace tidemark
