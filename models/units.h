// Quantities and ids as types, so that bytes, counts and times cannot be mixed up.
//
// Sizes are signed 64-bit bytes (deltas are sizes too), times are 64-bit nanoseconds. Doubles live
// inside one cost formula and are rounded once, by `round_up_ns`. GiB = 2^30, MiB = 2^20, GB =
// 10^9.
#pragma once

#include <chrono>
#include <cmath>
#include <compare>
#include <cstdint>

namespace tidemark {

// A number with a dimension. Allowed: what keeps the dimension, scaling by a plain integer, and the
// ratio of two equal dimensions.
template <class Tag>
struct Quantity {
  std::int64_t value = 0;

  constexpr Quantity() = default;
  constexpr explicit Quantity(std::int64_t v) : value(v) {}

  friend constexpr auto operator<=>(Quantity, Quantity) = default;
  friend constexpr Quantity operator+(Quantity a, Quantity b) {
    return Quantity(a.value + b.value);
  }
  friend constexpr Quantity operator-(Quantity a, Quantity b) {
    return Quantity(a.value - b.value);
  }
  friend constexpr Quantity operator-(Quantity a) { return Quantity(-a.value); }
  friend constexpr Quantity operator*(Quantity a, std::int64_t k) { return Quantity(a.value * k); }
  friend constexpr Quantity operator*(std::int64_t k, Quantity a) { return a * k; }
  friend constexpr Quantity operator/(Quantity a, std::int64_t k) { return Quantity(a.value / k); }
  constexpr Quantity& operator+=(Quantity o) { return *this = *this + o; }
  constexpr Quantity& operator-=(Quantity o) { return *this = *this - o; }
};

using Bytes = Quantity<struct BytesTag>;

constexpr Bytes kKiB{1 << 10};
constexpr Bytes kMiB{1 << 20};
constexpr Bytes kGiB{std::int64_t{1} << 30};

// The caching allocator rounds every request up to it.
constexpr std::int64_t kAllocatorBlock = 512;

constexpr double to_mib(Bytes b) { return static_cast<double>(b.value) / (1 << 20); }
constexpr double to_gib(Bytes b) { return static_cast<double>(b.value) / (std::int64_t{1} << 30); }

// Floating-point operations. One iteration of a large job exceeds 2^63.
__extension__ using Flops = __int128;

constexpr std::int64_t kPsPerNs = 1000;

using SimDuration = std::chrono::duration<std::int64_t, std::nano>;

// The one crossing from a cost formula (seconds, double) into simulated time: rounded up, once.
inline SimDuration round_up_ns(double seconds) {
  return SimDuration(static_cast<std::int64_t>(std::ceil(seconds * 1e9)));
}

// An index into one table; no arithmetic.
template <class Tag>
struct Id {
  std::int32_t value = -1;

  constexpr Id() = default;
  constexpr explicit Id(std::int64_t v) : value(static_cast<std::int32_t>(v)) {}
  friend constexpr auto operator<=>(Id, Id) = default;
  constexpr bool valid() const { return value >= 0; }
  constexpr std::size_t index() const { return static_cast<std::size_t>(value); }
};

// Rounds up to a multiple. Requires: unit > 0, value >= 0.
constexpr std::int64_t round_up(std::int64_t value, std::int64_t unit) {
  return (value + unit - 1) / unit * unit;
}

constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

}  // namespace tidemark
