#include "sim/lane_peaks.h"

#include <algorithm>

#include "models/units.h"
#include "sim/lane_loops.h"

namespace tidemark {
LanePeaks::LanePeaks(const Job& job, const OperatorGraph& graph, const MemorySequence& sequence) {
  const std::vector<std::int64_t> moe_index = moe_layer_indices(job.model);
  const auto microbatches = static_cast<std::int32_t>(job.batch.num_microbatches(job.layout));
  std::int64_t common = 0;
  for (StorageId s : sequence.carried_over) {
    common += round_up(graph.storages[s.index()].bytes.fixed, kAllocatorBlock);
  }
  std::int64_t highest = common;
  changes_.reserve(sequence.events.size());
  for (const MemoryEvent& e : sequence.events) {
    const Storage& storage = graph.storages[static_cast<std::size_t>(e.storage)];
    if (storage.bytes.per_row == 0 && e.action < 0) {
      common += (e.allocates ? 1 : -1) * round_up(storage.bytes.fixed, kAllocatorBlock);
      highest = std::max(highest, common);
      continue;
    }
    Change change;
    change.common = highest;
    change.fixed = storage.bytes.fixed;
    change.per_row = storage.bytes.per_row;
    // What the previous iteration left is of its last microbatch, under the same routing.
    change.microbatch = e.microbatch == kPreviousIteration ? microbatches - 1 : e.microbatch;
    change.moe_layer =
        storage.bytes.per_row == 0
            ? 0
            : static_cast<std::int32_t>(moe_index[static_cast<std::size_t>(storage.layer)]);
    change.action = e.action;
    change.allocates = e.allocates;
    changes_.push_back(change);
    highest = common;
  }
  last_common_ = highest;
}

void LanePeaks::evaluate(const LaneRows& rows, const StageDecisions& decisions,
                         std::span<std::int64_t> own, std::span<std::int64_t> peak) const {
  const std::size_t lanes = own.size();
  std::ranges::fill(own, 0);
  std::ranges::fill(peak, 0);
  for (const Change& c : changes_) {
    const std::int64_t sign = c.allocates ? 1 : -1;
    if (c.action >= 0 && !decisions.takes(c.microbatch, c.action)) {
      lane_loops::hold_and_shift(lanes, c.common, 0, own.data(), peak.data());
    } else if (c.per_row == 0) {
      lane_loops::hold_and_shift(lanes, c.common, sign * round_up(c.fixed, kAllocatorBlock),
                                 own.data(), peak.data());
    } else {
      lane_loops::hold_and_change(lanes, c.common, rows.at(c.microbatch, c.moe_layer), c.fixed,
                                  c.per_row, sign, own.data(), peak.data());
    }
  }
  for (std::size_t l = 0; l < lanes; ++l) peak[l] = std::max(peak[l], own[l] + last_common_);
}

}  // namespace tidemark
