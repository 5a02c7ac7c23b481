// Oracles for the interleaver, sharing no code with it.
#pragma once

#include <cstdint>
#include <optional>

#include "planner/slot_order.h"

namespace tidemark {

// Every sequence that respects the predecessors and the memory limit is tried. Returns: the least
// makespan; empty when there is none. Cost: exponential; up to 14 operators in two chains, or 10.
std::optional<std::int64_t> exhaustive_makespan(const SlotProblem& problem);

enum class ExactAnswer { kNoneBelow, kFound, kTooBig };

struct ExactOrder {
  ExactAnswer answer = ExactAnswer::kTooBig;
  std::int64_t makespan_ns = 0;  // the least, if found
};

// The least makespan below `below`: breadth first over what has been issued (positions of the
// chains, a set of the floating operators in any order), every issuable operator tried, partial
// orders kept unless another with the same operators issued is nowhere later, or the chains' and
// streams' remaining work reaches `below`. Gives up above `max_states`.
ExactOrder exact_makespan(const SlotProblem& problem, std::int64_t below, std::size_t max_states);

}  // namespace tidemark
