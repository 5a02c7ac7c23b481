// Offloading a share of what a chunk's microbatch keeps for its backward to the host.
//
// Eligible: storages of at least 1 MiB that live from the chunk's forward into its backward, its
// received input among them. Order: contiguous ones first, then larger first, then as saved; all of
// it the other way round for a ratio above one half. Offloaded are the first ratio * sum bytes,
// rounded up to MiB:
//
//   |  whole  |  whole  |  border: offloaded . remainder  |  stays  |  stays  |
//
// The remainder is cloned on the card when the copy to the host begins; whole and border storages
// are freed when it ends. Bytes come back in one of two buffers that are kept for ever: whole
// storages become views of it, the border one is made anew and the remainder freed.
//
// Left out: storages saved through views count as one tensor, which the border may divide.
//
// Source: Megatron-Kwai (tag atc24ae) core/pipeline_parallel/offload.py.
#pragma once

#include <cstdint>
#include <vector>

#include "models/operator_graph.h"

namespace tidemark {

// Of one chunk; the same for each of its microbatches.
struct ChunkOffload {
  std::int64_t bytes = 0;        // that are copied; 0: nothing is offloaded
  std::vector<StorageId> whole;  // in the order of the copy
  StorageId border;              // invalid: none
  StorageId remainder;           // the part of `border` that stays
  StorageId reloaded_border;
};

// Appends the storages that offloading makes to the graph; no operator refers to them.
// Requires: 0 < ratio <= 1.
ChunkOffload plan_ratio_offload(OperatorGraph& graph, std::size_t chunk, double ratio);

// Bytes of the buffers of a stage's chunks: one only where whole storages are never reloaded, since
// then nothing refers to it when the next is needed.
std::vector<std::int64_t> reload_buffers(const std::vector<ChunkOffload>& chunks);

}  // namespace tidemark
