// An emulation of PyTorch's caching allocator on one device.
// Source: c10/cuda/CUDACachingAllocator.cpp (the rules are the same in c10/hip).
//
// - Requests are rounded up to 512 bytes.
// - Two pools a stream: small (requests up to 1 MiB) and large. A request takes the smallest free
//   block of its pool that holds it, the lowest address among equals.
// - Otherwise a segment is had from the device: 2 MiB for small requests, 20 MiB for requests below
//   10 MiB, else the request rounded up to 2 MiB.
// - The rest of a block becomes a free block if it is at least 512 bytes (small) or over 1 MiB
//   (large); otherwise it stays with the request: a tail, counted as allocated.
// - With a largest size to split (max_split_size_mb), blocks of at least that size are never split:
//   smaller requests do not take them, and a request of at least that size takes only one that is
//   less than 20 MiB larger, with its tail.
// - A freed block merges with free neighbours of its segment. One that another stream has used
//   (record_stream) counts as freed at once, but is reused only when that stream is done with it.
// - If the device has no room, segments that are free as a whole are given back, then it is tried
//   again.
//
//   segment:  [ a | free 3 MiB | b ]   free(a) -> [ free 5 MiB | b ]   request 4.5 MiB -> all 5 MiB
#pragma once

#include <cstdint>
#include <limits>
#include <set>
#include <vector>

#include "models/units.h"

namespace tidemark {

class CachingAllocator {
 public:
  using Handle = std::int32_t;
  static constexpr Handle kOutOfMemory = -1;

  static constexpr Bytes kNoLimit = Bytes(std::numeric_limits<std::int64_t>::max());

  // `limit`: what segments may take together.
  explicit CachingAllocator(Bytes limit = kNoLimit, Bytes max_split_size = kNoLimit);
  CachingAllocator(const CachingAllocator&) = delete;  // pools refer to blocks_
  CachingAllocator& operator=(const CachingAllocator&) = delete;

  // `stream`: the one whose pool serves the request, numbered from 0.
  // Requires: bytes > 0. Returns: kOutOfMemory if no segment can be had.
  Handle allocate(std::int64_t bytes, int stream = 0);
  // Frees a block: both of the following.
  void release(Handle handle);
  // The block no longer counts as allocated, but cannot be reused yet.
  void retire(Handle handle) { allocated_ -= at(handle).size; }
  // A retired block may be reused.
  void reuse(Handle handle);

  // PyTorch's counters: sums of blocks in use and of segments held, and their highest values.
  Bytes allocated() const { return Bytes(allocated_); }
  Bytes reserved() const { return Bytes(reserved_); }
  Bytes peak_allocated() const { return Bytes(peak_allocated_); }
  Bytes peak_reserved() const { return Bytes(peak_reserved_); }

 private:
  struct Block {
    std::int64_t size = 0;
    std::int64_t address = 0;  // order of segments, then of blocks within
    Handle previous = -1;      // neighbours of the same segment
    Handle next = -1;
    std::int32_t pool = 0;  // 2 * stream, + 1 if small
    bool free = false;

    bool small() const { return pool % 2 == 1; }
  };
  struct SmallestFirst {
    const std::vector<Block>* blocks;
    bool operator()(Handle a, Handle b) const;
  };
  using Pool = std::set<Handle, SmallestFirst>;

  Pool& pool(const Block& block) { return pools_[static_cast<std::size_t>(block.pool)]; }
  Block& at(Handle h) { return blocks_[static_cast<std::size_t>(h)]; }
  Handle new_block(Block block);
  Handle take_free(std::int64_t size, std::int32_t pool);
  Handle take_segment(std::int64_t size, std::int32_t pool);
  void split(Handle handle, std::int64_t size);
  // Joins a block with its right neighbour, which goes.
  void absorb_next(Handle handle);
  void give_back_free_segments();

  std::vector<Block> blocks_;
  std::vector<Handle> unused_;  // slots of blocks_
  std::vector<Pool> pools_;
  Handle probe_;  // a block that is only a key for searches
  std::int64_t limit_;
  std::int64_t max_split_size_;
  std::int64_t next_address_ = 0;
  std::int64_t allocated_ = 0;
  std::int64_t reserved_ = 0;
  std::int64_t peak_allocated_ = 0;
  std::int64_t peak_reserved_ = 0;
};

}  // namespace tidemark
