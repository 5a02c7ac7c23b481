// What PyTorch's counters would show under given decisions: lane 0 of every stage of one unit,
// replayed through the emulated allocator on a card without limit.
#pragma once

#include <vector>

#include "hw_profiles/hardware_profile.h"
#include "models/job.h"
#include "sim/card_memory.h"
#include "sim/decisions.h"
#include "sim/program.h"
#include "traces/lane_rows.h"

namespace tidemark {

// Returns: [stage]. Requires: `job` as on_platform gives it, and decisions for every stage.
std::vector<CardMemory> decided_memory(const Job& job, const HardwareProfile& profile,
                                       const Program& program, const LaneRows& rows,
                                       const UnitDecisions& decisions);

}  // namespace tidemark
