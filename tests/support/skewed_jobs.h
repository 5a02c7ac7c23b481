// Jobs whose lanes receive different numbers of rows, of the sizes that training has, small enough
// in layers and microbatches to emulate every lane.
#pragma once

#include <cstdint>

#include "models/job.h"
#include "traces/routing.h"

namespace tidemark {

// One or two stages of up to four layers, eight lanes, dropless; Qwen3- or DeepSeek-like.
Job skewed_job(std::uint64_t seed);

// Experts' popularities between 1 and 16 times the least, half of it for the whole iteration and
// half new in each microbatch and layer.
RoutingCounts skewed_routing(const Job& job, std::uint64_t seed);

}  // namespace tidemark
