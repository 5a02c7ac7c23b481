// An emulated card as the memory snapshot that pytorch.org/memory_viz opens: what
// torch.cuda.memory._dump_snapshot writes.
#pragma once

#include <ostream>

#include <nlohmann/json_fwd.hpp>

#include "sim/allocator_snapshot.h"

namespace tidemark {

// {"segments": [{..., "blocks": [...]}], "device_traces": [[...]]}; the keys are PyTorch's. Where
// it has Python frames, one frame stands for what a block holds: layer and microbatch, then the
// name.
nlohmann::ordered_json memory_snapshot_json(const AllocatorSnapshot& snapshot);

// As a pickle, the only form that the viewer reads.
void write_memory_snapshot(std::ostream& out, const AllocatorSnapshot& snapshot);

}  // namespace tidemark
