// What PYTORCH_CUDA_ALLOC_CONF tells PyTorch's caching allocator, such as
// "max_split_size_mb:21,expandable_segments:True". ROCm's build reads PYTORCH_HIP_ALLOC_CONF where
// that is not set.
// Source: c10/cuda/CUDAAllocatorConfig.cpp and .h, pytorch/pytorch 001074d2 (before 2.5).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "models/input_error.h"

namespace tidemark {

struct AllocatorOptions {
  std::optional<std::int64_t> max_split_size_mb = std::nullopt;  // 2^20 bytes; empty: no limit
  // Share of the card above which cached segments are given back; 0: none. PyTorch heeds it once
  // torch.cuda.set_per_process_memory_fraction has been called; a fraction of 1 is taken.
  double garbage_collection_threshold = 0;
  std::int64_t roundup_power2_divisions = 0;  // sizes between two powers of two; 0 and 1: all
  bool expandable_segments = false;

  friend bool operator==(const AllocatorOptions&, const AllocatorOptions&) = default;
};

constexpr std::int64_t kSmallestMaxSplitMb = 21;  // PyTorch: above 20
constexpr std::int64_t kLargestMaxSplitMb = std::int64_t{1} << 20;
constexpr std::int64_t kMostPower2Divisions = 64;

// What PyTorch takes for roundup_power2_divisions: 0, or a power of two.
bool is_power2_divisions(std::int64_t divisions);

// Keys that do not change what is reserved are skipped. Appends a violation for each key or value
// that PyTorch refuses or that is not modelled (other backends, divisions by size).
AllocatorOptions parse_allocator_conf(std::string_view text, const std::string& file,
                                      const std::string& place, std::vector<Violation>& violations);

}  // namespace tidemark
