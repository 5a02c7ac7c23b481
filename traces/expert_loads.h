// The load of each expert as a share of a layer's rows, over iterations and layers: a Dirichlet
// distribution at every point, see traces/synthetic_routing.h.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "traces/counter_hash.h"
#include "traces/workload.h"

namespace tidemark {

class ExpertLoads {
 public:
  // Requires: alpha > 0.
  ExpertLoads(const RoutingShape& shape, const Workload& workload, double alpha, HashStream stream);

  // [expert], adding up to 1.
  void shares(std::int64_t iteration, std::int64_t layer, std::vector<double>& out) const;
  // Of each microbatch around these shares, relative to their square.
  double relative_variance() const;

 private:
  // 0: the first distribution, 1: the second (domain_shift, periodic).
  double second_weight(std::int64_t iteration) const;

  RoutingShape shape_;
  Workload workload_;
  double alpha_;
  HashStream stream_;
};

}  // namespace tidemark
