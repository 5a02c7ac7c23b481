// Counts of the named workloads: hashed from (seed, iteration, unit, microbatch, layer, expert).
//
//   Loads. Each (iteration, layer, expert) has a standard normal deviate; Wilson and Hilferty's
//   cube makes it a gamma variate, and the gammas of a layer divided by their sum are a Dirichlet
//   distribution. The deviate is sqrt(c) * common to all layers + sqrt(1 - c) * the layer's own,
//   and each of these a sum over a window of eight blocks of iterations with an innovation each,
//   which slides with the iteration. All units see the same loads, since they share the router's
//   weights. Rows. Given the loads, traces/count_sampler.h draws each microbatch; what of the
//   loads' variance is not common to microbatches becomes overdispersion. Bursts. Ranks are bounded
//   and raised after the draw, so that the stated ratios hold for any number of rows. A burst hits
//   all units, in each the same rank of a layer.
#pragma once

#include <cstdint>
#include <memory>

#include "traces/routing_source.h"

namespace tidemark {

// Requires: a workload that `validate` accepts for this shape, not balanced.
std::unique_ptr<RoutingSource> synthetic_routing(const RoutingShape& shape,
                                                 const Workload& workload, std::uint64_t seed);

}  // namespace tidemark
