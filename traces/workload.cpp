#include "traces/workload.h"

#include <algorithm>
#include <limits>
#include <variant>

#include <nlohmann/json.hpp>

#include "models/json_fields.h"
#include "models/overloaded.h"

namespace tidemark {
namespace {

const Names<WorkloadKind> kKinds = {
    {WorkloadKind::kBalanced, "balanced"},
    {WorkloadKind::kMultinomial, "multinomial"},
    {WorkloadKind::kDirichlet, "dirichlet"},
    {WorkloadKind::kHotExpert, "hot_expert"},
    {WorkloadKind::kDomainShift, "domain_shift"},
    {WorkloadKind::kPeriodic, "periodic"},
    {WorkloadKind::kBurst, "burst"},
    {WorkloadKind::kBagualu2, "bagualu2"},
};

const Names<RatioOf> kRatios = {
    {RatioOf::kMicrobatch, "microbatch"}, {RatioOf::kLayer, "layer"}, {RatioOf::kCard, "card"}};

struct Real {
  double Workload::*value;
  Range<double> range;
};
struct Whole {
  std::int64_t Workload::*value;
  Range<std::int64_t> range;
};
struct Ratio {
  RatioOf Workload::*value;
};

struct Parameter {
  const char* key;
  std::variant<Real, Whole, Ratio> field;
  std::vector<WorkloadKind> kinds;
};

constexpr double kLargestRatio = 1 << 20;
constexpr Range<std::int64_t> kIterations{0, std::int64_t{1} << 40};

const std::vector<Parameter>& parameters() {
  using enum WorkloadKind;
  static const std::vector<WorkloadKind> kLoads = {kDirichlet, kHotExpert, kDomainShift, kPeriodic,
                                                   kBurst};
  static const std::vector<Parameter> kParameters = {
      {"alpha", Real{&Workload::alpha, {1, 1e12}}, kLoads},
      {"microbatch_correlation", Real{&Workload::microbatch_correlation, {0, 1}}, kLoads},
      {"layer_correlation", Real{&Workload::layer_correlation, {0, 1}}, kLoads},
      {"drift_iterations", Whole{&Workload::drift_iterations, kIterations}, kLoads},
      {"hot_ratio", Real{&Workload::hot_ratio, {1, kLargestRatio}}, {kHotExpert}},
      {"shift_iteration", Whole{&Workload::shift_iteration, kIterations}, {kDomainShift}},
      {"ramp_iterations", Whole{&Workload::ramp_iterations, {1, kIterations.high}}, {kDomainShift}},
      {"period_iterations",
       Whole{&Workload::period_iterations, {2, kIterations.high}},
       {kPeriodic}},
      {"burst_probability", Real{&Workload::burst_probability, {0, 1}}, {kBurst}},
      {"burst_low", Real{&Workload::burst_low, {1, kLargestRatio}}, {kBurst}},
      {"burst_high", Real{&Workload::burst_high, {1, kLargestRatio}}, {kBurst}},
      {"burst_exponent", Real{&Workload::burst_exponent, {0.1, 100}}, {kBurst, kBagualu2}},
      {"burst_layers", Whole{&Workload::burst_layers, kPositive}, {kBurst}},
      {"ratio_of", Ratio{&Workload::ratio_of}, {kBurst, kBagualu2}},
  };
  return kParameters;
}

bool has(const Parameter& parameter, WorkloadKind kind) {
  return std::ranges::find(parameter.kinds, kind) != parameter.kinds.end();
}

}  // namespace

const std::vector<std::string>& workload_names() {
  static const std::vector<std::string> kNames = [] {
    std::vector<std::string> names;
    for (const auto& [kind, name] : kKinds) names.push_back(name);
    return names;
  }();
  return kNames;
}

const std::string& name_of(WorkloadKind kind) { return name_of(kKinds, kind); }

std::vector<std::string> parameters_of(WorkloadKind kind) {
  std::vector<std::string> keys;
  for (const Parameter& parameter : parameters()) {
    if (has(parameter, kind)) keys.emplace_back(parameter.key);
  }
  return keys;
}

Workload read_workload(JsonReader& in) {
  Workload workload;
  const std::string name = in.choice("workload", workload_names());
  for (const auto& [kind, known] : kKinds) {
    if (known == name) workload.kind = kind;
  }
  for (const Parameter& parameter : parameters()) {
    if (!has(parameter, workload.kind)) continue;
    std::visit(Overloaded{[&](const Real& real) {
                            double& value = workload.*real.value;
                            value = in.optional_number(parameter.key, real.range).value_or(value);
                          },
                          [&](const Whole& whole) {
                            read_size(in, parameter.key, whole.range, workload.*whole.value);
                          },
                          [&](const Ratio& ratio) {
                            read_choice(in, parameter.key, kRatios, workload.*ratio.value);
                          }},
               parameter.field);
  }
  if (workload.burst_low > workload.burst_high) {
    in.violate("burst_low", std::to_string(workload.burst_low), "at most burst_high");
  }
  return workload;
}

nlohmann::ordered_json to_json(const Workload& workload) {
  nlohmann::ordered_json json;
  json["workload"] = name_of(workload.kind);
  for (const Parameter& parameter : parameters()) {
    if (!has(parameter, workload.kind)) continue;
    std::visit(Overloaded{[&](const Real& real) { json[parameter.key] = workload.*real.value; },
                          [&](const Whole& whole) { json[parameter.key] = workload.*whole.value; },
                          [&](const Ratio& ratio) {
                            json[parameter.key] = name_of(kRatios, workload.*ratio.value);
                          }},
               parameter.field);
  }
  return json;
}

std::vector<Violation> validate(const Workload& workload, const RoutingShape& shape,
                                const std::string& file, const std::string& pointer) {
  std::vector<Violation> all;
  const auto refuse = [&](const std::string& key, double found, const std::string& allowed) {
    all.push_back({file, pointer + "/" + key, nlohmann::json(found).dump(), allowed});
  };
  if (shape.moe_layers == 0) return all;
  // An expert receives a token once at most; a rank cannot receive more than all.
  const double most_of_expert =
      static_cast<double>(shape.experts) / static_cast<double>(shape.topk);
  const double most_of_rank = std::min(static_cast<double>(shape.ranks), most_of_expert);
  if (workload.kind == WorkloadKind::kHotExpert && workload.hot_ratio > most_of_expert) {
    refuse("hot_ratio", workload.hot_ratio,
           "at most experts / top-k, " + nlohmann::json(most_of_expert).dump());
  }
  const bool bursts =
      workload.kind == WorkloadKind::kBurst || workload.kind == WorkloadKind::kBagualu2;
  if (bursts && workload.burst_high > most_of_rank) {
    refuse("burst_high", workload.burst_high,
           "at most the number of expert-parallel ranks and experts / top-k, " +
               nlohmann::json(most_of_rank).dump());
  }
  return all;
}

}  // namespace tidemark
