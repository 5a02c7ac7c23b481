// What a card holds between iterations: parameters, gradients, optimizer state, and what the
// frameworks and libraries keep for ever. Each item names its rule and where that rule comes from.
#pragma once

#include <string>
#include <vector>

#include "hw_profiles/hardware_profile.h"
#include "models/job.h"
#include "models/units.h"

namespace tidemark {

enum class ResidentSince : std::uint8_t {
  kStartUp,        // model and optimizer are built
  kFirstUse,       // in the first iteration
  kOptimizerStep,  // the first one
  kFirstGradient,  // of a weight of that size
};

struct ResidentItem {
  std::string name;
  std::vector<std::int64_t> requests;  // bytes of each allocation
  Bytes bytes;                         // of their blocks, from fresh segments
  ResidentSince since = ResidentSince::kFirstUse;
  std::string source;
  bool calibrated = false;  // a constant fitted on measured runs, not derived
};

// `optimizer_rank`: see gradient_buffers.
std::vector<ResidentItem> resident_memory(const Job& job, const HardwareProfile& profile,
                                          std::int64_t stage, std::int64_t optimizer_rank = 0);

// Bytes of the block that PyTorch's caching allocator hands out for one request from a fresh
// segment: rounded to 512; requests of 10 MiB and more get a segment rounded to 2 MiB, which is not
// split when at most 1 MiB would be left. Source: CUDACachingAllocator.cpp.
Bytes fresh_block(std::int64_t bytes);

}  // namespace tidemark
