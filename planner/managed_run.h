// A program with optional actions and who decides about them.
#pragma once

#include <memory>

#include "sim/policy.h"
#include "sim/program.h"

namespace tidemark {

struct ManagedRun {
  Program program;
  std::unique_ptr<Policy> policy;
};

}  // namespace tidemark
