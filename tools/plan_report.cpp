#include "tools/plan_report.h"

#include <algorithm>
#include <cmath>
#include <map>

#include <nlohmann/json.hpp>

#include "models/layer_operators.h"
#include "tools/quantity_text.h"
#include "tools/run_report.h"
#include "tools/simulation_report.h"
#include "tools/text_table.h"
#include "traces/lane_rows.h"

namespace tidemark {
namespace {

using Align = TextTable::Align;

constexpr ActionKind kKinds[] = {ActionKind::kSave, ActionKind::kRecompute, ActionKind::kOffload,
                                 ActionKind::kQuantize};

// "save", or "offload 40 %, save 60 %".
std::string shares_text(const std::vector<double>& shares) {
  std::string out;
  for (const ActionKind kind :
       {ActionKind::kRecompute, ActionKind::kOffload, ActionKind::kQuantize, ActionKind::kSave}) {
    const double share = shares[static_cast<std::size_t>(kind)];
    if (share > 0.9995) return action_name(kind);
    if (share < 0.0005) continue;
    out += (out.empty() ? "" : ", ") + std::string(action_name(kind)) + " " +
           fixed_text(100 * share, 1) + " %";
  }
  return out;
}

std::string cost_text(std::int64_t ns) { return ns == 0 ? "-" : duration_text(SimDuration(ns)); }

std::string operators_text(const PlanReport& plan, std::int64_t stage) {
  const OperatorPlan& of = plan.operators[static_cast<std::size_t>(stage)];
  TextTable table({{"operator", Align::kLeft},
                   {"layers"},
                   {"keeps"},
                   {"calm", Align::kLeft},
                   {"at the bound", Align::kLeft},
                   {"to recompute"},
                   {"to copy"}});
  std::map<std::string, std::string> refused;  // by reason
  for (std::size_t i = 0; i < of.operators.size(); ++i) {
    const OperatorSummary& o = of.operators[i];
    table.add_row({o.name, std::to_string(o.layers), fixed_text(to_mib(Bytes(o.bytes)), 1) + " MiB",
                   shares_text(of.calm[i]), shares_text(of.at_bound[i]), cost_text(o.recompute_ns),
                   cost_text(o.copy_ns)});
    for (const Refusal& r : o.refused) {
      std::string& names = refused[std::string(action_name(r.kind)) + ": " + r.reason];
      names += (names.empty() ? "" : ", ") + o.name;
    }
  }
  std::string out = "What is done with what the operators of stage " + std::to_string(stage) +
                    " keep; bytes and costs of one microbatch, balanced:\n\n" + table.text();
  if (!refused.empty()) out += "\nNot possible:\n";
  for (const auto& [reason, names] : refused) out += "  " + reason + " (" + names + ")\n";
  return out;
}

std::string bound_text(const PlanReport& plan) {
  return fixed_text(plan.adaptive.rows_bound, 2) + " times the balanced load (risk " +
         fixed_text(100 * plan.risk, 2) + " % an iteration)";
}

std::string verdict_text(const PlanReport& plan) {
  const std::string card = gib_text(Bytes(static_cast<std::int64_t>(
      plan.input.profile.capacity_gib.value * static_cast<double>(kGiB.value))));
  const std::int64_t headroom = plan.adaptive.least_headroom_bytes();
  const std::string stage = "stage " + std::to_string(plan.adaptive.tightest_stage());
  if (plan.feasible()) {
    return "Safe up to " + bound_text(plan) + ": the smallest safe budget is " +
           gib_text(plan.smallest_budget()) + " of a card's " + card + " (" + stage + ").";
  }
  return "No plan: at " + bound_text(plan) + " a card of " + stage + " lacks " +
         gib_text(Bytes(-headroom)) + " of " + card +
         " even if it gives up all it can. It would take " + gib_text(plan.smallest_budget()) +
         " a card, a higher risk, or a layout that holds less.";
}

// Of the trials, without the balanced iteration.
struct Trials {
  std::int64_t finished = 0;
  std::int64_t out_of_memory = 0;
  std::int64_t total_ns = 0;  // of finished ones
  std::int64_t slowest_ns = 0;
  Bytes reserved;
  std::int64_t alloc_retries = 0;  // most in an iteration
  double imbalance = 1;
};

Trials trials_of(const PlanReport& plan) {
  Trials out;
  for (const IterationRecord& r : plan.run.iterations) {
    if (&r == &plan.balanced()) continue;
    out.reserved = std::max(out.reserved, r.peak_reserved);
    out.alloc_retries = std::max(out.alloc_retries, r.alloc_retries);
    out.imbalance = std::max(out.imbalance, r.imbalance);
    if (r.out_of_memory) {
      ++out.out_of_memory;
      continue;
    }
    ++out.finished;
    out.total_ns += r.time_ns;
    out.slowest_ns = std::max(out.slowest_ns, r.time_ns);
  }
  return out;
}

std::string trials_text(const PlanReport& plan) {
  if (plan.trials == 0) return "Routing is balanced: there is nothing to try the plan on.\n";
  const Trials t = trials_of(plan);
  const std::string from = plan.trial_seed
                               ? "seed " + std::to_string(*plan.trial_seed)
                               : "the trace from iteration " + std::to_string(plan.first_trial);
  std::string out = "Tried on " + std::to_string(t.finished + t.out_of_memory) +
                    " iterations of routing that it was not made from (" + from + "), up to " +
                    fixed_text(t.imbalance, 2) + " times the balanced load: " +
                    (t.out_of_memory == 0 ? "none" : std::to_string(t.out_of_memory)) +
                    " ran out of memory, at most " + gib_text(t.reserved) + " of " +
                    gib_text(plan.run.limit) + " reserved";
  if (t.finished > 0) {
    out += "; " + duration_text(SimDuration(t.total_ns / t.finished)) + " mean, " +
           duration_text(SimDuration(t.slowest_ns)) + " slowest";
  }
  return out + "." + retries_text(t.alloc_retries) + "\n";
}

std::string predictions_text(const PlanReport& plan) {
  const double more = percent_off(static_cast<double>(plan.balanced().time_ns),
                                  static_cast<double>(plan.everything_ns));
  const double off = percent_off(static_cast<double>(plan.priced_ns),
                                 static_cast<double>(plan.balanced().time_ns));
  return "Balanced iteration: " + duration_text(SimDuration(plan.balanced().time_ns)) + " (" +
         signed_percent_text(more) + " of " + duration_text(SimDuration(plan.everything_ns)) +
         " where everything is kept, for which a card reserves " +
         gib_text(plan.everything_reserved) + "), " + gib_text(plan.balanced().peak_reserved) +
         " of " + gib_text(plan.run.limit) + " reserved. Its actions' prices predict " +
         duration_text(SimDuration(plan.priced_ns)) + " (" + signed_percent_text(off) + ").\n";
}

Bytes most_pinned(const PlanReport& plan) {
  Bytes most;
  for (const OperatorPlan& stage : plan.operators) most = std::max(most, stage.pinned);
  return most;
}

std::string pinned_text(const PlanReport& plan) {
  const Bytes card = most_pinned(plan);
  if (card == Bytes(0)) return "";
  const HardwareProfile& profile = plan.input.profile;
  const double node = profile.cards_per_node.value;
  const std::string limit =
      profile.host_memory_gib
          ? ", which is limited to " + fixed_text(profile.host_memory_gib->value, 2) + " GiB"
          : "; it is not limited, since the hardware profile has no host_memory_gib";
  return "At the bound, offloading takes up to " + gib_text(card) +
         " of pinned host memory a card, " +
         gib_text(Bytes(static_cast<std::int64_t>(node) * card.value)) + " a node of " +
         fixed_text(node, 0) + " such cards" + limit + ".\n";
}

std::string megatron_text(const PlanReport& plan) {
  const StaticSearch& m = plan.megatron;
  const std::string of = "of " + std::to_string(m.settings) + " settings of Megatron-LM";
  if (!m.best) return "None " + of + " is safe up to that load.\n";
  const std::string flags = megatron_memory_flags(m.best->job.options);
  return "Nearest Megatron-LM flags, the fastest " + of +
         " that is safe up to that load: " + (flags.empty() ? "none, keeping everything" : flags) +
         "; balanced, an iteration takes " + duration_text(SimDuration(m.iteration_ns)) + ".\n";
}

nlohmann::ordered_json shares_json(const std::vector<double>& shares) {
  nlohmann::ordered_json out = nlohmann::ordered_json::object();
  for (const ActionKind kind : kKinds) {
    const double share = shares[static_cast<std::size_t>(kind)];
    if (share > 0) out[action_name(kind)] = share;
  }
  return out;
}

}  // namespace

std::vector<OperatorPlan> operator_plans(const AdaptiveRun& run, const Job& job) {
  const std::int64_t balanced = balanced_lane_rows(job);
  const LaneRows calm(job, balanced_routing(job));
  const LaneRows at_bound(job, scaled(balanced_routing(job), run.plan.rows_bound));
  std::vector<OperatorPlan> out;
  for (std::size_t s = 0; s < run.stages.size(); ++s) {
    const auto stage = static_cast<std::int32_t>(s);
    const Schedule& schedule = run.program.schedule;
    const StageDecisions in_calm = run.policy->decide(stage, calm);
    const StageDecisions in_spike = run.policy->decide(stage, at_bound);
    const auto shares = [&](const StageDecisions& decisions) {
      return action_shares(run.stages[s], decisions, schedule.microbatches);
    };
    // Of whole stages, rounded up.
    const std::int32_t in_flight =
        (peak_in_flight(schedule, stage) + schedule.chunks - 1) / schedule.chunks;
    const auto bound_rows =
        static_cast<std::int64_t>(static_cast<double>(balanced) * run.plan.rows_bound);
    out.push_back({summarize_operators(run.stages[s], balanced), shares(in_calm), shares(in_spike),
                   Bytes(pinned_host_bytes(run.stages[s], in_spike, schedule.microbatches,
                                           in_flight, bound_rows))});
  }
  return out;
}

Bytes PlanReport::smallest_budget() const {
  const auto capacity = static_cast<std::int64_t>(
      std::ceil(input.profile.capacity_gib.value * static_cast<double>(kGiB.value)));
  return Bytes(capacity - adaptive.least_headroom_bytes());
}

std::string plan_text(const PlanReport& plan, std::optional<std::int64_t> stage) {
  std::string out = verdict_text(plan) + "\n\n";
  if (plan.feasible()) out += predictions_text(plan) + trials_text(plan) + pinned_text(plan);
  out += megatron_text(plan) + "\n";
  return out + operators_text(plan, stage.value_or(plan.adaptive.tightest_stage())) + "\n" +
         job_text(plan.input) + warnings_text(plan.input.job);
}

void add_plan(nlohmann::ordered_json& result, const PlanReport& plan) {
  result["verdict"] = {{"feasible", plan.feasible()}, {"text", verdict_text(plan)}};
  result["risk"] = plan.risk;
  result["smallest_safe_budget_bytes"] = plan.smallest_budget().value;
  result["headroom_bytes"] = plan.adaptive.least_headroom_bytes();
  result["tightest_stage"] = plan.adaptive.tightest_stage();
  if (plan.feasible()) {
    result["policy"] = to_json(plan.adaptive);
    result["predictions"] = {{"balanced_iteration_ns", plan.balanced().time_ns},
                             {"priced_balanced_iteration_ns", plan.priced_ns},
                             {"balanced_peak_reserved_bytes", plan.balanced().peak_reserved.value},
                             {"keep_everything_iteration_ns", plan.everything_ns},
                             {"keep_everything_reserved_bytes", plan.everything_reserved.value},
                             {"limit_bytes", plan.run.limit.value}};
    const Trials t = trials_of(plan);
    result["trials"] = {{"iterations", t.finished + t.out_of_memory},
                        {"out_of_memory", t.out_of_memory},
                        {"peak_reserved_bytes", t.reserved.value},
                        {"num_alloc_retries", t.alloc_retries},
                        {"imbalance", t.imbalance},
                        {"total_ns", t.total_ns},
                        {"slowest_ns", t.slowest_ns}};
    if (plan.trial_seed) {
      result["trials"]["seed"] = *plan.trial_seed;
    } else {
      result["trials"]["first_iteration"] = plan.first_trial;
    }
  }
  result["pinned_host_bytes"] = most_pinned(plan).value;
  const std::optional<Bytes> host = plan.input.profile.host_memory_of_card();
  result["pinned_host_limit_bytes"] =
      host ? nlohmann::ordered_json(host->value) : nlohmann::ordered_json(nullptr);
  nlohmann::ordered_json& megatron = result["megatron"];
  megatron = {{"settings", plan.megatron.settings}, {"policy", nullptr}};
  if (plan.megatron.best) {
    megatron["policy"] = plan.megatron.best->name;
    megatron["flags"] = megatron_memory_flags(plan.megatron.best->job.options);
    megatron["balanced_iteration_ns"] = plan.megatron.iteration_ns;
  }
  for (const OperatorPlan& stage : plan.operators) {
    nlohmann::ordered_json rows = nlohmann::ordered_json::array();
    for (std::size_t i = 0; i < stage.operators.size(); ++i) {
      const OperatorSummary& o = stage.operators[i];
      nlohmann::ordered_json row = {{"operator", o.name},
                                    {"layers", o.layers},
                                    {"kept_bytes", o.bytes},
                                    {"recompute_ns", o.recompute_ns},
                                    {"copy_ns", o.copy_ns},
                                    {"calm", shares_json(stage.calm[i])},
                                    {"at_bound", shares_json(stage.at_bound[i])}};
      for (const Refusal& r : o.refused) {
        row["refused"].push_back({{"action", action_name(r.kind)}, {"reason", r.reason}});
      }
      rows.push_back(std::move(row));
    }
    result["operators"].push_back(std::move(rows));
  }
}

}  // namespace tidemark
