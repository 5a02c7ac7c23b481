#include "sim/reserved_bound.h"

#include <algorithm>
#include <cstddef>

#include "sim/caching_allocator.h"

namespace tidemark {
namespace {

constexpr std::int64_t kRoutedRequests = 10;
constexpr double kOtherRequests = 1.5;

// The most rows of any microbatch: [MoE layer of the model][lane], only of the stage's layers.
class MostRows {
 public:
  MostRows(const Job& job, const OperatorGraph& graph, const LaneRows& rows)
      : rows_(rows),
        microbatches_(job.batch.num_microbatches(job.layout)),
        index_(moe_layer_indices(job.model)),
        most_(index_.size()) {
    for (const Storage& s : graph.storages) {
      if (s.bytes.per_row == 0) continue;
      std::vector<std::int64_t>& most = most_[static_cast<std::size_t>(s.layer)];
      if (!most.empty()) continue;
      most.assign(static_cast<std::size_t>(rows.lanes()), 0);
      for (std::int64_t m = 0; m < microbatches_; ++m) {
        const std::int64_t* const at = rows.at(m, index_[static_cast<std::size_t>(s.layer)]);
        for (std::int64_t lane = 0; lane < rows.lanes(); ++lane) {
          most[static_cast<std::size_t>(lane)] =
              std::max(most[static_cast<std::size_t>(lane)], at[lane]);
        }
      }
    }
  }

  std::int64_t at(std::int32_t layer, std::int64_t lane) const {
    return most_[static_cast<std::size_t>(layer)][static_cast<std::size_t>(lane)];
  }
  // Whether a lane receives the same as one of `other` in every microbatch and layer of the stage.
  bool equal(std::int64_t lane, const LaneRows& other, std::int64_t other_lane) const {
    for (std::size_t layer = 0; layer < most_.size(); ++layer) {
      if (most_[layer].empty()) continue;
      for (std::int64_t m = 0; m < microbatches_; ++m) {
        if (rows_.at(m, index_[layer])[lane] != other.at(m, index_[layer])[other_lane]) {
          return false;
        }
      }
    }
    return true;
  }

 private:
  const LaneRows& rows_;
  std::int64_t microbatches_;
  std::vector<std::int64_t> index_;              // [layer] -> MoE layer
  std::vector<std::vector<std::int64_t>> most_;  // [layer][lane]; empty: not routed, or elsewhere
};

// Requests of a stage that differ in size.
struct RequestSizes {
  explicit RequestSizes(const OperatorGraph& graph) {
    for (const Storage& s : graph.storages) {
      if (s.bytes.per_row == 0) {
        largest_other = std::max(largest_other, s.bytes.fixed);
        continue;
      }
      const auto same = std::ranges::find_if(routed, [&](const Storage* r) {
        return r->layer == s.layer && r->bytes.fixed == s.bytes.fixed &&
               r->bytes.per_row == s.bytes.per_row;
      });
      if (same == routed.end()) routed.push_back(&s);
    }
  }

  std::vector<const Storage*> routed;
  std::int64_t largest_other = 0;
};

}  // namespace

std::vector<Bytes> reserved_bounds(const Job& job, const OperatorGraph& graph, const LaneRows& rows,
                                   std::span<const Bytes> peak_allocated,
                                   const EmulatedLane& emulated) {
  const MostRows most(job, graph, rows);
  const RequestSizes requests(graph);
  const auto others =
      static_cast<std::int64_t>(kOtherRequests * static_cast<double>(requests.largest_other));
  std::vector<Bytes> out;
  for (std::int64_t lane = 0; lane < std::ssize(peak_allocated); ++lane) {
    if (most.equal(lane, emulated.rows, emulated.lane)) {
      out.push_back(emulated.reserved);
      continue;
    }
    if (job.options.allocator != AllocatorOptions()) {
      out.push_back(CachingAllocator::kNoLimit);
      continue;
    }
    std::int64_t routed = 0;
    for (const Storage* s : requests.routed) {
      routed = std::max(routed, s->bytes.at(most.at(s->layer, lane)));
    }
    out.push_back(peak_allocated[static_cast<std::size_t>(lane)] + emulated.unused +
                  Bytes(std::max(kRoutedRequests * routed, others)));
  }
  return out;
}

}  // namespace tidemark
