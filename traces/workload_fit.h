// Estimates the parameters of a workload from the first part of a trace, and compares what that
// workload generates with the rest.
//
//   Dirichlet, by moments of the loads (traces/trace_statistics.h): 1/alpha from the relative
//   variance, the correlations from covariances between microbatches and between neighbouring
//   layers, the drift from the longest lag whose autocorrelation is at least a half. What counts of
//   one microbatch an iteration, or of one iteration, cannot tell is said.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "traces/routing_source.h"
#include "traces/trace_statistics.h"

namespace tidemark {

Workload fit_workload(const RoutingShape& shape, const TraceStatistics& statistics,
                      std::vector<std::string>& notes);

struct FitOfRanks {
  std::int64_t ranks = 0;
  double held_out_mean = 0, held_out_p97 = 0;
  double fitted_mean = 0, fitted_p97 = 0;
  double distance = 0;  // of max/mean: held out and fitted
  // Held out and the part that was fitted: what even the trace itself differs by.
  double own_distance = 0;
};

struct WorkloadFit {
  Workload workload;
  std::int64_t fitted_iterations = 0;
  std::int64_t held_out_iterations = 0;
  std::vector<FitOfRanks> ranks;
  std::map<std::int64_t, double> held_out_autocorrelation;  // [lag]
  std::map<std::int64_t, double> fitted_autocorrelation;
  std::vector<std::string> notes;
};

// `share` of the iterations are fitted to. Requires: 0 < share < 1; at least two iterations.
WorkloadFit fit_and_compare(const RoutingSource& source, const RoutingShape& shape,
                            std::int64_t iterations, double share,
                            const std::vector<std::int64_t>& ranks, std::uint64_t seed);

}  // namespace tidemark
