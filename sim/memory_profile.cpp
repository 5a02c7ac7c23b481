#include "sim/memory_profile.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

namespace tidemark {
namespace {

class BlockSizes {
 public:
  BlockSizes(const Job& job, const OperatorGraph& graph, const LaneRows& rows)
      : graph_(graph), rows_(rows), moe_index_(moe_layer_indices(job.model)) {}

  const Size& size(const MemoryEvent& e) const {
    return graph_.storages[static_cast<std::size_t>(e.storage)].bytes;
  }
  // Rows of each lane: what the previous iteration left is that of its last microbatch, and all
  // iterations see the same routing here.
  const std::int64_t* lane_rows(const MemoryEvent& e, std::int32_t microbatches) const {
    const std::int32_t layer = graph_.storages[static_cast<std::size_t>(e.storage)].layer;
    const std::int32_t microbatch =
        e.microbatch == kPreviousIteration ? microbatches - 1 : e.microbatch;
    return rows_.at(microbatch, moe_index_[static_cast<std::size_t>(layer)]);
  }

 private:
  const OperatorGraph& graph_;
  const LaneRows& rows_;
  std::vector<std::int64_t> moe_index_;
};

std::int64_t block(const Size& size, std::int64_t rows) {
  return round_up(size.at(rows), kAllocatorBlock);
}

}  // namespace

StageMemory profile_memory(const Job& job, const OperatorGraph& graph,
                           const MemorySequence& sequence, const LaneRows& rows) {
  const auto lanes = static_cast<std::size_t>(rows.lanes());
  const auto microbatches = static_cast<std::int32_t>(job.batch.num_microbatches(job.layout));
  const BlockSizes sizes(job, graph, rows);
  StageMemory out;
  out.lanes.resize(lanes);
  for (StorageId s : sequence.carried_over) {
    out.carried_over += Bytes(block(graph.storages[s.index()].bytes, 0));
  }

  // `common` is what all lanes hold alike, `own` what differs. Between events that differ a lane's
  // peak is its own part plus the highest common part, so only that is tracked.
  std::vector<std::int64_t> own(lanes, 0);
  std::int64_t common = out.carried_over.value;
  std::int64_t left_over = out.carried_over.value;  // still held of the previous iteration
  std::int64_t highest = common;
  std::int64_t highest_event = -1;
  std::int64_t highest_first = 0;  // without what the previous iteration left
  const auto settle = [&] {
    for (std::size_t l = 0; l < lanes; ++l) {
      LanePeak& peak = out.lanes[l];
      if (own[l] + highest > peak.bytes.value) {
        peak.bytes = Bytes(own[l] + highest);
        peak.event = highest_event;
      }
      peak.first_iteration = std::max(peak.first_iteration, Bytes(own[l] + highest_first));
    }
  };
  for (std::size_t i = 0; i < sequence.events.size(); ++i) {
    const MemoryEvent& e = sequence.events[i];
    const Size& size = sizes.size(e);
    const std::int64_t sign = e.allocates ? 1 : -1;
    if (size.per_row != 0) {
      settle();
      const std::int64_t* const lane_rows = sizes.lane_rows(e, microbatches);
      for (std::size_t l = 0; l < lanes; ++l) own[l] += sign * block(size, lane_rows[l]);
      highest = common;
      highest_first = common - left_over;
      highest_event = static_cast<std::int64_t>(i);
      continue;
    }
    const std::int64_t bytes = block(size, 0);
    common += sign * bytes;
    if (e.microbatch == kPreviousIteration) left_over -= bytes;
    if (common > highest) {
      highest = common;
      highest_event = static_cast<std::int64_t>(i);
    }
    highest_first = std::max(highest_first, common - left_over);
  }
  settle();
  return out;
}

std::vector<Bytes> allocated_after_events(const Job& job, const OperatorGraph& graph,
                                          const MemorySequence& sequence, const LaneRows& rows,
                                          std::int64_t lane) {
  const auto microbatches = static_cast<std::int32_t>(job.batch.num_microbatches(job.layout));
  const BlockSizes sizes(job, graph, rows);
  Bytes live;
  for (StorageId s : sequence.carried_over)
    live += Bytes(block(graph.storages[s.index()].bytes, 0));
  std::vector<Bytes> out;
  out.reserve(sequence.events.size());
  for (const MemoryEvent& e : sequence.events) {
    const Size& size = sizes.size(e);
    const std::int64_t routed = size.per_row == 0 ? 0 : sizes.lane_rows(e, microbatches)[lane];
    const Bytes bytes(block(size, routed));
    live += e.allocates ? bytes : -bytes;
    out.push_back(live);
  }
  return out;
}

std::vector<LiveStorage> live_storages(const Job& job, const OperatorGraph& graph,
                                       const MemorySequence& sequence, const LaneRows& rows,
                                       std::int64_t lane, std::int64_t event) {
  const auto microbatches = static_cast<std::int32_t>(job.batch.num_microbatches(job.layout));
  const BlockSizes sizes(job, graph, rows);
  std::set<std::pair<std::int32_t, std::int32_t>> live;  // storage, microbatch
  for (StorageId s : sequence.carried_over) live.insert({s.value, kPreviousIteration});
  for (std::int64_t i = 0; i <= event; ++i) {
    const MemoryEvent& e = sequence.events[static_cast<std::size_t>(i)];
    if (e.allocates) {
      live.insert({e.storage, e.microbatch});
    } else {
      live.erase({e.storage, e.microbatch});
    }
  }
  std::map<std::pair<std::int32_t, std::string>, LiveStorage> sums;
  for (const auto& [storage, microbatch] : live) {
    const Storage& s = graph.storages[static_cast<std::size_t>(storage)];
    const MemoryEvent key{0, 0, storage, microbatch, true};
    const std::int64_t routed = s.bytes.per_row == 0 ? 0 : sizes.lane_rows(key, microbatches)[lane];
    LiveStorage& sum = sums[{s.layer, s.name}];
    sum.name = s.name;
    sum.layer = s.layer;
    ++sum.copies;
    sum.bytes += Bytes(block(s.bytes, routed));
  }
  std::vector<LiveStorage> out;
  for (auto& [key, sum] : sums) out.push_back(std::move(sum));
  std::stable_sort(out.begin(), out.end(),
                   [](const LiveStorage& a, const LiveStorage& b) { return a.bytes > b.bytes; });
  return out;
}

}  // namespace tidemark
