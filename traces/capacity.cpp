#include "traces/capacity.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "models/units.h"
#include "traces/count_sampler.h"

namespace tidemark {

std::optional<Capacity> capacity_of(const Job& job) {
  if (!job.options.moe_expert_capacity_factor) return std::nullopt;
  return Capacity{*job.options.moe_expert_capacity_factor,
                  job.options.moe_pad_expert_input_to_capacity, DropPolicy::kExpert,
                  job.layout.lanes_per_stage()};
}

std::int64_t expert_capacity(const RoutingShape& shape, const Capacity& capacity) {
  const double balanced =
      static_cast<double>(shape.rows() / capacity.senders) / static_cast<double>(shape.experts);
  return static_cast<std::int64_t>(std::ceil(balanced * capacity.factor)) * capacity.senders;
}

Dropped apply_capacity(const RoutingShape& shape, const Capacity& capacity, RoutingCounts& counts) {
  const std::int64_t of_expert = expert_capacity(shape, capacity);
  const auto size = static_cast<std::size_t>(
      capacity.policy == DropPolicy::kDevice ? shape.experts_per_rank() : 1);
  const std::int64_t most = of_expert * static_cast<std::int64_t>(size);
  Dropped dropped;
  const std::span<std::int64_t> all = counts.counts;
  for (std::size_t begin = 0; begin < all.size(); begin += size) {
    const auto bounded = all.subspan(begin, size);
    const std::int64_t rows = std::accumulate(bounded.begin(), bounded.end(), std::int64_t{0});
    dropped.of += rows;
    if (rows > most) {
      dropped.rows += rows - most;
      rescale(bounded, most);
    }
    if (capacity.pad && capacity.policy == DropPolicy::kExpert) {
      dropped.padded += most - std::min(rows, most);
      bounded[0] = most;
    }
  }
  return dropped;
}

}  // namespace tidemark
