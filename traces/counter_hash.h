// Random numbers as a pure function of a key and an index, so that any thread may draw any of them
// in any order. Source: SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number
// Generators, OOPSLA'14), addressed by counter.
#pragma once

#include <cstdint>

namespace tidemark {

constexpr std::uint64_t mix_bits(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

// A stream of 64-bit numbers.
class HashStream {
 public:
  constexpr explicit HashStream(std::uint64_t key) : key_(key) {}

  // The stream of a purpose, iteration, layer, ...: `inner` streams of different values are
  // unrelated.
  constexpr HashStream inner(std::int64_t value) const {
    return HashStream(mix_bits(key_ ^ mix_bits(static_cast<std::uint64_t>(value) + kStep)));
  }

  constexpr std::uint64_t bits(std::int64_t index) const {
    return mix_bits(key_ + (static_cast<std::uint64_t>(index) + 1) * kStep);
  }
  // In [0, 1).
  constexpr double uniform(std::int64_t index) const {
    return static_cast<double>(bits(index) >> 11) * 0x1p-53;
  }
  // In [0, bound), by the high part of a product. Requires: 0 < bound < 2^31.
  constexpr std::int64_t below(std::int64_t index, std::int64_t bound) const {
    return static_cast<std::int64_t>(((bits(index) >> 32) * static_cast<std::uint64_t>(bound)) >>
                                     32);
  }

 private:
  static constexpr std::uint64_t kStep = 0x9e3779b97f4a7c15;  // 2^64 / golden ratio
  std::uint64_t key_;
};

}  // namespace tidemark
