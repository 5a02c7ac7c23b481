// What a trace looks like: max/mean over ranks for several numbers of ranks, per iteration and over
// time; and how closely loads of one place resemble those of another.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "traces/imbalance.h"
#include "traces/routing_source.h"

namespace tidemark {

// Of all (iteration, unit, microbatch, layer), for one number of expert-parallel ranks.
struct RankStatistics {
  std::int64_t ranks = 0;
  double mean = 0;
  double p50 = 0, p97 = 0, p99 = 0;
  double max = 0;
  std::vector<double> sample;              // of max/mean, sorted; every n-th where there are many
  std::vector<double> iteration_ratios;    // [iteration], the largest of all units
  double share_below(double bound) const;  // of iterations
};

// Moments of loads: counts over their mean, minus 1. What the multinomial adds is taken off.
struct LoadStatistics {
  double variance = 0;
  double between_microbatches = 0;                 // covariances
  double between_layers = 0;                       // of neighbouring layers, iteration means
  double iteration_variance = 0;                   // of iteration means
  std::map<std::int64_t, double> autocorrelation;  // [lag] of iteration means; 1 at lag 0
};

struct TraceStatistics {
  std::int64_t iterations = 0;
  std::vector<RankStatistics> ranks;  // as asked for
  LoadStatistics loads;
};

// Of iterations [begin, end) of a source. `ranks`: each divides the number of experts.
// Cost: streams; holds the iteration means of the longest lag, 64.
TraceStatistics describe_routing(const RoutingSource& source, const RoutingShape& shape,
                                 std::int64_t begin, std::int64_t end,
                                 const std::vector<std::int64_t>& ranks, RatioOf ratio);

// Kolmogorov and Smirnov's distance of two sorted samples: the largest difference of their
// distribution functions. Requires: neither is empty.
double two_sample_distance(const std::vector<double>& a, const std::vector<double>& b);

}  // namespace tidemark
