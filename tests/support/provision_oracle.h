// The optimum of a small provisioning problem by trying everything.
#pragma once

#include <cstdint>
#include <optional>

#include "planner/provision.h"

namespace tidemark {

struct OracleAnswer {
  bool too_big = false;                      // more than 2^22 choices a lane
  std::optional<std::int64_t> objective_ns;  // empty: infeasible
};

OracleAnswer solve_exhaustively(const ProvisionProblem& problem);

}  // namespace tidemark
