// A program with optional actions and who decides about them.
#pragma once

#include <memory>
#include <vector>

#include "planner/action_catalogue.h"
#include "sim/policy.h"
#include "sim/program.h"

namespace tidemark {

struct ManagedRun {
  Program program;
  std::unique_ptr<Policy> policy;
  std::vector<std::vector<NamedAction>> actions;  // [stage][action of StageDecisions]
};

}  // namespace tidemark
