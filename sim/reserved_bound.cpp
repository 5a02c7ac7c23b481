#include "sim/reserved_bound.h"

#include <algorithm>
#include <cstddef>

namespace tidemark {
namespace {

constexpr std::int64_t kRoutedRequests = 10;
constexpr double kOtherRequests = 1.5;

// The most rows of any microbatch: [MoE layer of the model][lane], only of the stage's layers.
class MostRows {
 public:
  MostRows(const Job& job, const OperatorGraph& graph, const LaneRows& rows)
      : index_(moe_layer_indices(job.model)), lanes_(rows.lanes()) {
    most_.resize(index_.size());
    const std::int64_t microbatches = job.batch.num_microbatches(job.layout);
    for (const Storage& s : graph.storages) {
      if (s.bytes.per_row == 0) continue;
      std::vector<std::int64_t>& most = most_[static_cast<std::size_t>(s.layer)];
      if (!most.empty()) continue;
      most.assign(static_cast<std::size_t>(lanes_), 0);
      for (std::int64_t m = 0; m < microbatches; ++m) {
        const std::int64_t* const at = rows.at(m, index_[static_cast<std::size_t>(s.layer)]);
        for (std::int64_t lane = 0; lane < lanes_; ++lane) {
          most[static_cast<std::size_t>(lane)] =
              std::max(most[static_cast<std::size_t>(lane)], at[lane]);
        }
      }
    }
  }

  std::int64_t at(std::int32_t layer, std::int64_t lane) const {
    return most_[static_cast<std::size_t>(layer)][static_cast<std::size_t>(lane)];
  }
  // Whether two lanes receive the same in every microbatch and layer of the stage.
  bool equal(const Job& job, const LaneRows& rows, std::int64_t a, std::int64_t b) const {
    const std::int64_t microbatches = job.batch.num_microbatches(job.layout);
    for (std::size_t layer = 0; layer < most_.size(); ++layer) {
      if (most_[layer].empty()) continue;
      for (std::int64_t m = 0; m < microbatches; ++m) {
        const std::int64_t* const at = rows.at(m, index_[layer]);
        if (at[a] != at[b]) return false;
      }
    }
    return true;
  }

 private:
  std::vector<std::int64_t> index_;  // [layer] -> MoE layer
  std::int64_t lanes_;
  std::vector<std::vector<std::int64_t>> most_;  // [layer][lane]; empty: not routed, or elsewhere
};

}  // namespace

std::vector<Bytes> reserved_bounds(const Job& job, const OperatorGraph& graph, const LaneRows& rows,
                                   std::span<const Bytes> peak_allocated,
                                   const EmulatedLane& emulated) {
  const MostRows most(job, graph, rows);
  std::int64_t other = 0;
  for (const Storage& s : graph.storages) {
    if (s.bytes.per_row == 0) other = std::max(other, s.bytes.fixed);
  }
  const Bytes unused = emulated.peak_reserved - emulated.peak_allocated;
  std::vector<Bytes> out;
  for (std::int64_t lane = 0; lane < std::ssize(peak_allocated); ++lane) {
    if (most.equal(job, rows, lane, emulated.lane)) {
      out.push_back(emulated.peak_reserved);
      continue;
    }
    std::int64_t routed = 0;
    for (const Storage& s : graph.storages) {
      if (s.bytes.per_row != 0) routed = std::max(routed, s.bytes.at(most.at(s.layer, lane)));
    }
    const auto others = static_cast<std::int64_t>(kOtherRequests * static_cast<double>(other));
    out.push_back(peak_allocated[static_cast<std::size_t>(lane)] + unused +
                  Bytes(std::max(kRoutedRequests * routed, others)));
  }
  return out;
}

}  // namespace tidemark
