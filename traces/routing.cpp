#include "traces/routing.h"

#include "models/layer_operators.h"

namespace tidemark {

RoutingCounts balanced_routing(const Job& job) {
  RoutingCounts out;
  out.microbatches = job.batch.num_microbatches(job.layout);
  out.moe_layers = job.model.num_moe_layers();
  if (out.moe_layers == 0) return out;
  out.experts = job.model.moe->num_experts;
  const std::int64_t total = rows_sent(job) * job.layout.lanes_per_stage();
  out.counts.reserve(static_cast<std::size_t>(out.microbatches * out.moe_layers * out.experts));
  for (std::int64_t i = 0; i < out.microbatches * out.moe_layers; ++i) {
    for (std::int64_t e = 0; e < out.experts; ++e) {
      out.counts.push_back(even_share(total, out.experts, e));
    }
  }
  return out;
}

RoutingCounts scaled(RoutingCounts counts, double factor) {
  for (std::int64_t& count : counts.counts) {
    count = static_cast<std::int64_t>(static_cast<double>(count) * factor);
  }
  return counts;
}

std::vector<std::int64_t> moe_layer_indices(const ModelSpec& model) {
  std::vector<std::int64_t> indices;
  std::int64_t next = 0;
  for (std::int64_t layer = 0; layer < model.total_layers(); ++layer) {
    indices.push_back(model.is_moe(layer) ? next++ : -1);
  }
  return indices;
}

}  // namespace tidemark
