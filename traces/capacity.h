// Experts with a limited number of rows, as operations on counts.
//
//   Capacity of an expert = ceil(tokens * top-k / experts * factor), of the tokens of one sender:
//   Megatron's get_capacity (core/transformer/moe/moe_utils.py). Rows above it are dropped: which
//   ones (by probability or by position) does not change the counts. With padding every expert
//   computes on its whole capacity, full or not.
//   kDevice: DeepSeek-V2's token dropping (arXiv:2405.04434, section 2.2.4): the capacity is that
//   of a rank's experts together, and an expert loses rows in proportion to what it has, since
//   counts do not tell whose affinity is lowest.
// Senders are uniform: each of `senders` cards sends an equal part of a count, so that a sender's
// capacity times their number bounds it.
#pragma once

#include <cstdint>
#include <optional>

#include "traces/routing.h"
#include "traces/routing_shape.h"

namespace tidemark {

enum class DropPolicy { kExpert, kDevice };

struct Capacity {
  double factor = 1;
  bool pad = false;  // kExpert only
  DropPolicy policy = DropPolicy::kExpert;
  std::int64_t senders = 1;
};

// The job's --moe-expert-capacity-factor; empty where it is dropless.
std::optional<Capacity> capacity_of(const Job& job);

// Rows of an expert at most, from all senders.
std::int64_t expert_capacity(const RoutingShape& shape, const Capacity& capacity);

struct Dropped {
  std::int64_t rows = 0;    // dropped
  std::int64_t of = 0;      // of so many
  std::int64_t padded = 0;  // empty rows computed on
};

// Applies the capacity to `counts`, in place. Requires: counts of this shape.
Dropped apply_capacity(const RoutingShape& shape, const Capacity& capacity, RoutingCounts& counts);

}  // namespace tidemark
