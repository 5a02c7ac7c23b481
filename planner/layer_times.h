// What each layer takes of a forward and of a backward slot, as a profiler of the running model
// would show it: an operator that ends later than all before it in its slot adds the difference to
// its layer. So layers and what lies outside them add up to the slot, however streams overlap.
//
// Of the last forward and the first backward, which neither gather parameters nor reduce gradients.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "sim/program.h"
#include "traces/lane_rows.h"

namespace tidemark {

struct LayerTime {
  std::int64_t forward_ns = 0;
  std::int64_t backward_ns = 0;
};

// Returns: [stage] by layer, -1 for what lies outside layers; without optional actions. Requires: a
// program whose slots are a forward or a whole backward, of one chunk. Cost: an iteration of one
// unit in the engine.
std::vector<std::map<std::int32_t, LayerTime>> layer_times(const Program& program,
                                                           const LaneRows& rows);

}  // namespace tidemark
