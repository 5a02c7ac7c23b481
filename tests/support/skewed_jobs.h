// Jobs of the sizes that people train, dropless, whose lanes receive different numbers of rows.
#pragma once

#include <cstdint>

#include "models/job.h"
#include "traces/routing.h"

namespace tidemark {

// DeepSeek-V3 over eight stages, or Qwen3-30B-A3B over one to four; 8 to 64 lanes; few
// microbatches.
Job skewed_job(std::uint64_t seed);

// A layer's experts differ in popularity by up to 2^4 for the whole iteration, and by up to 2^0.5
// more from microbatch to microbatch.
RoutingCounts skewed_routing(const Job& job, std::uint64_t seed);

}  // namespace tidemark
