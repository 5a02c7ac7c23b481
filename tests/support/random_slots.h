// Random slots for the tests of the interleaver, each from one seed.
#pragma once

#include <cstdint>

#include "planner/slot_order.h"
#include "tests/support/random_jobs.h"

namespace tidemark {

// A chain of `size` operators on streams 0 to `streams` - 1; durations up to `longest`, some of
// them zero. With memory: each takes bytes, and gives back some or none of what its chain holds.
Chain random_chain(Rng& rng, const char* name, std::int64_t size, std::int64_t streams,
                   std::int64_t longest, bool memory);

// Up to `max_size` operators: any chains, precedences, floating operators and copies that some
// order fulfils; in half of them a memory limit that this order just meets.
SlotProblem random_problem(std::uint64_t seed, std::int64_t max_size);

struct SlotSizes {
  std::int64_t forward = 16;
  std::int64_t backward = 16;
  std::int64_t recompute = 10;
  std::int64_t weight_gradients = 3;
  std::int64_t offloads = 2;
  std::int64_t reloads = 2;
};

// A slot as training has it: chains that alternate between compute (stream 0) and expert
// communication (stream 1), recomputation before the backward that needs it, weight gradients on
// the compute stream after their backward, copies each way (streams 2 and 3) with deadlines.
// Durations differ by up to ten times. Without a memory limit.
SlotProblem random_slot(std::uint64_t seed, const SlotSizes& sizes);

// The same where each forward operator keeps bytes, each backward operator frees some, reloads take
// theirs when issued and offloads free theirs at their deadline. The limit lies `slack` of the way
// from what the backward-first order needs to what the forward-first order needs.
SlotProblem random_slot_with_memory(std::uint64_t seed, const SlotSizes& sizes, double slack);

}  // namespace tidemark
