// A plan as text and as JSON: what it is safe for, what it costs, what it does to each operator,
// and what it was tried on.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "planner/adaptive_policy.h"
#include "planner/plan_summary.h"
#include "planner/static_search.h"
#include "sim/training_run.h"
#include "tools/job_input.h"

namespace tidemark {

// [operator of the stage]
struct OperatorPlan {
  std::vector<OperatorSummary> operators;
  std::vector<std::vector<double>> calm;      // shares under balanced routing
  std::vector<std::vector<double>> at_bound;  // if every microbatch reached the bound, on any card
  Bytes pinned;                               // host memory of a card, then
};
// [stage]
std::vector<OperatorPlan> operator_plans(const AdaptiveRun& run, const Job& job);

struct PlanReport {
  JobInput input;  // with the card's memory as the budget
  double risk = 0;
  AdaptivePlan adaptive;
  std::vector<OperatorPlan> operators;      // [stage]
  std::int64_t everything_ns = 0;           // a balanced iteration that keeps everything
  Bytes everything_reserved;                // by its tightest card
  StaticSearch megatron;                    // Megatron-LM's settings, under the same bound
  std::int64_t trials = 0;                  // iterations of other routing
  std::optional<std::uint64_t> trial_seed;  // none: a trace's iterations from `first_trial` on
  std::int64_t first_trial = 0;
  std::int64_t priced_ns = 0;  // a balanced iteration, as planner/time_prediction.h predicts it
  RunResult run;               // a balanced iteration, then the trials; empty if there is no plan

  bool feasible() const { return adaptive.least_headroom_bytes() >= 0; }
  // What a card must have for the most frugal plan at the bound.
  Bytes smallest_budget() const;
  const IterationRecord& balanced() const { return run.iterations.front(); }
};

// `stage`: whose operators are shown; the tightest when not given.
std::string plan_text(const PlanReport& plan, std::optional<std::int64_t> stage);
// The keys `verdict`, `policy` (read_adaptive_plan reads it), `predictions`, `trials`, `operators`.
void add_plan(nlohmann::ordered_json& result, const PlanReport& plan);

}  // namespace tidemark
