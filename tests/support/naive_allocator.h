// PyTorch's caching allocator once more, over plain lists that are searched from end to end: what
// sim/caching_allocator.h must agree with. Shares no code with it.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

namespace tidemark {

class NaiveAllocator {
 public:
  struct Options {
    std::int64_t limit = std::numeric_limits<std::int64_t>::max();
    std::int64_t max_split = std::numeric_limits<std::int64_t>::max();
    std::int64_t collect_above = std::numeric_limits<std::int64_t>::max();
    std::int64_t divisions = 0;
    bool expandable = false;
  };

  explicit NaiveAllocator(Options options) : options_(options) {}

  // Returns: an id, counted from 0; -1 when out of memory.
  int allocate(std::int64_t bytes, int stream);
  void retire(int id);
  void reuse(int id);

  std::int64_t allocated() const;
  std::int64_t reserved() const;

 private:
  enum class State { kFree, kUsed, kRetired, kUnmapped };
  struct Block {
    std::int64_t size = 0;
    State state = State::kFree;
    int id = -1;
    std::int64_t age = 0;  // requests of its pool since it became free
  };
  struct Segment {  // in the order of their addresses
    int stream = 0;
    bool small = false;
    std::vector<Block> blocks;
  };
  struct Place {
    std::size_t segment = 0;
    std::size_t block = 0;
  };

  std::int64_t round(std::int64_t bytes) const;
  std::optional<Place> best_fit(std::int64_t size, int stream, bool small) const;
  std::optional<Place> new_segment(std::int64_t size, int stream, bool small);
  std::optional<Place> new_pages(std::int64_t size, int stream, bool small);
  void collect();
  bool release_oversize(std::int64_t size, int stream);
  void release_all();
  void merge(Segment& segment);

  Options options_;
  std::vector<Segment> segments_;
  int next_ = 0;
};

}  // namespace tidemark
