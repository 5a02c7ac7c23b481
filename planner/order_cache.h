// Orders of slots that look alike are found once. Two slots share an order when they have the same
// operators and constraints, durations in the same buckets and memory in the same buckets:
//
// - a duration counts as its leading bits, rounded down, so the bound of the bucket bounds every
//   slot in it;
// - each chain's running sum of memory, and each floating operator's, is rounded up to a unit, what
//   the limit leaves is rounded down: an order within the bucket's memory is within that of every
//   slot in it, and roundings do not add up along a chain.
//
// Coarse buckets cost little: on random slots of 62 operators three bits make them 0.1 to 0.3 %
// longer, two bits 0.8 %, one bit 4 %. But every operator must fall into its bucket: where each
// varies by itself by more than about a hundredth, few slots share.
//
// A shared order is always legal, and it depends on the bucket alone: what was asked before, how
// much is remembered and how many threads ask cannot change it. Where rounded memory leaves no
// order the slot is solved as it is.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "planner/interleaver.h"

namespace tidemark {

struct Bucketing {
  std::int32_t duration_bits = 3;  // 4 to 7 times a power of two: less than a fifth is cut off
  std::int32_t byte_shift = 20;    // the unit of memory is 2^byte_shift bytes
};

class OrderCache {
 public:
  // Forgets everything when it would hold more than `capacity` orders.
  explicit OrderCache(OrderLimit limit, Bucketing bucketing = {}, std::size_t capacity = 1 << 16)
      : limit_(limit), bucketing_(bucketing), capacity_(capacity) {}

  // The makespan and the bound are those of this problem, from its own durations. Returns: lives
  // until the next call. Requires: a validated problem.
  const StreamOrder& order(const SlotProblem& problem);

  std::int64_t hits() const { return hits_; }
  std::int64_t misses() const { return misses_; }

 private:
  using Key = std::vector<std::int64_t>;
  struct Hash {
    using is_transparent = void;
    std::size_t operator()(std::span<const std::int64_t> words) const;
  };
  struct Equal {
    using is_transparent = void;
    bool operator()(std::span<const std::int64_t> a, std::span<const std::int64_t> b) const;
  };

  Interleaver interleaver_;
  OrderLimit limit_;
  Bucketing bucketing_;
  std::size_t capacity_;
  std::unordered_map<Key, StreamOrder, Hash, Equal> orders_;
  Key key_;  // scratch
  SlotGraph graph_;
  std::vector<std::int64_t> ends_;
  StreamOrder result_;
  std::int64_t hits_ = 0;
  std::int64_t misses_ = 0;
};

// The problem whose order all problems of its bucket share.
SlotProblem bucket_of(const SlotProblem& problem, Bucketing bucketing);

}  // namespace tidemark
