// Named synthetic workloads: how routing deviates from balance, within an iteration and over many.
// Which counts they give is in traces/synthetic_routing.cpp.
//
//   balanced      every expert receives the same
//   multinomial   each row chooses an expert at random
//   dirichlet     experts have loads of their own: a Dirichlet distribution, correlated over
//                 microbatches and layers, drifting over iterations
//   hot_expert    in each layer one expert receives a multiple of the mean
//   domain_shift  from an iteration on, other loads
//   periodic      loads swing between two distributions and back
//   burst         in some iterations one rank of a few layers receives a multiple of the mean; in
//                 all others every rank stays below a bound
//   bagualu2      burst as BaGuaLu-2 reports it: 97.1 % of iterations below 1.2x, outliers up to
//                 2.6x. Published is no more than that. Inferred here: the outliers' sizes (a
//                 Pareto distribution cut at both ends), their 1 to 3 layers and run of
//                 microbatches, and calm iterations whose ranks deviate by 3 %, drifting over 200
//                 iterations.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "models/input_error.h"
#include "models/json_reader.h"
#include "traces/imbalance.h"
#include "traces/routing_shape.h"

namespace tidemark {

enum class WorkloadKind {
  kBalanced,
  kMultinomial,
  kDirichlet,
  kHotExpert,
  kDomainShift,
  kPeriodic,
  kBurst,
  kBagualu2,
};

// Parameters that a kind does not have are ignored; see `parameters_of`.
struct Workload {
  WorkloadKind kind = WorkloadKind::kBalanced;

  // Loads of the experts. The relative variance of a load is 1 / alpha. Of that variance,
  // `microbatch_correlation` is common to all microbatches and units of an iteration; of this
  // part, `layer_correlation` is common to all layers. It is forgotten after `drift_iterations`
  // (the autocorrelation falls linearly to zero); 0: it never changes.
  double alpha = 16;
  double microbatch_correlation = 0.9;
  double layer_correlation = 0;
  std::int64_t drift_iterations = 0;

  double hot_ratio = 4;  // of the hot expert's rows to the mean

  std::int64_t shift_iteration = 100;  // the first one with other loads
  std::int64_t ramp_iterations = 1;    // until they are wholly the others

  std::int64_t period_iterations = 100;

  // An iteration's ratio is that of `ratio_of` (traces/imbalance.h): in a burst the density of x is
  // proportional to x^-(exponent + 1) from `low` to `high`, otherwise the ratio is below `low`.
  double burst_probability = 0.029;
  double burst_low = 1.2;
  double burst_high = 2.6;
  double burst_exponent = 2;
  std::int64_t burst_layers = 3;  // 1 to so many neighbouring layers
  RatioOf ratio_of = RatioOf::kMicrobatch;

  friend bool operator==(const Workload&, const Workload&) = default;
};

const std::vector<std::string>& workload_names();
const std::string& name_of(WorkloadKind kind);
// Keys of the parameters that a workload has.
std::vector<std::string> parameters_of(WorkloadKind kind);

// Reads {"workload": name, parameters...}; parameters left out keep their defaults.
Workload read_workload(JsonReader& in);
// With every parameter of its kind; read_workload gives it back exactly.
nlohmann::ordered_json to_json(const Workload& workload);

// What the workload cannot do with routing of this shape.
std::vector<Violation> validate(const Workload& workload, const RoutingShape& shape,
                                const std::string& file, const std::string& pointer);

}  // namespace tidemark
