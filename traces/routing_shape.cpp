#include "traces/routing_shape.h"

namespace tidemark {

RoutingShape routing_shape(const Job& job) {
  RoutingShape shape;
  shape.units = job.layout.units();
  shape.microbatches = job.batch.num_microbatches(job.layout);
  shape.moe_layers = job.model.num_moe_layers();
  if (shape.moe_layers == 0) return shape;
  shape.experts = job.model.moe->num_experts;
  shape.topk = job.model.moe->topk;
  shape.tokens = job.sharded_tokens() * job.layout.lanes_per_stage();
  shape.ranks = job.layout.expert;
  return shape;
}

void resize(RoutingCounts& counts, const RoutingShape& shape) {
  counts.microbatches = shape.microbatches;
  counts.moe_layers = shape.moe_layers;
  counts.experts = shape.experts;
  counts.counts.resize(static_cast<std::size_t>(shape.counts_per_unit()));
}

}  // namespace tidemark
