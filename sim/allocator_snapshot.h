// What PyTorch's memory snapshot (torch.cuda.memory._snapshot) would show of an emulated card: its
// segments with their blocks, and the trace of allocator events that led there.
// Source: torch/csrc/cuda/Module.cpp, THCPModule_memorySnapshot; its types in torch/cuda/memory.py.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "sim/caching_allocator.h"

namespace tidemark {

// What a block holds.
struct BlockOwner {
  std::string name;
  std::int32_t layer = -1;       // -1: outside layers
  std::int32_t microbatch = -1;  // -1: resident, or left by the iteration before
  bool resident = false;         // held between iterations
};

enum class BlockState { kAllocated, kAwaitingFree, kFree };  // awaiting: another stream's work

struct SnapshotBlock {
  std::int64_t address = 0;
  std::int64_t size = 0;
  std::int64_t requested = 0;
  BlockState state = BlockState::kFree;
  std::int32_t owner = -1;  // of AllocatorSnapshot::owners; -1: free
};

struct SnapshotSegment {
  int stream = 0;
  bool small = false;
  std::vector<SnapshotBlock> blocks;  // by address; they fill it

  std::int64_t address() const { return blocks.front().address; }
  std::int64_t size() const { return blocks.back().address + blocks.back().size - address(); }
};

enum class AllocatorAction {
  kAlloc,
  kFreeRequested,
  kFreeCompleted,
  kSegmentAlloc,
  kSegmentFree,
  kSegmentMap,
  kSegmentUnmap
};

struct AllocatorEvent {
  AllocatorAction action = AllocatorAction::kAlloc;
  std::int64_t address = 0;
  std::int64_t size = 0;  // as requested; of segments: their own
  int stream = 0;
  std::int32_t owner = -1;  // -1: of segments
};

struct AllocatorSnapshot {
  bool expandable = false;
  std::vector<BlockOwner> owners;
  std::vector<SnapshotSegment> segments;  // by address
  std::vector<AllocatorEvent> trace;

  std::int64_t reserved() const;
  std::int64_t allocated() const;
};

// Follows an allocator from its first allocation on.
class SnapshotRecorder {
 public:
  explicit SnapshotRecorder(CachingAllocator& allocator);
  SnapshotRecorder(const SnapshotRecorder&) = delete;  // the allocator refers to it

  void allocated(CachingAllocator::Handle handle, std::int64_t requested, BlockOwner owner);
  void retired(CachingAllocator::Handle handle);
  void reused(CachingAllocator::Handle handle);  // before the allocator merges it
  void forget_trace() { trace_.clear(); }

  AllocatorSnapshot take() const;

 private:
  struct Held {
    std::int64_t requested = 0;
    std::int32_t owner = -1;
    bool retired = false;
  };
  void trace(AllocatorAction action, CachingAllocator::Handle handle);
  Held& at(CachingAllocator::Handle handle);

  CachingAllocator& allocator_;
  std::vector<BlockOwner> owners_;
  std::vector<Held> held_;  // [handle]
  std::vector<AllocatorEvent> trace_;
};

}  // namespace tidemark
