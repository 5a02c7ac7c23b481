// Random small jobs and routings for the property tests, each from one printed seed.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>

#include "models/job.h"
#include "traces/routing.h"

namespace tidemark {

// splitmix64: the same numbers on every machine, unlike the distributions of <random>.
class Rng {
 public:
  explicit Rng(std::uint64_t seed) : state_(seed) {}

  std::uint64_t next() {
    std::uint64_t z = (state_ += 0x9e3779b97f4a7c15ULL);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
    return z ^ (z >> 31);
  }
  // From 0 to n - 1. Requires: n > 0.
  std::int64_t below(std::int64_t n) {
    return static_cast<std::int64_t>(next() % static_cast<std::uint64_t>(n));
  }
  // From low to high, both included.
  std::int64_t between(std::int64_t low, std::int64_t high) { return low + below(high - low + 1); }
  bool coin() { return below(2) == 1; }
  template <class T>
  T pick(std::initializer_list<T> choices) {
    return choices.begin()[below(static_cast<std::int64_t>(choices.size()))];
  }

 private:
  std::uint64_t state_;
};

// A job that `validate` accepts: up to four stages of one or two layers, up to 16 lanes a stage,
// dense or with experts or both, every parallelism and every option that changes memory or time.
Job random_job(std::uint64_t seed);

// The same under one of the schedules whose weight gradients run as slots of their own, on two to
// four stages.
Job random_scheduled_job(std::uint64_t seed);

// Counts that a router could produce: all rows of the unit, over experts whose popularity differs
// by up to 2^8; balanced where the inputs of experts are padded.
RoutingCounts random_routing(const Job& job, std::uint64_t seed);

// What a failing test prints: the seed and the job as JSON.
std::string describe(const Job& job, std::uint64_t seed);

}  // namespace tidemark
