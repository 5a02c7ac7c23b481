// The free blocks of one pool, ordered by size, then address: PyTorch's BlockPool::blocks.
//
// A sorted array: a training step leaves tens to hundreds of blocks free at a time, over which
// shifting entries is faster than keeping a tree, and nothing is allocated once it has grown.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace tidemark {

struct FreeBlock {
  std::int64_t size = 0;
  std::int64_t address = 0;
  std::int32_t handle = -1;

  bool before(const FreeBlock& other) const {
    return size != other.size ? size < other.size : address < other.address;
  }
};

class FreeBlocks {
 public:
  std::size_t size() const { return blocks_.size(); }
  const FreeBlock& operator[](std::size_t i) const { return blocks_[i]; }

  // The smallest block of at least `size`, the lowest address among equals; size() if there is
  // none.
  std::size_t first_of_at_least(std::int64_t size) const {
    return first_that_is_not([size](const FreeBlock& b) { return b.size < size; });
  }

  // Returns: its position. Cost of all changes: linear in the entries between.
  std::size_t insert(const FreeBlock& block) {
    blocks_.emplace_back();
    return shift_down(blocks_.size() - 1, block);
  }
  void erase(std::size_t at) { blocks_.erase(blocks_.begin() + static_cast<std::ptrdiff_t>(at)); }

  // Requires: it is there.
  std::size_t find(const FreeBlock& block) const {
    return first_that_is_not([&](const FreeBlock& b) { return b.before(block); });
  }

  // A block in place of another: a smaller one (what a split leaves), or a larger (a merged one).
  std::size_t shrink(std::size_t at, const FreeBlock& block) { return shift_down(at, block); }
  std::size_t grow(std::size_t at, const FreeBlock& block) {
    for (; at + 1 < blocks_.size() && blocks_[at + 1].before(block); ++at) {
      blocks_[at] = blocks_[at + 1];
    }
    blocks_[at] = block;
    return at;
  }

 private:
  // Binary search. Steps by conditional moves: which way it goes cannot be predicted.
  template <class Below>
  std::size_t first_that_is_not(const Below& below) const {
    std::size_t low = 0;
    for (std::size_t left = blocks_.size(); left > 0;) {
      const std::size_t half = (left + 1) / 2;
      low += below(blocks_[low + half - 1]) ? half : 0;
      left -= half;
    }
    return low;
  }

  std::size_t shift_down(std::size_t at, const FreeBlock& block) {
    for (; at > 0 && block.before(blocks_[at - 1]); --at) blocks_[at] = blocks_[at - 1];
    blocks_[at] = block;
    return at;
  }

  std::vector<FreeBlock> blocks_;
};

}  // namespace tidemark
