// Whether a provisioning result is what it says, from the problem alone: every storage has one
// action, every lane keeps its memory, host memory and rules, collective actions agree, and the
// objective is the exposed time. Shares nothing with the solver.
#pragma once

#include <string>
#include <vector>

#include "planner/provision.h"

namespace tidemark {

// Returns: what is wrong, in words, with lane, moment, class and bytes; empty for a good plan.
// Requires: a result with a plan.
std::vector<std::string> check_plan(const ProvisionProblem& problem, const SolveResult& result);

}  // namespace tidemark
