// Whether an order is what it claims to be. Shares nothing with the solvers but the problem's
// types: predecessors, memory and times are worked out again, times by relaxing every constraint
// until nothing moves.
#pragma once

#include <string>
#include <vector>

#include "planner/slot_order.h"

namespace tidemark {

// Returns: what is wrong, in words; empty when the order holds every operator once, after its
// predecessors, within the memory limit, its makespan is what follows from it, and that is neither
// below the bound, the critical path and the busiest stream nor above the serial time.
std::vector<std::string> check_order(const SlotProblem& problem, const StreamOrder& result);

}  // namespace tidemark
