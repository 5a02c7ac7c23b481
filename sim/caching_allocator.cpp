#include "sim/caching_allocator.h"

#include <algorithm>

namespace tidemark {
namespace {

constexpr std::int64_t kMinBlock = 512;
constexpr std::int64_t kSmallRequest = 1 << 20;
constexpr std::int64_t kSmallSegment = 2 << 20;
constexpr std::int64_t kMinLargeRequest = 10 << 20;
constexpr std::int64_t kLargeSegment = 20 << 20;
constexpr std::int64_t kSegmentUnit = 2 << 20;

}  // namespace

bool CachingAllocator::SmallestFirst::operator()(Handle a, Handle b) const {
  const Block& x = (*blocks)[static_cast<std::size_t>(a)];
  const Block& y = (*blocks)[static_cast<std::size_t>(b)];
  return x.size != y.size ? x.size < y.size : x.address < y.address;
}

CachingAllocator::CachingAllocator(Bytes limit, Bytes max_split_size)
    : probe_(new_block({.address = -1})),
      limit_(limit.value),
      max_split_size_(max_split_size.value) {}

CachingAllocator::Handle CachingAllocator::new_block(Block block) {
  if (unused_.empty()) {
    blocks_.push_back(block);
    return static_cast<Handle>(blocks_.size()) - 1;
  }
  const Handle handle = unused_.back();
  unused_.pop_back();
  at(handle) = block;
  return handle;
}

CachingAllocator::Handle CachingAllocator::allocate(std::int64_t bytes, int stream) {
  const std::int64_t size = round_up(bytes, kMinBlock);
  const std::int32_t pool = 2 * stream + (size <= kSmallRequest ? 1 : 0);
  while (std::ssize(pools_) < 2 * (stream + 1)) pools_.emplace_back(SmallestFirst{&blocks_});
  Handle handle = take_free(size, pool);
  if (handle == kOutOfMemory) handle = take_segment(size, pool);
  if (handle == kOutOfMemory) return handle;
  split(handle, size);
  at(handle).free = false;
  allocated_ += at(handle).size;
  peak_allocated_ = std::max(peak_allocated_, allocated_);
  return handle;
}

void CachingAllocator::release(Handle handle) {
  retire(handle);
  reuse(handle);
}

void CachingAllocator::reuse(Handle handle) {
  at(handle).free = true;
  const Handle next = at(handle).next;
  if (next >= 0 && at(next).free) {
    pool(at(next)).erase(next);
    absorb_next(handle);
  }
  const Handle previous = at(handle).previous;
  if (previous >= 0 && at(previous).free) {
    pool(at(previous)).erase(previous);
    absorb_next(previous);
    handle = previous;
  }
  pool(at(handle)).insert(handle);
}

CachingAllocator::Handle CachingAllocator::take_free(std::int64_t size, std::int32_t pool) {
  Pool& free_blocks = pools_[static_cast<std::size_t>(pool)];
  at(probe_).size = size;
  const auto found = free_blocks.lower_bound(probe_);
  if (found == free_blocks.end()) return kOutOfMemory;
  const Handle handle = *found;
  const std::int64_t found_size = at(handle).size;
  const bool oversize = size < max_split_size_ && found_size >= max_split_size_;
  const bool loose = size >= max_split_size_ && found_size >= size + kLargeSegment;
  if (oversize || loose) return kOutOfMemory;
  free_blocks.erase(found);
  return handle;
}

CachingAllocator::Handle CachingAllocator::take_segment(std::int64_t size, std::int32_t pool) {
  Block block{.address = next_address_, .pool = pool};
  std::int64_t segment = kSmallSegment;
  if (!block.small()) {
    segment = size < kMinLargeRequest ? kLargeSegment : round_up(size, kSegmentUnit);
  }
  if (reserved_ + segment > limit_) give_back_free_segments();
  if (reserved_ + segment > limit_) return kOutOfMemory;
  block.size = segment;
  const Handle handle = new_block(block);
  next_address_ += segment;
  reserved_ += segment;
  peak_reserved_ = std::max(peak_reserved_, reserved_);
  return handle;
}

void CachingAllocator::split(Handle handle, std::int64_t size) {
  const Block whole = at(handle);
  const std::int64_t rest = whole.size - size;
  if (whole.small() ? rest < kMinBlock : rest <= kSmallRequest || size >= max_split_size_) return;
  const Handle right = new_block({.size = rest,
                                  .address = whole.address + size,
                                  .previous = handle,
                                  .next = whole.next,
                                  .pool = whole.pool,
                                  .free = true});
  if (whole.next >= 0) at(whole.next).previous = right;
  at(handle).next = right;
  at(handle).size = size;
  pool(whole).insert(right);
}

void CachingAllocator::absorb_next(Handle handle) {
  const Handle next = at(handle).next;
  at(handle).size += at(next).size;
  at(handle).next = at(next).next;
  if (at(handle).next >= 0) at(at(handle).next).previous = handle;
  unused_.push_back(next);
}

void CachingAllocator::give_back_free_segments() {
  for (Pool& free_blocks : pools_) {
    for (auto it = free_blocks.begin(); it != free_blocks.end();) {
      const Block& block = at(*it);
      if (block.previous >= 0 || block.next >= 0) {
        ++it;
        continue;
      }
      reserved_ -= block.size;
      unused_.push_back(*it);
      it = free_blocks.erase(it);
    }
  }
}

}  // namespace tidemark
