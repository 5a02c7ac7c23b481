#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "models/input_error.h"
#include "models/layer_operators.h"
#include "models/parse_number.h"
#include "planner/adaptive_policy.h"
#include "planner/rehearsal.h"
#include "planner/rows_bound.h"
#include "planner/static_policies.h"
#include "planner/static_search.h"
#include "planner/time_prediction.h"
#include "sim/simulation.h"
#include "tools/command.h"
#include "tools/job_input.h"
#include "tools/plan_report.h"
#include "tools/policy_run.h"
#include "traces/trace_file.h"

namespace tidemark {
namespace {

constexpr std::int64_t kDefaultTrials = 20;
constexpr std::int64_t kRehearsed = 20;  // iterations of one unit

// Balanced in the first iteration; from then on another's, from its iteration `first` on.
class TrialRouting : public RoutingSource {
 public:
  TrialRouting(const Job& job, const RoutingSource& others, std::int64_t first)
      : balanced_(balanced_routing(job)), others_(others), first_(first) {}
  void counts(std::int64_t iteration, std::int64_t unit, RoutingCounts& out) const override {
    if (iteration == 0) {
      out = balanced_;
    } else {
      others_.counts(first_ + iteration - 1, unit, out);
    }
  }

 private:
  const RoutingCounts balanced_;
  const RoutingSource& others_;
  const std::int64_t first_;
};

// The bytes of a card that the job may use; the whole card when not given.
void limit_card(HardwareProfile& profile, const Arguments& arguments) {
  const auto text = arguments.text("budget");
  if (!text) return;
  const auto gib = parse_number<double>(*text);
  if (!gib || !(*gib > 0 && *gib <= profile.capacity_gib.value)) {
    throw InputError(
        "", "--budget", "\"" + *text + "\"",
        "GiB, more than 0 and at most the card's " + std::to_string(profile.capacity_gib.value));
  }
  profile.capacity_gib.value = *gib;
}

// A trace has no iterations that a rehearsal could draw.
AdaptiveRun prepare(const Job& job, const HardwareProfile& profile, const RoutingInput& routing,
                    const RoutingSource& source, double risk) {
  const double bound = rows_bound(job, routing, source, risk);
  if (!routing.file.empty() || cards_are_alike(job, routing)) {
    return adaptive_run(job, profile, bound);
  }
  return std::move(rehearsed_adaptive_run(job, profile, bound, source, kRehearsed).run);
}

// Of a balanced iteration, from prices.
std::int64_t priced_iteration_ns(const Job& given, const HardwareProfile& profile,
                                 const AdaptiveRun& managed) {
  const Job job = on_platform(given, profile);
  const LaneRows rows(job, balanced_routing(job));
  const UnitDecisions decisions = decide_unit(*managed.policy, managed.program.stages.size(), rows);
  return TimePrediction(build_program(job, profile), rows)
      .iteration_ns(managed.program, &decisions);
}

// Runs the plan on balanced routing, then on routing that its bound was not taken from: another
// seed's, or the second half of a trace.
RunResult try_plan(const PlanReport& plan, const RoutingInput& routing, const RunOptions& options,
                   Program program, const Policy& policy) {
  const Job& job = plan.input.job;
  const std::unique_ptr<RoutingSource> others = make_routing(job, routing, options.seed + 1);
  RunSpec spec;
  spec.iterations = 1 + plan.trials;
  if (routing.file.empty()) {
    spec.checkpoint_interval = 1;  // an iteration that runs out of memory counts, and is drawn anew
  } else {
    spec.repeats_routing = true;
  }
  const TrialRouting trials(job, *others, plan.first_trial);
  TrainingRun run(job, plan.input.profile, trials, cards_are_alike(job, routing),
                  std::move(program), policy);
  return run_with_progress(run, spec, "plan");
}

Report run_plan(const Arguments& arguments) {
  PlanReport plan;
  plan.input = read_job_input(arguments);
  limit_card(plan.input.profile, arguments);
  plan.input.job = static_policy(plan.input.job, "keep-everything").job;
  const RunOptions options = run_options(plan.input.job, arguments);
  const Job& job = plan.input.job;
  const RoutingInput routing = routing_input(job);
  const std::unique_ptr<RoutingSource> source = make_routing(job, routing, options.seed);
  plan.risk = options.risk;

  AdaptiveRun managed = prepare(job, plan.input.profile, routing, *source, plan.risk);
  plan.adaptive = managed.plan;
  const Simulation everything = simulate(job, plan.input.profile, balanced_routing(job));
  plan.everything_ns = everything.result.iteration.time_ns;
  plan.everything_reserved =
      everything.result.stages[static_cast<std::size_t>(everything.result.tightest_stage())]
          .card.memory.reserved;
  plan.operators = operator_plans(managed, job);
  plan.megatron = best_static_policy(job, plan.input.profile, plan.adaptive.rows_bound);

  if (plan.feasible()) {
    if (!cards_are_alike(job, routing)) {
      plan.trials = arguments.integer("iterations", 1, 1'000'000).value_or(kDefaultTrials);
      plan.trial_seed = options.seed + 1;
      if (!routing.file.empty()) {
        const std::int64_t recorded = TraceFile(routing.file).info().iterations;
        plan.first_trial = fitted_iterations(recorded);
        plan.trials = std::min(plan.trials, recorded - plan.first_trial);
        plan.trial_seed.reset();
      }
    }
    plan.priced_ns = priced_iteration_ns(job, plan.input.profile, managed);
    plan.run = try_plan(plan, routing, options, std::move(managed.program), *managed.policy);
  }

  Report report;
  report.exit = plan.feasible() ? ExitCode::kOk : ExitCode::kDoesNotFit;
  report.json = result_with_provenance(plan.input.files, arguments);
  add_plan(report.json, plan);
  report.text = plan_text(plan, arguments.integer("stage", 0, job.layout.pipeline - 1));
  return report;
}

}  // namespace

Command plan_command() {
  std::vector<Flag> flags = job_flags();
  flags.push_back({"budget", "GIB", "of a card that the job may use; all of it when not given"});
  flags.push_back({"risk", "P", "of running out of memory in an iteration; 0.001"});
  flags.push_back({"iterations", "N",
                   "of routing that the plan was not made from, to try it on; 20, or what the "
                   "second half of a trace has"});
  flags.push_back({"seed", "N", "of synthetic routing; 1 when not given; trials take the next"});
  flags.push_back({"stage", "N", "show this stage's operators; the tightest when not given"});
  return {"plan", "JOB.json | --megatron-args FILE --hardware NAME",
          "the cheapest plan that keeps every card within a budget, tried on other routing; -o "
          "writes the file that --policy plan:FILE runs",
          std::move(flags), run_plan};
}

}  // namespace tidemark
