// What PyTorch's counters would show under given decisions: lane 0 of every stage of one unit,
// replayed through the emulated allocator on a card without limit.
#pragma once

#include <cstdint>
#include <vector>

#include "hw_profiles/hardware_profile.h"
#include "models/job.h"
#include "sim/card_memory.h"
#include "sim/decisions.h"
#include "sim/program.h"
#include "traces/lane_rows.h"

namespace tidemark {

// Blocks that other streams use are reused when these are done with them. How soon the CPU asks:
// as it does while there is room, ahead of the device, or having waited for it, as it does before
// it runs out of memory.
enum class CpuPace : std::uint8_t { kAhead, kWaits };

// `wanted`: [stage]; empty: all. Returns: [stage], zeros for those that are not wanted.
// Requires: `job` as on_platform gives it, and decisions for every stage.
std::vector<CardMemory> decided_memory(const Job& job, const HardwareProfile& profile,
                                       const Program& program, const LaneRows& rows,
                                       const UnitDecisions& decisions,
                                       CpuPace pace = CpuPace::kAhead,
                                       const std::vector<bool>& wanted = {});

// The same where all microbatches are alike, or drawn alike, in rows and decisions. Without virtual
// stages an iteration of fewer then allocates as much: enough to fill the pipeline and to see
// several come and go. What is reserved differs by little, as it does from iteration to iteration.
// With virtual stages the CPU runs ahead and what its blocks wait for settles slowly, so all are
// replayed.
std::vector<CardMemory> steady_memory(const Job& job, const HardwareProfile& profile,
                                      const Program& program, const LaneRows& rows,
                                      const UnitDecisions& decisions,
                                      CpuPace pace = CpuPace::kAhead,
                                      const std::vector<bool>& wanted = {});

}  // namespace tidemark
