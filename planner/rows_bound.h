// From a stated risk to the rows that decisions must be safe for.
//
// The bound is the ratio of a card's rows to the balanced load, of any microbatch and layer, that
// an iteration exceeds with probability `risk`. Of workloads with bursts it follows from their
// distribution: with probability p an iteration's ratio x has the density ~ x^-(k + 1) on
// [low, high], so
//
//   P(x > bound) = p * (1 - F(bound)) = risk,   F(x) = (1 - (low / x)^k) / (1 - (low / high)^k)
//
// and no more than `low` is needed where p <= risk. Of other workloads it is the largest ratio of
// sampled iterations of one unit, enough of them for three to exceed it, at most 200. Of a recorded
// trace it is the largest of the iterations in its first half; the others are there to check it.
#pragma once

#include <cstdint>

#include "models/job.h"
#include "traces/routing_source.h"

namespace tidemark {

constexpr double kDefaultRisk = 1e-3;  // of an iteration

// Iterations of a trace that a bound is taken from.
std::int64_t fitted_iterations(std::int64_t iterations);

// Requires: 0 < risk < 1.
double rows_bound(const Job& job, const RoutingInput& input, const RoutingSource& source,
                  double risk);

}  // namespace tidemark
