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
      out.counts.push_back(total / out.experts + (e < total % out.experts ? 1 : 0));
    }
  }
  return out;
}

std::vector<std::int64_t> moe_layer_indices(const ModelSpec& model) {
  std::vector<std::int64_t> indices;
  std::int64_t next = 0;
  for (std::int64_t layer = 0; layer < model.total_layers(); ++layer) {
    indices.push_back(model.is_moe(layer) ? next++ : -1);
  }
  return indices;
}

LaneRows::LaneRows(const Job& job, const RoutingCounts& counts)
    : lanes_(job.layout.lanes_per_stage()), moe_layers_(counts.moe_layers) {
  if (moe_layers_ == 0) return;
  const std::int64_t ep = job.layout.expert;
  const std::int64_t etp = job.layout.expert_tensor;
  const std::int64_t local = counts.experts / ep;
  const std::int64_t groups = lanes_ / (ep * etp);
  rows_.resize(static_cast<std::size_t>(counts.microbatches * moe_layers_ * lanes_));
  for (std::int64_t mb = 0; mb < counts.microbatches; ++mb) {
    for (std::int64_t layer = 0; layer < moe_layers_; ++layer) {
      for (std::int64_t rank = 0; rank < ep; ++rank) {
        std::int64_t sum = 0;
        for (std::int64_t e = rank * local; e < (rank + 1) * local; ++e) {
          sum += counts.at(mb, layer, e);
        }
        for (std::int64_t group = 0; group < groups; ++group) {
          for (std::int64_t part = 0; part < etp; ++part) {
            const std::int64_t lane = (group * ep + rank) * etp + part;
            rows_[static_cast<std::size_t>((mb * moe_layers_ + layer) * lanes_ + lane)] =
                sum / groups + (group < sum % groups ? 1 : 0);
          }
        }
      }
    }
  }
}

}  // namespace tidemark
