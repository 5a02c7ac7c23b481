// Jobs of the sizes that people train, dropless, whose lanes receive different numbers of rows.
#pragma once

#include <cstdint>

#include "models/job.h"
#include "traces/routing.h"

namespace tidemark {

// DeepSeek-V3 over eight stages, or Qwen3-30B-A3B over one to four; 8 to 64 lanes; few
// microbatches.
Job skewed_job(std::uint64_t seed);

// Experts' popularities between 1 and 16 times the least, half of it for the whole iteration and
// half new in each microbatch and layer.
RoutingCounts skewed_routing(const Job& job, std::uint64_t seed);

}  // namespace tidemark
