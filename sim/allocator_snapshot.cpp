#include "sim/allocator_snapshot.h"

#include <utility>

namespace tidemark {

using Handle = CachingAllocator::Handle;

std::int64_t AllocatorSnapshot::reserved() const {
  std::int64_t sum = 0;
  for (const SnapshotSegment& segment : segments) sum += segment.size();
  return sum;
}

std::int64_t AllocatorSnapshot::allocated() const {
  std::int64_t sum = 0;
  for (const SnapshotSegment& segment : segments) {
    for (const SnapshotBlock& block : segment.blocks) {
      sum += block.state == BlockState::kAllocated ? block.size : 0;
    }
  }
  return sum;
}

SnapshotRecorder::SnapshotRecorder(CachingAllocator& allocator) : allocator_(allocator) {
  allocator.on_segment_change([this](const CachingAllocator::SegmentChange& change) {
    const bool pages = allocator_.expandable();
    const AllocatorAction held =
        pages ? AllocatorAction::kSegmentMap : AllocatorAction::kSegmentAlloc;
    const AllocatorAction gone =
        pages ? AllocatorAction::kSegmentUnmap : AllocatorAction::kSegmentFree;
    trace_.push_back({change.had ? held : gone, change.address, change.size, change.stream, -1});
  });
}

SnapshotRecorder::Held& SnapshotRecorder::at(Handle handle) {
  const auto index = static_cast<std::size_t>(handle);
  if (held_.size() <= index) held_.resize(index + 1);
  return held_[index];
}

void SnapshotRecorder::trace(AllocatorAction action, Handle handle) {
  const Held& held = at(handle);
  trace_.push_back(
      {action, allocator_.address(handle), held.requested, allocator_.stream(handle), held.owner});
}

void SnapshotRecorder::allocated(Handle handle, std::int64_t requested, BlockOwner owner) {
  owners_.push_back(std::move(owner));
  at(handle) = {requested, static_cast<std::int32_t>(owners_.size()) - 1, false};
  trace(AllocatorAction::kAlloc, handle);
}

void SnapshotRecorder::retired(Handle handle) {
  at(handle).retired = true;
  trace(AllocatorAction::kFreeRequested, handle);
}

void SnapshotRecorder::reused(Handle handle) { trace(AllocatorAction::kFreeCompleted, handle); }

AllocatorSnapshot SnapshotRecorder::take() const {
  AllocatorSnapshot out{allocator_.expandable(), owners_, {}, trace_};
  for (const CachingAllocator::Segment& segment : allocator_.segments()) {
    SnapshotSegment& copy =
        out.segments.emplace_back(SnapshotSegment{segment.stream, segment.small, {}});
    for (const CachingAllocator::SegmentBlock& block : segment.blocks) {
      SnapshotBlock& b = copy.blocks.emplace_back();
      b.address = block.address;
      b.size = block.size;
      if (block.free) continue;
      const Held& held = held_[static_cast<std::size_t>(block.handle)];
      b.requested = held.requested;
      b.state = held.retired ? BlockState::kAwaitingFree : BlockState::kAllocated;
      b.owner = held.owner;
    }
  }
  return out;
}

}  // namespace tidemark
