// An emulation of PyTorch's caching allocator on one device.
// Source: c10/cuda/CUDACachingAllocator.cpp, pytorch/pytorch 001074d2 (before 2.5; the rules are
// the same in c10/hip, but for expandable segments), function names in brackets.
//
// - Requests are rounded up to 512 bytes, or, with roundup_power2_divisions of N, to one of N sizes
//   between two powers of two [round_size].
// - Two pools a stream: small (requests up to 1 MiB) and large. A request takes the smallest free
//   block of its pool that holds it, the lowest address among equals [get_free_block].
// - Otherwise a segment is had from the device: 2 MiB for small requests, 20 MiB for requests below
//   10 MiB, else the request rounded up to 2 MiB [get_allocation_size].
// - The rest of a block becomes a free block if it is at least 512 bytes (small) or over 1 MiB
//   (large); otherwise it stays with the request: a tail, counted as allocated [should_split].
// - With a largest size to split (max_split_size_mb), blocks of at least that size are never split:
//   smaller requests do not take them, and a request of at least that size takes only one that is
//   less than 20 MiB larger, with its tail.
// - A freed block merges with free neighbours of its segment. One that another stream has used
//   (record_stream) counts as freed at once, but is reused only when that stream is done with it.
// - Above the garbage-collection threshold, before a segment is had, large segments that are free
//   as a whole go back: those whose blocks have waited for more requests than the mean, until
//   reserved is below the threshold [garbage_collect_cached_blocks].
// - If the device has no room, free blocks too large to split are given back, if there is such a
//   limit and they suffice [release_available_cached_blocks]; then all segments that are free as a
//   whole [release_cached_blocks]; each time it is tried again.
// - With expandable segments a pool has one segment, which grows at its end by pages of 2 MiB
//   (small) or 20 MiB (large); all rests of 512 bytes are split off; given back are free pages
//   [try_allocate_expandable_block, unmap_block]. Address space is taken not to run out.
//
//   segment:  [ a | free 3 MiB | b ]   free(a) -> [ free 5 MiB | b ]   request 4.5 MiB -> all 5 MiB
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <utility>
#include <vector>

#include "models/allocator_options.h"
#include "models/units.h"
#include "sim/free_blocks.h"

namespace tidemark {

class CachingAllocator {
 public:
  using Handle = std::int32_t;
  static constexpr Handle kOutOfMemory = -1;

  static constexpr Bytes kNoLimit = Bytes(std::numeric_limits<std::int64_t>::max());

  // `limit`: what segments may take together. `capacity`: of the card, for the threshold of garbage
  // collection.
  explicit CachingAllocator(Bytes limit = kNoLimit, const AllocatorOptions& options = {},
                            Bytes capacity = kNoLimit);

  // `stream`: the one whose pool serves the request, numbered from 0.
  // Requires: bytes > 0. Returns: kOutOfMemory if no segment can be had.
  Handle allocate(std::int64_t bytes, int stream = 0);
  // Frees a block: both of the following.
  void release(Handle handle) {
    retire(handle);
    reuse(handle);
  }
  // The block no longer counts as allocated, but cannot be reused yet.
  void retire(Handle handle) { allocated_ -= at(handle).size; }
  // A retired block may be reused.
  void reuse(Handle handle);

  // PyTorch's counters: sums of blocks in use and of segments held, and their highest values.
  Bytes allocated() const { return Bytes(allocated_); }
  Bytes reserved() const { return Bytes(reserved_); }
  Bytes peak_allocated() const { return Bytes(peak_allocated_); }
  Bytes peak_reserved() const { return Bytes(peak_reserved_); }
  // How often cached blocks were given back since the device had no room (num_alloc_retries).
  std::int64_t alloc_retries() const { return alloc_retries_; }

  std::int64_t address(Handle handle) const { return at(handle).address; }
  int stream(Handle handle) const { return at(handle).pool / 2; }
  bool expandable() const { return expandable_; }

