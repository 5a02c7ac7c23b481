#include "planner/clairvoyant_bound.h"

#include <algorithm>

namespace tidemark {

std::optional<std::int64_t> clairvoyant_bound_ns(const ProvisionProblem& problem) {
  ProvisionProblem alone = problem;
  for (StorageClass& c : alone.classes) {
    for (StorageAction& action : c.actions) action.collective = false;
  }
  ProvisionWorkspace workspace;
  std::int64_t bound = 0;
  for (const ProvisionLane& lane : problem.lanes) {
    alone.lanes = {lane};
    const SolveResult result = provision(alone, WorkLimit{0}, workspace);
    if (result.status == SolveStatus::kInfeasible) return std::nullopt;
    bound = std::max(bound, result.bound_ns);
  }
  return bound;
}

}  // namespace tidemark
