#include <algorithm>
#include <cstdint>
#include <optional>
#include <sstream>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "models/input_error.h"
#include "planner/time_bound.h"
#include "tools/ablation.h"
#include "tools/command.h"
#include "tools/gnuplot.h"
#include "tools/job_input.h"
#include "tools/named_policy.h"
#include "tools/policy_run.h"
#include "tools/quantity_text.h"
#include "tools/run_report.h"
#include "tools/schedule_comparison.h"
#include "tools/simulation_report.h"
#include "tools/text_table.h"

namespace tidemark {
namespace {

constexpr const char* kDefaultPolicies = "keep-everything,full-recompute,adaptive";

std::vector<std::string> names_of(const std::string& list) {
  std::vector<std::string> out;
  std::istringstream in(list);
  for (std::string name; std::getline(in, name, ',');) out.push_back(name);
  return out;
}

// Of the time that any policy needs at least (planner/time_bound.h); empty where a policy changes
// the work, the split of layers or the schedule, which the bound does not hold for.
std::optional<double> reached(TimeBound& bound, const JobInput& given, const PolicyRun& run) {
  const TrainingOptions& before = given.job.options;
  const TrainingOptions& after = run.input.job.options;
  const bool same_work =
      before.moe_expert_capacity_factor == after.moe_expert_capacity_factor &&
      before.moe_pad_expert_input_to_capacity == after.moe_pad_expert_input_to_capacity &&
      given.job.layout.listed_layers == run.input.job.layout.listed_layers &&
      given.job.combines_slots() == run.input.job.combines_slots() &&
      before.combined_slot_order == after.combined_slot_order;
  return same_work ? std::optional(bound.reached(run.run)) : std::nullopt;
}

std::string comparison_text(const std::vector<PolicyRun>& all,
                            const std::vector<std::optional<double>>& of_bound) {
  TextTable table({{"policy", TextTable::Align::kLeft},
                   {"useful tokens/s"},
                   {"MFU"},
                   {"without losses"},
                   {"of the bound"},
                   {"iteration"},
                   {"out of memory"},
                   {"lost"},
                   {"allocator retries"},
                   {"highest reserved"},
                   {"of"}});
  for (std::size_t p = 0; p < all.size(); ++p) {
    const PolicyRun& c = all[p];
    const RunResult& r = c.run;
    Bytes reserved;
    std::int64_t retries = 0;
    for (const IterationRecord& i : r.iterations) {
      reserved = std::max(reserved, i.peak_reserved);
      retries = std::max(retries, i.alloc_retries);
    }
    const auto percent = [](double share) { return fixed_text(100 * share, 1) + " %"; };
    table.add_row({c.policy, fixed_text(r.tokens_per_second(c.input.job), 0),
                   percent(mfu_with_losses(c.input, r)), percent(mfu_without_losses(c.input, r)),
                   of_bound[p] ? percent(*of_bound[p]) : "-",
                   r.finished == 0 ? "-" : duration_text(SimDuration(mean_iteration_ns(r))),
                   grouped_text(std::ssize(r.out_of_memory)) + (r.stuck ? ", stuck" : ""),
                   share_text(static_cast<double>(r.lost_ns), static_cast<double>(r.total_ns)),
                   grouped_text(retries), gib_text(reserved), gib_text(r.limit)});
  }
  return table.text();
}

constexpr double kGib = static_cast<double>(std::int64_t{1} << 30);

// What the tightest card reserves, iteration by iteration, and the card's limit.
std::vector<Panel> memory_curves(const std::vector<PolicyRun>& all) {
  Panel memory{"reserved by the tightest card", "iteration", "GiB", {}};
  Panel time{"iteration time", "iteration", "s", {}};
  std::size_t longest = 0;
  for (const PolicyRun& c : all) {
    Curve reserved{c.policy, {}};
    Curve taken{c.policy, {}};
    for (const IterationRecord& i : c.run.iterations) {
      const auto x = static_cast<double>(i.iteration);
      reserved.points.emplace_back(x, static_cast<double>(i.peak_reserved.value) / kGib);
      if (!i.out_of_memory) taken.points.emplace_back(x, static_cast<double>(i.time_ns) * 1e-9);
    }
    longest = std::max(longest, c.run.iterations.size());
    memory.curves.push_back(std::move(reserved));
    if (!taken.points.empty()) time.curves.push_back(std::move(taken));
  }
  const double limit = static_cast<double>(all.front().run.limit.value) / kGib;
  memory.curves.push_back({"limit", {{0, limit}, {static_cast<double>(longest), limit}}});
  return {std::move(memory), std::move(time)};
}

Report compare_policies(const Arguments& arguments) {
  const JobInput input = read_job_input(arguments);
  const RunOptions options = run_options(input.job, arguments);
  std::vector<PolicyRun> all;
  Report report;
  report.json = result_with_provenance(input.files, arguments);
  std::string notes;
  const RoutingInput routing = routing_input(input.job);
  const auto source = make_routing(input.job, routing, options.seed);
  TimeBound bound(input.job, input.profile, *source, cards_are_alike(input.job, routing));
  std::vector<std::optional<double>> of_bound;
  for (const std::string& name : names_of(arguments.text("policies").value_or(kDefaultPolicies))) {
    all.push_back(run_policy(input, name, options));
    const PolicyRun& c = all.back();
    nlohmann::ordered_json one;
    one["policy"] = c.policy;
    one["notes"] = c.notes;
    add_run(one, c.input, c.run);
    of_bound.push_back(reached(bound, input, c));
    if (of_bound.back()) one["run"]["of_bound"] = *of_bound.back();
    report.json["policies"].push_back(std::move(one));
    notes += notes_text(c);
  }
  if (const auto file = arguments.text("plot")) plot_panels(memory_curves(all), *file);
  report.text = job_text(input) + "\n" + comparison_text(all, of_bound) + "\n" + notes +
                warnings_text(input.job);
  return report;
}

Report run_compare(const Arguments& arguments) {
  if (arguments.has("ablation")) {
    for (const char* other : {"policies", "schedules", "plot"}) {
      if (arguments.has(other)) {
        throw InputError("", std::string("--") + other, "given with --ablation", "one of the two");
      }
    }
    return ablate(arguments);
  }
  if (!arguments.text("schedules")) return compare_policies(arguments);
  for (const char* of_runs : {"policies", "iterations", "seed", "risk", "plot"}) {
    if (arguments.has(of_runs)) {
      throw InputError("", std::string("--") + of_runs, "given with --schedules", "one of the two");
    }
  }
  return compare_schedules(arguments);
}

}  // namespace

Command compare_command() {
  std::vector<Flag> flags = job_flags();
  for (Flag& flag : run_flags()) flags.push_back(std::move(flag));
  flags.push_back({"policies", "A,B,C", policies_help()});
  flags.push_back({"plot", "FILE.png", "draw memory and time over the iterations"});
  flags.push_back({"ablation", "",
                   "instead of policies: what each part of the planner gains over full recompute, "
                   "and why"});
  flags.push_back(
      {"schedules", "A,B,C", "instead of policies: pipeline schedules, such as 1f1b,zb-h1,v-half"});
  return {"compare", "JOB.json | --megatron-args FILE --hardware NAME",
          "a run under several memory policies, or a job under several pipeline schedules",
          std::move(flags), run_compare};
}

}  // namespace tidemark
