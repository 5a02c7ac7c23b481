#include "sim/caching_allocator.h"

#include <algorithm>
#include <bit>
#include <cstdlib>

namespace tidemark {
namespace {

constexpr std::int64_t kSmallRequest = 1 << 20;
constexpr std::int64_t kSmallSegment = 2 << 20;  // also the pages of a small expandable segment
constexpr std::int64_t kMinLargeRequest = 10 << 20;
constexpr std::int64_t kLargeSegment = 20 << 20;
constexpr std::int64_t kSegmentUnit = 2 << 20;
constexpr std::int64_t kAddressSpace = kLargeSegment << 20;  // of an expandable segment

constexpr std::int64_t page_size(std::int32_t pool) {
  return pool % 2 == 1 ? kSmallSegment : kLargeSegment;
}

}  // namespace

CachingAllocator::CachingAllocator(Bytes limit, const AllocatorOptions& options, Bytes capacity)
    : limit_(limit.value),
      max_split_size_(options.max_split_size_mb ? *options.max_split_size_mb * kMiB.value
                                                : kNoLimit.value),
      collect_above_(kNoLimit.value),
      divisions_(options.roundup_power2_divisions),
      expandable_(options.expandable_segments) {
  if (options.garbage_collection_threshold > 0) {
    collect_above_ = static_cast<std::int64_t>(options.garbage_collection_threshold *
                                               static_cast<double>(capacity.value));
  }
}

CachingAllocator::Handle CachingAllocator::allocate(std::int64_t bytes, int stream) {
  const std::int64_t size = rounded(bytes);
  const std::int32_t pool = 2 * stream + (size <= kSmallRequest ? 1 : 0);
  if (std::ssize(pools_) <= pool) pools_.resize(static_cast<std::size_t>(2 * (stream + 1)));
  if (pool % 2 == 0) ++large_requests_;
  std::size_t position = find_free(size, pool);
  if (position == kNone) position = add_memory(size, pool);
  if (position == kNone) return kOutOfMemory;
  const Handle handle = take(position, size, pool);
  allocated_ += at(handle).size;
  peak_allocated_ = std::max(peak_allocated_, allocated_);
  return handle;
}

void CachingAllocator::reuse(Handle handle) { make_free(handle); }

std::vector<CachingAllocator::Segment> CachingAllocator::segments() const {
  std::vector<Segment> out;
  for (Handle first = 0; first < std::ssize(blocks_); ++first) {
    const Block& head = at(first);
    const bool follows = head.previous >= 0 && at(head.previous).mapped;
    if (head.size == 0 || !head.mapped || follows) continue;
    Segment& segment = out.emplace_back(Segment{head.pool / 2, head.small(), {}});
    for (Handle h = first; h >= 0 && at(h).mapped; h = at(h).next) {
      segment.blocks.push_back({h, at(h).address, at(h).size, at(h).free});
    }
  }
  std::ranges::sort(out, {}, [](const Segment& s) { return s.blocks.front().address; });
  return out;
}

// --- blocks ----------------------------------------------------------------------------------

CachingAllocator::Handle CachingAllocator::new_block(const Block& block) {
  if (unused_.empty()) {
    blocks_.push_back(block);
    return static_cast<Handle>(blocks_.size()) - 1;
  }
  const Handle handle = unused_.back();
  unused_.pop_back();
  at(handle) = block;
  return handle;
}

void CachingAllocator::link_after(Handle left, Handle right) {
  at(right).previous = left;
  at(right).next = at(left).next;
  if (at(left).next >= 0) at(at(left).next).previous = right;
  at(left).next = right;
}

void CachingAllocator::absorb_next(Handle handle) {
  const Handle next = at(handle).next;
  at(handle).size += at(next).size;
  at(handle).next = at(next).next;
  if (at(handle).next >= 0) at(at(handle).next).previous = handle;
  at(next).size = 0;
  unused_.push_back(next);
}

std::size_t CachingAllocator::make_free(Handle handle) {
  FreeBlocks& free = pool(at(handle).pool).free;
  at(handle).free = true;
  at(handle).waiting_since = large_requests_;
  const Handle next = at(handle).next;
  const Handle previous = at(handle).previous;
  const bool joins_next = mergeable(next, true);
  const FreeBlock next_entry = joins_next ? entry(next) : FreeBlock{};
  if (joins_next) absorb_next(handle);
  if (!mergeable(previous, true)) {
    if (!joins_next) return free.insert(entry(handle));
    return free.grow(free.find(next_entry), entry(handle));
  }
  if (joins_next) free.erase(free.find(next_entry));
  const std::size_t position = free.find(entry(previous));
  absorb_next(previous);
  at(previous).waiting_since = large_requests_;
  return free.grow(position, entry(previous));
}

// --- requests --------------------------------------------------------------------------------

std::int64_t CachingAllocator::rounded(std::int64_t bytes) const {
  if (divisions_ <= 1 || bytes <= kAllocatorBlock * divisions_)
    return round_up(bytes, kAllocatorBlock);
  const auto floor = static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(bytes)));
  return round_up(bytes, floor / divisions_);
}

