// How many token-expert rows each expert receives: counts[microbatch][MoE layer][expert] of one
// unit (all cards of one expert-parallel group) in one iteration.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "models/job.h"
#include "models/large_vector.h"

namespace tidemark {

struct RoutingCounts {
  std::int64_t microbatches = 0;
  std::int64_t moe_layers = 0;
  std::int64_t experts = 0;
  LargeVector<std::int64_t> counts;  // [microbatch][moe layer][expert]

  std::int64_t at(std::int64_t microbatch, std::int64_t layer, std::int64_t expert) const {
    return counts[static_cast<std::size_t>((microbatch * moe_layers + layer) * experts + expert)];
  }
  // [expert]
  std::span<const std::int64_t> row(std::int64_t microbatch, std::int64_t layer) const {
    return {counts.data() + (microbatch * moe_layers + layer) * experts,
            static_cast<std::size_t>(experts)};
  }
  std::span<std::int64_t> row(std::int64_t microbatch, std::int64_t layer) {
    return {counts.data() + (microbatch * moe_layers + layer) * experts,
            static_cast<std::size_t>(experts)};
  }
};

// What part `part` of `parts` gets of `total`: as much as the others, the first ones one more where
// it does not divide.
constexpr std::int64_t even_share(std::int64_t total, std::int64_t parts, std::int64_t part) {
  return total / parts + (part < total % parts ? 1 : 0);
}

// Every expert receives its even share.
RoutingCounts balanced_routing(const Job& job);

// Every count times `factor`, rounded down: what no single iteration receives, but any card may.
RoutingCounts scaled(RoutingCounts counts, double factor);

// [layer] -> its row in tables over MoE layers, counted from 0; -1 for dense layers.
std::vector<std::int64_t> moe_layer_indices(const ModelSpec& model);

}  // namespace tidemark
