// Allocated bytes of the lanes of one stage over an iteration: the memory sequence replayed with
// the rows each lane receives. Bytes are the allocator's blocks (512-byte multiples); what lives
// between iterations comes on top, see resident_memory.h.
#pragma once

#include <cstdint>
#include <vector>

#include "models/operator_graph.h"
#include "models/units.h"
#include "sim/memory_sequence.h"
#include "traces/lane_rows.h"

namespace tidemark {

struct LanePeak {
  Bytes bytes;              // activations and temporaries, with what the iteration before left
  Bytes first_iteration;    // the same without a previous iteration
  std::int64_t event = -1;  // index in the sequence of the (first) peak; -1: at the start
};

struct StageMemory {
  std::vector<LanePeak> lanes;
  Bytes carried_over;  // lane 0: live after the iteration, beside the resident memory
};

StageMemory profile_memory(const Job& job, const OperatorGraph& graph,
                           const MemorySequence& sequence, const LaneRows& rows);

// What lane `lane` has allocated right after each event of the sequence.
std::vector<Bytes> allocated_after_events(const Job& job, const OperatorGraph& graph,
                                          const MemorySequence& sequence, const LaneRows& rows,
                                          std::int64_t lane);

// One storage (or several of one name) live at a moment.
struct LiveStorage {
  std::string name;
  std::int32_t layer = -1;
  std::int64_t copies = 0;  // microbatches that hold it
  Bytes bytes;              // together
};

// What lane `lane` holds right after event `event`, largest first; ties by layer, then name.
std::vector<LiveStorage> live_storages(const Job& job, const OperatorGraph& graph,
                                       const MemorySequence& sequence, const LaneRows& rows,
                                       std::int64_t lane, std::int64_t event);

}  // namespace tidemark