std::size_t CachingAllocator::find_free(std::int64_t size, std::int32_t pool) const {
  const FreeBlocks& free = pools_[static_cast<std::size_t>(pool)].free;
  std::size_t at = free.first_of_at_least(size);
  if (at == free.size()) return kNone;
  if (expandable_) {
    // A block that can grow counts as large as it can grow.
    while (at + 1 < free.size() &&
           expandable_size(free[at + 1].handle) < expandable_size(free[at].handle)) {
      ++at;
    }
  }
  const bool oversize = size < max_split_size_ && free[at].size >= max_split_size_;
  const bool loose = size >= max_split_size_ && free[at].size >= size + kLargeSegment;
  return oversize || loose ? kNone : at;
}

CachingAllocator::Handle CachingAllocator::take(std::size_t position, std::int64_t size,
                                                std::int32_t pool_index) {
  FreeBlocks& free = pool(pool_index).free;
  const Handle handle = free[position].handle;
  at(handle).free = false;
  const std::int64_t rest = at(handle).size - size;
  const bool splits = at(handle).small() || expandable_
                          ? rest >= kAllocatorBlock
                          : rest > kSmallRequest && size < max_split_size_;
  if (!splits) {
    free.erase(position);
    return handle;
  }
  const Handle right = new_block({.size = rest,
                                  .address = at(handle).address + size,
                                  .pool = pool_index,
                                  .free = true,
                                  .waiting_since = large_requests_});
  link_after(handle, right);
  at(handle).size = size;
  free.shrink(position, entry(right));
  return handle;
}

std::size_t CachingAllocator::add_memory(std::int64_t size, std::int32_t pool) {
  collect_garbage();
  std::size_t position = add_segment(size, pool);
  if (position == kNone && release_oversize(size, pool)) position = add_segment(size, pool);
  if (position == kNone) {
    ++alloc_retries_;
    release_cached_blocks();
    position = add_segment(size, pool);
  }
  return position;
}

std::size_t CachingAllocator::add_segment(std::int64_t size, std::int32_t pool_index) {
  if (expandable_) return add_pages(size, pool_index);
  std::int64_t segment = kSmallSegment;
  if (size > kSmallRequest) {
    segment = size < kMinLargeRequest ? kLargeSegment : round_up(size, kSegmentUnit);
  }
  if (reserved_ + segment > limit_) return kNone;
  count_reserved(segment, next_address_, pool_index);
  const Handle handle = new_block({.size = segment, .address = next_address_, .pool = pool_index});
  next_address_ += segment;
  return make_free(handle);
}

// --- expandable segments ---------------------------------------------------------------------

std::int64_t CachingAllocator::expandable_size(Handle handle) const {
  const Handle next = at(handle).next;
  return at(handle).size + (mergeable(next, false) ? at(next).size : 0);
}

std::size_t CachingAllocator::add_pages(std::int64_t size, std::int32_t pool_index) {
  Pool& p = pool(pool_index);
  if (p.unmapped.empty()) {
    p.unmapped.push_back(new_block({.size = kAddressSpace,
                                    .address = (pool_index + 1) * kAddressSpace,
                                    .pool = pool_index,
                                    .free = true,
                                    .mapped = false}));
  }
  // The lowest address at which free blocks and unmapped space together are large enough.
  Handle found = -1;
  for (std::size_t i = 0; found < 0; ++i) {
    Handle first = p.unmapped[i];
    if (mergeable(at(first).previous, true)) first = at(first).previous;
    std::int64_t space = 0;
    for (Handle h = first; h >= 0 && at(h).free && space < size; h = at(h).next) {
      space += at(h).size;
    }
    if (space >= size) found = first;
  }
  if (!at(found).mapped && !map(found, size)) return kNone;
  // What was mapped has joined its neighbours, under the handle of the first.
  while (at(found).size < size) {
    if (!map(at(found).next, size - at(found).size)) return kNone;
  }
  return p.free.find(entry(found));
}

bool CachingAllocator::map(Handle handle, std::int64_t size) {
  const std::int32_t pool_index = at(handle).pool;
  std::vector<Handle>& unmapped = pool(pool_index).unmapped;
  const std::int64_t bytes = round_up(std::min(size, at(handle).size), page_size(pool_index));
  if (reserved_ + bytes > limit_) return false;
  count_reserved(bytes, at(handle).address, pool_index);
  const auto listed = std::find(unmapped.begin(), unmapped.end(), handle);
  const std::int64_t rest = at(handle).size - bytes;
  if (rest > 0) {
    const Handle right = new_block({.size = rest,
                                    .address = at(handle).address + bytes,
                                    .pool = pool_index,
                                    .free = true,
                                    .mapped = false});
    link_after(handle, right);
    at(handle).size = bytes;
    *listed = right;
  } else {
    unmapped.erase(listed);
  }
  at(handle).mapped = true;
  make_free(handle);
  return true;
}

