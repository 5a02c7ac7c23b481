#include "traces/lane_rows.h"

#include <algorithm>
#include <numeric>
#include <span>
#include <utility>

#include "models/layer_operators.h"

namespace tidemark {

LaneRows::LaneRows(const Job& job)
    : lanes_(job.layout.lanes_per_stage()),
      ranks_(job.layout.expert),
      parts_(job.layout.expert_tensor) {}

LaneRows::LaneRows(const Job& job, const RoutingCounts& counts) : LaneRows(job) { assign(counts); }

LaneRows LaneRows::alike(const Job& job, const Load& load) {
  LaneRows out(job);
  const std::int64_t lanes = std::exchange(out.lanes_, 1);
  out.moe_layers_ = job.model.num_moe_layers();
  if (out.moe_layers_ == 0) return out;
  const std::int64_t experts = job.model.moe->num_experts;
  out.local_experts_ = experts / out.ranks_;
  const std::int64_t groups = lanes / (out.ranks_ * out.parts_);
  const std::int64_t total = rows_sent(job) * lanes;
  const std::int64_t microbatches = job.batch.num_microbatches(job.layout);
  const auto tables = static_cast<std::size_t>(microbatches * out.moe_layers_);
  out.rows_.assign(tables, 0);
  out.of_expert_.resize(tables * static_cast<std::size_t>(out.local_experts_));
  std::size_t at = 0;
  for (std::size_t table = 0; table < tables; ++table) {
    const auto of_table = static_cast<std::int64_t>(table);
    const double factor = load(of_table / out.moe_layers_, of_table % out.moe_layers_);
    for (std::int64_t e = 0; e < out.local_experts_; ++e) {
      const std::int64_t balanced = even_share(total, experts, e);
      const auto count = static_cast<std::int64_t>(static_cast<double>(balanced) * factor);
      const std::int64_t share = even_share(count, groups, 0);
      out.of_expert_[at++] = static_cast<std::int32_t>(share);
      out.rows_[table] += share;
    }
  }
  return out;
}

LaneRows LaneRows::alike(const Job& job, double load) {
  return alike(job, [load](std::int64_t, std::int64_t) { return load; });
}

void LaneRows::assign(const RoutingCounts& counts) {
  moe_layers_ = counts.moe_layers;
  if (moe_layers_ == 0) return;
  local_experts_ = counts.experts / ranks_;
  const std::int64_t groups = lanes_ / (ranks_ * parts_);
  const auto tables = static_cast<std::size_t>(counts.microbatches * moe_layers_);
  rows_.resize(tables * static_cast<std::size_t>(lanes_));
  of_expert_.resize(tables * static_cast<std::size_t>(local_experts_ * lanes_));
  const std::int64_t* from = counts.counts.data();
  for (std::size_t table = 0; table < tables; ++table, from += counts.experts) {
    std::int64_t* const rows = rows_.data() + table * static_cast<std::size_t>(lanes_);
    std::int32_t* const each =
        of_expert_.data() + table * static_cast<std::size_t>(local_experts_ * lanes_);
    std::int64_t lane = 0;  // [group][rank][part]
    for (std::int64_t group = 0; group < groups; ++group) {
      for (std::int64_t rank = 0; rank < ranks_; ++rank, lane += parts_) {
        std::int64_t sum = 0;
        for (std::int64_t e = 0; e < local_experts_; ++e) {
          const std::int64_t count = from[rank * local_experts_ + e];
          const std::int64_t share = groups == 1 ? count : even_share(count, groups, group);
          std::fill_n(each + e * lanes_ + lane, parts_, static_cast<std::int32_t>(share));
          sum += share;
        }
        std::fill_n(rows + lane, parts_, sum);
      }
    }
  }
}

double LaneRows::max_over_mean() const {
  double highest = 1;
  const auto lanes = static_cast<std::size_t>(lanes_);
  for (std::size_t begin = 0; begin < rows_.size(); begin += lanes) {
    const std::span<const std::int64_t> rows(rows_.data() + begin, lanes);
    const std::int64_t sum = std::accumulate(rows.begin(), rows.end(), std::int64_t{0});
    const std::int64_t most = *std::ranges::max_element(rows);
    if (sum > 0) {
      highest = std::max(highest, static_cast<double>(most * lanes_) / static_cast<double>(sum));
    }
  }
  return highest;
}

}  // namespace tidemark
