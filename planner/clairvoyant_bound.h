// A bound on what any policy could reach: the exposed time of a problem that knows the whole
// routing, with storages divisible and every lane free to choose for itself.
//
// The linear relaxation of each lane (lane_solver.h) bounds that lane; the group waits for its
// slowest.
#pragma once

#include <cstdint>
#include <optional>

#include "planner/provision.h"

namespace tidemark {

// In ns, rounded up: no choice of actions exposes less. Empty: no choice is possible.
std::optional<std::int64_t> clairvoyant_bound_ns(const ProvisionProblem& problem);

}  // namespace tidemark
