#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "models/job_reader.h"
#include "planner/adaptive_policy.h"
#include "planner/bagualu2_policy.h"
#include "planner/recompute_baselines.h"
#include "planner/static_policies.h"
#include "planner/time_prediction.h"
#include "sim/simulation.h"
#include "tools/claims/claim_cases.h"
#include "tools/claims/claim_kinds.h"
#include "tools/claims/claim_lines.h"
#include "tools/quantity_text.h"
#include "traces/routing_source.h"

namespace tidemark::claims {
namespace {

constexpr std::uint64_t kSeed = 1;  // of skewed routing

struct Variant {
  std::string what;
  Job job;
  double budget_gib = 0;  // of a card, for policies that decide
  std::vector<std::string> policies;
};

// A job in some variants (JSON merge patches, RFC 7386), each under some policies.
std::vector<Variant> read_variants(JsonReader& in, const fs::path& root) {
  const bool has_arguments = in.has("arguments");
  const Job job =
      has_arguments ? read_arguments_case(in, root).job() : read_job(root / in.string("job"));
  const nlohmann::json base = to_json(job);
  std::vector<std::string> policies;
  for (const nlohmann::json& policy : in.raw("policies")) {
    if (policy.is_string()) policies.push_back(policy.get<std::string>());
  }
  std::vector<Variant> out;
  in.objects("variants", [&](JsonReader& variant) {
    const std::string what = job.name + ", " + variant.string("what");
    nlohmann::json json = base;
    json.merge_patch(variant.raw("patch"));
    out.push_back({what, job_from_json(json, in.file() + " " + variant.pointer() + "/patch"),
                   variant.number("budget_gib", kCardGib), policies});
  });
  return out;
}

// A policy that decides, prepared for the load it meets; nothing: a setting of the job.
std::optional<ManagedRun> managed_run(const std::string& policy, const Job& job,
                                      const HardwareProfile& profile, double rows) {
  if (policy == "bagualu2-offload") return bagualu2_offload_run(job, profile);
  if (policy == "adaptive-recompute") return adaptive_recompute_run(job, profile, rows);
  if (policy == "adaptive") return adaptive_run(job, profile, rows);
  return std::nullopt;
}

struct Predicted {
  std::string what;
  std::int64_t simulated_ns = 1;
  std::int64_t predicted_ns = 1;

  double error_percent() const {
    return percent_off(static_cast<double>(predicted_ns), static_cast<double>(simulated_ns));
  }
};

bool is_closer(const Predicted& a, const Predicted& b) {
  return std::abs(a.error_percent()) < std::abs(b.error_percent());
}

// Of one unit in one iteration, whether the job fits or not.
std::vector<Predicted> predict(const Variant& variant) {
  HardwareProfile profile = load_hardware_profile(variant.job.hardware);
  profile.capacity_gib.value = variant.budget_gib;
  const Job job = on_platform(static_policy(variant.job, "keep-everything").job, profile);
  RoutingCounts counts;
  make_routing(job, routing_input(job), kSeed)->counts(0, 0, counts);
  const LaneRows rows(job, counts);
  const Program plain = build_program(job, profile);
  const TimePrediction prediction(plain, rows);
  std::vector<Predicted> out;
  for (const std::string& policy : variant.policies) {
    Predicted& p = out.emplace_back();
    p.what = variant.what + ", " + policy;
    const auto compare = [&](const TimePrediction& of_prices, const ManagedRun& run) {
      const UnitDecisions decisions = decide_unit(*run.policy, plain.stages.size(), rows);
      p.predicted_ns = of_prices.iteration_ns(run.program, &decisions);
      p.simulated_ns = run_units(run.program, {&rows, 1}, {}, {&decisions, 1}).iteration_ns;
    };
    if (policy == "adapipe") {
      const AdaPipeRun run = adapipe_run(job, profile, rows.max_over_mean());
      compare(TimePrediction(build_program(run.job, profile), rows), run.run);
    } else if (const auto run = managed_run(policy, job, profile, rows.max_over_mean())) {
      compare(prediction, *run);
    } else {
      const Program program = build_program(static_policy(job, policy).job, profile);
      p.predicted_ns = prediction.iteration_ns(program, nullptr);
      p.simulated_ns = run_units(program, {&rows, 1}).iteration_ns;
    }
  }
  return out;
}

}  // namespace

// Iteration times as planner/time_prediction.h predicts them and as the engine simulates them, ns.
// Shown: the worst policy of each variant of a job.
ClaimCheck predicted_time(JsonReader& claim, const fs::path& root) {
  const Tolerance tolerance = read_tolerance(claim);
  const std::int64_t least_pairs = claim.integer("pairs", kCount);
  std::vector<Variant> variants;
  claim.objects("cases", [&](JsonReader& in) {
    for (Variant& variant : read_variants(in, root)) variants.push_back(std::move(variant));
  });
  return [=, variants = std::move(variants)] {
    std::vector<ClaimLine> lines;
    std::vector<double> errors;
    Predicted worst_of_all;
    for (const Variant& variant : variants) {
      const std::vector<Predicted> predicted = predict(variant);
      for (const Predicted& p : predicted) errors.push_back(std::abs(p.error_percent()));
      const Predicted& worst = *std::ranges::max_element(predicted, is_closer);
      worst_of_all = std::max(worst_of_all, worst, is_closer);
      lines.push_back(percent_line(worst.what, worst.simulated_ns, worst.predicted_ns,
                                   worst.error_percent(), tolerance.max_percent));
    }
    std::ranges::sort(errors);
    const auto pairs = std::ssize(errors);
    const std::string of = " of all jobs under all policies";
    lines.push_back({"jobs under policies", ">= " + std::to_string(least_pairs), pairs,
                     std::nullopt, pairs >= least_pairs});
    lines.push_back(percent_line("largest error: " + worst_of_all.what, worst_of_all.simulated_ns,
                                 worst_of_all.predicted_ns, worst_of_all.error_percent(),
                                 tolerance.max_percent));
    lines.push_back({"95th percentile" + of, "", "",
                     errors[static_cast<std::size_t>((95 * pairs - 1) / 100)], true});
    lines.push_back(mean_line("mean" + of, summarize(errors).mean, tolerance.mean_percent));
    return lines;
  };
}

}  // namespace tidemark::claims