  // A segment (of expandable ones: pages) had from the device, or given back.
  struct SegmentChange {
    bool had = false;
    std::int64_t address = 0;
    std::int64_t size = 0;
    int stream = 0;
  };
  void on_segment_change(std::function<void(const SegmentChange&)> listener) {
    segment_changed_ = std::move(listener);
  }

  struct SegmentBlock {
    Handle handle = -1;
    std::int64_t address = 0;
    std::int64_t size = 0;
    bool free = false;
  };
  // A contiguous range held from the device.
  struct Segment {
    int stream = 0;
    bool small = false;
    std::vector<SegmentBlock> blocks;  // by address; they fill it
  };
  // By address.
  std::vector<Segment> segments() const;

 private:
  struct Block {
    std::int64_t size = 0;     // 0: the slot is unused
    std::int64_t address = 0;  // order of segments, then of blocks within
    Handle previous = -1;      // neighbours of the same segment
    Handle next = -1;
    std::int32_t pool = 0;  // 2 * stream, + 1 if small
    bool free = false;
    bool mapped = true;              // false: address space of an expandable segment
    std::int64_t waiting_since = 0;  // large_requests_ when it became free

    bool small() const { return pool % 2 == 1; }
    bool whole_segment() const { return previous < 0 && next < 0; }
  };
  struct Pool {
    FreeBlocks free;
    std::vector<Handle> unmapped;  // of the expandable segment, by address
  };
  static constexpr std::size_t kNone = static_cast<std::size_t>(-1);

  Block& at(Handle h) { return blocks_[static_cast<std::size_t>(h)]; }
  const Block& at(Handle h) const { return blocks_[static_cast<std::size_t>(h)]; }
  Pool& pool(std::int32_t index) { return pools_[static_cast<std::size_t>(index)]; }
  FreeBlock entry(Handle h) const { return {at(h).size, at(h).address, h}; }
  bool mergeable(Handle h, bool mapped) const {
    return h >= 0 && at(h).free && at(h).mapped == mapped;
  }
  Handle new_block(const Block& block);
  void link_after(Handle left, Handle right);

  std::int64_t rounded(std::int64_t bytes) const;
  // These return a position among the free blocks of the pool, or kNone.
  std::size_t find_free(std::int64_t size, std::int32_t pool) const;
  std::size_t add_memory(std::int64_t size, std::int32_t pool);
  std::size_t add_segment(std::int64_t size, std::int32_t pool);
  std::size_t add_pages(std::int64_t size, std::int32_t pool);
  // Takes the first `size` bytes of a free block, or all of it.
  Handle take(std::size_t position, std::int64_t size, std::int32_t pool);
  std::size_t make_free(Handle handle);
  // Joins a block with its right neighbour, which goes.
  void absorb_next(Handle handle);

  // Backs at least the first `size` bytes of unmapped space (or all of it) with pages.
  bool map(Handle handle, std::int64_t size);
  void unmap_free_pages(Handle handle);
  std::int64_t expandable_size(Handle handle) const;

  // Counts memory had (or, negative, given back) at an address.
  void count_reserved(std::int64_t bytes, std::int64_t address, std::int32_t pool);
  void collect_garbage();
  bool release_oversize(std::int64_t size, std::int32_t pool);
  void release_cached_blocks();
  void give_back(std::size_t position, std::int32_t pool);

  std::function<void(const SegmentChange&)> segment_changed_;
  std::vector<Block> blocks_;
  std::vector<Handle> unused_;  // slots of blocks_
  std::vector<Pool> pools_;
  std::int64_t limit_;
  std::int64_t max_split_size_;
  std::int64_t collect_above_;
  std::int64_t divisions_;
  bool expandable_;
  std::int64_t next_address_ = 0;
  std::int64_t large_requests_ = 0;
  std::int64_t allocated_ = 0;
  std::int64_t reserved_ = 0;
  std::int64_t peak_allocated_ = 0;
  std::int64_t peak_reserved_ = 0;
  std::int64_t alloc_retries_ = 0;
};

}  // namespace tidemark
