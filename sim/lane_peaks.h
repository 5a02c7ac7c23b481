// Peak allocated bytes of all lanes of a stage, for whole runs: the stage's memory sequence
// compiled once, evaluated for any routing.
//
// Between two events that differ from lane to lane, only the most that all lanes hold alike
// matters. So a sequence becomes a list of changes: what lanes hold alike at most until then, and
// by how much each lane then changes. Equal to profile_memory (tests/property), without the moment.
#pragma once

#include <cstdint>
#include <span>

#include "models/large_vector.h"
#include "models/operator_graph.h"
#include "sim/decisions.h"
#include "sim/memory_sequence.h"
#include "traces/lane_rows.h"

namespace tidemark {

class LanePeaks {
 public:
  LanePeaks(const Job& job, const OperatorGraph& graph, const MemorySequence& sequence);

  // `peak`: [lane], activations and temporaries with what the iteration before left behind.
  // `own`: [lane], overwritten.
  void evaluate(const LaneRows& rows, const StageDecisions& decisions, std::span<std::int64_t> own,
                std::span<std::int64_t> peak) const;

 private:
  struct Change {
    std::int64_t common = 0;  // most that all lanes hold alike since the last change
    std::int64_t fixed = 0;   // of the storage that comes or goes: fixed + per_row * rows
    std::int64_t per_row = 0;
    std::int32_t microbatch = 0;
    std::int32_t moe_layer = 0;
    std::int32_t action = -1;
    bool allocates = false;
  };
  LargeVector<Change> changes_;
  std::int64_t last_common_ = 0;  // after the last change
};

}  // namespace tidemark
