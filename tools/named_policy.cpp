#include "tools/named_policy.h"

#include <cstring>
#include <functional>
#include <utility>

#include "models/input_error.h"
#include "models/job_reader.h"
#include "models/parse_number.h"
#include "planner/adaptive_policy.h"
#include "planner/bagualu2_policy.h"
#include "planner/interleaved_run.h"
#include "planner/ratio_search.h"
#include "planner/recompute_baselines.h"
#include "planner/rehearsal.h"
#include "planner/rows_bound.h"
#include "planner/static_policies.h"
#include "planner/static_search.h"
#include "tools/quantity_text.h"

namespace tidemark {
namespace {

constexpr const char* kAdaptive = "adaptive";
constexpr const char* kFixedPlan = "fixed-plan";
constexpr const char* kTidemark = "tidemark";
constexpr const char* kBaGuaLu2 = "bagualu2";
constexpr const char* kPlan = "plan:";
constexpr const char* kMegatronBest = "megatron-best";
constexpr const char* kKwaiBest = "kwai-best";
constexpr const char* kBaGuaLu2Offload = "bagualu2-offload";
constexpr const char* kPagedStash = "paged-stash:";
constexpr const char* kAdaPipe = "adapipe";
constexpr const char* kAdaptiveRecompute = "adaptive-recompute";

// Beyond what runs, rehearsals and the rows bound draw.
constexpr std::int64_t kTypicalIteration = 70'000'000;

// NAME or NAME:F, the load over the balanced one that is planned for; empty: another policy.
std::optional<double> planned_load(const std::string& policy, const std::string& name) {
  if (policy == name) return 1;
  if (!policy.starts_with(name + ":")) return std::nullopt;
  const auto load = parse_number<double>(policy.substr(name.size() + 1));
  if (!load || !(*load >= 1 && *load <= 1000)) {
    throw InputError("", "policy", "\"" + policy + "\"",
                     name + " or " + name + ":F with a number F from 1 to 1000");
  }
  return load;
}

// "paged-stash:F" or "paged-stash:F:B"; empty: another policy.
std::optional<PagedStash> paged_stash(const std::string& policy, const Job& job) {
  if (!policy.starts_with(kPagedStash)) return std::nullopt;
  const std::string factors = policy.substr(std::strlen(kPagedStash));
  const std::size_t colon = factors.find(':');
  const auto capacity = parse_number<double>(factors.substr(0, colon));
  const auto buffer = colon == std::string::npos ? std::optional(PagedStash{}.buffer_factor)
                                                 : parse_number<double>(factors.substr(colon + 1));
  const auto good = [](const std::optional<double>& factor) {
    return factor && *factor > 0 && *factor <= 1000;
  };
  if (!good(capacity) || !good(buffer)) {
    throw InputError("", "policy", "\"" + policy + "\"",
                     "paged-stash:F or paged-stash:F:B with numbers F and B above 0, at most 1000");
  }
  if (job.model.num_moe_layers() == 0 || job.options.moe_expert_capacity_factor) {
    throw InputError("", "policy", "\"" + policy + "\"",
                     "another policy: the job has no experts, or an expert capacity of its own");
  }
  return PagedStash{*capacity, *buffer};
}

// A baseline that runs a program with optional actions; empty: `policy` is none.
std::function<ManagedRun(const Job&, const HardwareProfile&)> baseline(const std::string& policy) {
  if (policy == kBaGuaLu2Offload) return bagualu2_offload_run;
  if (const auto load = planned_load(policy, kAdaptiveRecompute)) {
    return [=](const Job& job, const HardwareProfile& p) {
      return adaptive_recompute_run(job, p, *load);
    };
  }
  return nullptr;
}

std::string note_of(const AdaPipeRun& run) {
  if (run.split.layers.empty()) {
    return "keeps the job's split of layers, since " + run.keeps_split_since;
  }
  return "deals the layers as " + pipeline_layout_text(run.split.layers) + ", " +
         duration_text(SimDuration(run.split.iteration_ns)) + " an iteration by its formulas";
}

std::string note_of(const AdaptivePlan& plan) {
  std::string out = "safe for " + fixed_text(plan.rows_bound, 2) + " times the balanced load";
  for (std::size_t s = 0; s < plan.stages.size(); ++s) {
    const std::int64_t headroom = plan.stages[s].headroom_bytes;
    if (headroom >= 0) continue;
    out += "; stage " + std::to_string(s) + " lacks " + gib_text(Bytes(-headroom)) +
           " even if it gives up all it can";
  }
  return out;
}

std::string note_of(const RatioSearch& search) {
  if (!search.best) return "no ratio of offloading fits";
  return "offloads " + fixed_text(100 * search.ratio, 0) + " % with" +
         (search.recomputes ? "" : "out") + " recomputation, the least that fits";
}

// "adaptive" or "adaptive:N", rehearsed on N iterations; empty: another policy.
std::optional<std::int64_t> rehearsed_iterations(const std::string& policy) {
  if (policy == kAdaptive) return 0;
  if (!policy.starts_with(std::string(kAdaptive) + ":")) return std::nullopt;
  const auto n = parse_number<std::int64_t>(policy.substr(policy.find(':') + 1));
  if (!n || *n < 1 || *n > 1'000'000) {
    throw InputError("", "policy", "\"" + policy + "\"",
                     "adaptive or adaptive:N with N iterations from 1 to 1000000");
  }
  return n;
}

std::string note_of(const Rehearsal& rehearsal, std::int64_t iterations) {
  std::string out = "rehearsed on " + grouped_text(iterations) + " iterations, withholds " +
                    gib_text(Bytes(rehearsal.withheld_bytes));
  if (rehearsal.deaths > 0) {
    out += ", and still runs out of memory in " + grouped_text(rehearsal.deaths);
  }
  return out;
}

std::string slots_text(const Job& job) {
  std::string out = job.layout.virtual_pipeline > 1 ? "of virtual stages" : "combined-1f1b";
  for (const auto& [order, name] : slot_order_names()) {
    if (order == job.options.combined_slot_order) out += ", order " + name;
  }
  return out;
}

std::string note_of(const InterleavedRun& run) {
  const std::string own = duration_text(SimDuration(run.own_schedule_ns));
  if (run.iteration_ns >= run.own_schedule_ns) {
    return "the job's own schedule, " + own +
           " in a typical iteration: no combined slots that fit are faster";
  }
  return "combined slots (" + slots_text(run.job) + "), " +
         duration_text(SimDuration(run.iteration_ns)) + " in a typical iteration against " + own +
         " or more of the job's own schedule";
}

// Of one unit: an iteration that no run reaches, or balanced where a trace has none to spare.
RoutingCounts typical_routing(const Job& job, const RoutingInput& routing,
                              const RoutingSource& source) {
  if (!routing.file.empty()) return balanced_routing(job);
  RoutingCounts out;
  source.counts(kTypicalIteration, 0, out);
  return out;
}

// The job under the best of Megatron's settings, or under those that hold least.
Job megatron_best(const JobInput& input, double bound, std::vector<std::string>& notes) {
  const StaticSearch search = best_static_policy(input.job, input.profile, bound);
  const StaticPolicy policy =
      search.best ? *search.best : static_policy(input.job, "full-recompute");
  notes.push_back(policy.name + ", " + (search.best ? "the fastest" : "since none") + " of " +
                  grouped_text(search.settings) + " settings " +
                  (search.best ? "that fits " : "fits ") + fixed_text(bound, 2) +
                  " times the balanced load");
  return policy.job;
}

}  // namespace

std::string policies_help() {
  std::string out = "how memory is kept within its limit: ";
  for (const std::string& form : static_policy_forms()) out += form + ", ";
  return out + kMegatronBest + ", " + kKwaiBest + ", " + kAdaPipe + "[:F], " + kAdaptiveRecompute +
         "[:F], " + kBaGuaLu2Offload + ", " + kPagedStash + "F[:B], " + kFixedPlan + ", " +
         kAdaptive + "[:N], " + kBaGuaLu2 + ", " + kTidemark + ", " + kPlan + "FILE";
}

NamedPolicy named_policy(const JobInput& given, const std::string& name,
                         const RoutingSource& source, double risk) {
  NamedPolicy out{given, std::nullopt, std::nullopt, std::nullopt, false, {}};
  Job& job = out.input.job;
  const HardwareProfile& profile = out.input.profile;
  const RoutingInput routing = routing_input(job);
  const auto bound = [&] { return rows_bound(job, routing, source, risk); };
  const auto manage = [&](AdaptiveRun run) {
    out.notes.push_back(note_of(run.plan));
    out.managed.emplace(std::move(run));
  };
  const auto build = baseline(name);
  const std::optional<double> adapipe_load = planned_load(name, kAdaPipe);
  const std::optional<std::int64_t> rehearsed = rehearsed_iterations(name);
  const std::optional<PagedStash> stash = paged_stash(name, job);
  const bool planned = name.starts_with(kPlan);
  const bool decides = build || adapipe_load || rehearsed || stash || planned ||
                       name == kFixedPlan || name == kTidemark || name == kBaGuaLu2 ||
                       name == kMegatronBest || name == kKwaiBest;
  job = static_policy(job, decides ? "keep-everything" : name).job;
  if (build) {
    out.managed.emplace(build(job, profile));
    out.rescues = planned_load(name, kAdaptiveRecompute).has_value();
  } else if (adapipe_load) {
    AdaPipeRun run = adapipe_run(job, profile, *adapipe_load);
    job = run.job;
    out.notes.push_back(note_of(run));
    out.managed.emplace(std::move(run.run));
  } else if (stash) {
    PagedStashRun run = paged_stash_run(job, profile, *stash);
    out.managed.emplace(std::move(run.first));
    out.stash = std::move(run.limits);
    out.rerun = std::move(run.rerun);
  } else if (planned) {
    manage(planned_run(job, profile, read_adaptive_plan(name.substr(std::strlen(kPlan)))));
  } else if (name == kMegatronBest) {
    job = megatron_best(out.input, bound(), out.notes);
  } else if (name == kKwaiBest) {
    const RatioSearch search = least_offload_ratio(job, profile);
    out.notes.push_back(note_of(search));
    if (search.best) job = *search.best;
  } else if (name == kFixedPlan) {
    out.managed.emplace(fixed_run(job, profile, bound()));
  } else if (name == kTidemark || name == kBaGuaLu2) {
    const RoutingCounts typical = typical_routing(job, routing, source);
    InterleavedRun run = name == kTidemark ? interleaved_run(job, profile, bound(), typical)
                                           : bagualu2_run(job, profile, typical);
    job = run.job;
    out.notes.push_back(note_of(run));
    manage(std::move(run.run));
  } else if (rehearsed && *rehearsed == 0) {
    manage(adaptive_run(job, profile, bound()));
  } else if (rehearsed) {
    if (!routing.file.empty()) {
      throw InputError(
          "", "policy", "\"" + name + "\"",
          "adaptive without a number: a recorded trace has no iterations to rehearse on");
    }
    Rehearsal rehearsal = rehearsed_adaptive_run(job, profile, bound(), source, *rehearsed);
    out.notes.push_back(note_of(rehearsal, *rehearsed));
    manage(std::move(rehearsal.run));
  }
  return out;
}

}  // namespace tidemark