void CachingAllocator::unmap_free_pages(Handle handle) {
  const std::int32_t pool_index = at(handle).pool;
  const std::int64_t page = page_size(pool_index);
  const std::int64_t block_end = at(handle).address + at(handle).size;
  const std::int64_t begin = round_up(at(handle).address, page);
  const std::int64_t end = block_end / page * page;
  if (begin >= end) return;
  Pool& p = pool(pool_index);
  p.free.erase(p.free.find(entry(handle)));
  const auto part = [&](std::int64_t from, std::int64_t to, bool mapped) {
    const Handle right = new_block(
        {.size = to - from, .address = from, .pool = pool_index, .free = true, .mapped = mapped});
    link_after(handle, right);
    return right;
  };
  // handle -> unmapped pages -> rest
  if (end < block_end) p.free.insert(entry(part(end, block_end, true)));
  Handle pages = handle;
  if (at(handle).address < begin) {
    pages = part(begin, end, false);
    at(handle).size = begin - at(handle).address;
    p.free.insert(entry(handle));
  } else {
    at(handle).size = end - begin;
    at(handle).mapped = false;
  }
  count_reserved(begin - end, begin, pool_index);
  std::erase(p.unmapped, at(pages).next);
  if (mergeable(at(pages).next, false)) absorb_next(pages);
  if (mergeable(at(pages).previous, false)) {
    absorb_next(at(pages).previous);
    return;
  }
  const auto later =
      std::ranges::find_if(p.unmapped, [&](Handle h) { return at(h).address > at(pages).address; });
  p.unmapped.insert(later, pages);
}

void CachingAllocator::count_reserved(std::int64_t bytes, std::int64_t address, std::int32_t pool) {
  reserved_ += bytes;
  peak_reserved_ = std::max(peak_reserved_, reserved_);
  if (segment_changed_) segment_changed_({bytes > 0, address, std::abs(bytes), pool / 2});
}

// --- giving back -----------------------------------------------------------------------------

void CachingAllocator::give_back(std::size_t position, std::int32_t pool_index) {
  FreeBlocks& free = pool(pool_index).free;
  const Handle handle = free[position].handle;
  count_reserved(-at(handle).size, at(handle).address, pool_index);
  at(handle).size = 0;
  unused_.push_back(handle);
  free.erase(position);
}

void CachingAllocator::collect_garbage() {
  if (reserved_ <= collect_above_ || expandable_) return;
  const auto for_each_whole = [&](auto&& visit) {  // large segments that are free as a whole
    for (std::int32_t index = 0; index < std::ssize(pools_); index += 2) {
      const FreeBlocks& free = pool(index).free;
      for (std::size_t i = free.size(); i-- > 0;) {
        const Handle handle = free[i].handle;
        if (at(handle).whole_segment()) {
          visit(i, index, large_requests_ - at(handle).waiting_since);
        }
      }
    }
  };
  std::int64_t count = 0;
  std::int64_t waited = 0;
  for_each_whole([&](std::size_t, std::int32_t, std::int64_t wait) {
    ++count;
    waited += wait;
  });
  while (reserved_ > collect_above_ && count > 0) {
    const double mean = static_cast<double>(waited) / static_cast<double>(count);
    for_each_whole([&](std::size_t i, std::int32_t index, std::int64_t wait) {
      if (static_cast<double>(wait) < mean) return;
      --count;
      waited -= wait;
      give_back(i, index);
    });
  }
}

bool CachingAllocator::release_oversize(std::int64_t size, std::int32_t pool_index) {
  if (max_split_size_ == kNoLimit.value || expandable_) return false;
  const FreeBlocks& free = pool(pool_index).free;
  const std::int64_t wanted = std::max(size, max_split_size_);
  if (const std::size_t at = free.first_of_at_least(wanted); at < free.size()) {
    give_back(at, pool_index);
    return true;
  }
  std::int64_t released = 0;
  while (released < wanted && free.size() > 0 && free[free.size() - 1].size >= max_split_size_) {
    released += free[free.size() - 1].size;
    give_back(free.size() - 1, pool_index);
  }
  return released >= wanted;
}

void CachingAllocator::release_cached_blocks() {
  for (std::int32_t index = 0; index < std::ssize(pools_); ++index) {
    const FreeBlocks& free = pool(index).free;
    if (expandable_) {
      std::vector<Handle> handles;
      for (std::size_t i = 0; i < free.size(); ++i) handles.push_back(free[i].handle);
      for (const Handle handle : handles) unmap_free_pages(handle);
      continue;
    }
    for (std::size_t i = free.size(); i-- > 0;) {
      if (at(free[i].handle).whole_segment()) give_back(i, index);
    }
  }
}

}  // namespace tidemark
