// How large the routing of a job is: the extents of counts[microbatch][MoE layer][expert] of a
// unit, and how many rows they add up to.
#pragma once

#include <cstdint>

#include "models/job.h"
#include "traces/routing.h"

namespace tidemark {

struct RoutingShape {
  std::int64_t units = 1;
  std::int64_t microbatches = 0;
  std::int64_t moe_layers = 0;
  std::int64_t experts = 0;
  std::int64_t topk = 0;
  std::int64_t tokens = 0;  // of a microbatch, of all cards of a unit
  std::int64_t ranks = 1;   // expert-parallel ranks, neighbouring experts on each

  // Of one microbatch and layer: each token goes to top-k different experts.
  std::int64_t rows() const { return tokens * topk; }
  std::int64_t experts_per_rank() const { return experts / ranks; }
  std::int64_t counts_per_unit() const { return microbatches * moe_layers * experts; }

  friend bool operator==(const RoutingShape&, const RoutingShape&) = default;
};

// Without experts: no layers.
RoutingShape routing_shape(const Job& job);

// Gives `counts` these extents; its memory is reused, its values are left unspecified.
void resize(RoutingCounts& counts, const RoutingShape& shape);

}  // namespace tidemark
