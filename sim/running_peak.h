// The running maximum of one card's allocated peak over the iterations of a run: what a training
// log's `mem-max-allocated-bytes` shows, which Megatron never resets. Nothing is timed, so that the
// distribution over many runs can be had.
//
// As in whole runs (sim/training_run.h), cards of a stage differ by their activations only, and
// what an iteration leaves behind counts as if the one before had the same routing. The first
// iteration holds neither that nor the optimizer's moments.
#pragma once

#include <cstdint>
#include <vector>

#include "models/units.h"
#include "sim/simulation.h"
#include "sim/training_run.h"
#include "traces/routing_source.h"

namespace tidemark {

// Returns: [iteration], of the first `iterations` ones. Requires: `simulation` of the job, without
// optional actions, under any routing; `routing` of the job's shape; `iterations` > 0.
std::vector<Bytes> running_peaks(const Job& job, const Simulation& simulation,
                                 const RoutingSource& routing, const CardId& card,
                                 std::int64_t iterations);

}  // namespace tidemark
