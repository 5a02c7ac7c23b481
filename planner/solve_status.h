// How a search ended.
#pragma once

#include <cstdint>

namespace tidemark {

enum class SolveStatus : std::uint8_t {
  kOptimal,     // proven
  kFeasible,    // the limit was hit: a solution, and how far from the optimum it is at most
  kInfeasible,  // proven
  kLimit,       // the limit was hit without a solution
};

}  // namespace tidemark
