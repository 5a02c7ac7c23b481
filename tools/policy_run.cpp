#include "tools/policy_run.h"

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <utility>

#include <unistd.h>

#include "models/input_error.h"
#include "models/job_reader.h"
#include "models/parse_number.h"
#include "planner/adaptive_policy.h"
#include "planner/bagualu2_policy.h"
#include "planner/interleaved_run.h"
#include "planner/paged_stash.h"
#include "planner/recompute_baselines.h"
#include "planner/rehearsal.h"
#include "planner/slot_interleaving.h"
#include "planner/static_policies.h"
#include "planner/static_search.h"
#include "tools/output_file.h"
#include "tools/quantity_text.h"

namespace tidemark {
namespace {

volatile std::sig_atomic_t interrupted = 0;
void on_interrupt(int) { interrupted = 1; }

// SIGINT only asks to stop, while this lives.
class InterruptGuard {
 public:
  InterruptGuard() : before_(std::signal(SIGINT, on_interrupt)) { interrupted = 0; }
  ~InterruptGuard() { std::signal(SIGINT, before_); }
  InterruptGuard(const InterruptGuard&) = delete;
  InterruptGuard& operator=(const InterruptGuard&) = delete;

 private:
  void (*before_)(int);
};

constexpr const char* kAdaptive = "adaptive";
constexpr const char* kFixedPlan = "fixed-plan";
constexpr const char* kTidemark = "tidemark";
constexpr const char* kPlan = "plan:";
constexpr const char* kMegatronBest = "megatron-best";
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

std::string notes_of(const StashLimits& limits, const std::string& policy, const RunResult& run) {
  Bytes stash;
  for (const std::vector<StashBuffer>& stage : limits.stages) {
    Bytes of_stage;
    for (const StashBuffer& b : stage) {
      of_stage += Bytes(b.pages * kStashPageRows * b.row_bytes);
    }
    stash = std::max(stash, of_stage);
  }
  return policy + ": up to " + gib_text(stash) + " of buffers a card, " +
         grouped_text(std::ranges::count(run.iterations, true, &IterationRecord::run_again)) +
         " of " + grouped_text(std::ssize(run.iterations)) + " iterations run again\n";
}

// A baseline that runs a program with optional actions; empty: `policy` is none.
std::function<ManagedRun(const Job&, const HardwareProfile&)> baseline(const std::string& policy) {
  if (policy == kBaGuaLu2Offload) return bagualu2_offload_run;
  if (const auto load = planned_load(policy, kAdaPipe)) {
    return [=](const Job& job, const HardwareProfile& p) { return adapipe_run(job, p, *load); };
  }
  if (const auto load = planned_load(policy, kAdaptiveRecompute)) {
    return [=](const Job& job, const HardwareProfile& p) {
      return adaptive_recompute_run(job, p, *load);
    };
  }
  return nullptr;
}

std::string notes_of(const std::string& policy, const AdaptivePlan& plan) {
  std::string out =
      policy + ": safe for " + fixed_text(plan.rows_bound, 2) + " times the balanced load";
  for (std::size_t s = 0; s < plan.stages.size(); ++s) {
    const std::int64_t headroom = plan.stages[s].headroom_bytes;
    if (headroom >= 0) continue;
    out += "; stage " + std::to_string(s) + " lacks " + gib_text(Bytes(-headroom)) +
           " even if it gives up all it can";
  }
  return out + "\n";
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

std::string notes_of(const Rehearsal& rehearsal, std::int64_t iterations) {
  std::string out = "adaptive: rehearsed on " + grouped_text(iterations) +
                    " iterations, withholds " + gib_text(Bytes(rehearsal.withheld_bytes));
  if (rehearsal.deaths > 0) {
    out += ", and still runs out of memory in " + grouped_text(rehearsal.deaths);
  }
  return out + "\n";
}

std::string slots_text(const Job& job) {
  std::string out = job.layout.virtual_pipeline > 1 ? "of virtual stages" : "combined-1f1b";
  for (const auto& [order, name] : slot_order_names()) {
    if (order == job.options.combined_slot_order) out += ", order " + name;
  }
  return out;
}

std::string notes_of(const InterleavedRun& run) {
  const std::string own = duration_text(SimDuration(run.own_schedule_ns));
  if (run.iteration_ns >= run.own_schedule_ns) {
    return "tidemark: the job's own schedule, " + own +
           " in a typical iteration: no combined slots that fit are faster\n";
  }
  return "tidemark: combined slots (" + slots_text(run.job) + "), " +
         duration_text(SimDuration(run.iteration_ns)) + " in a typical iteration against " + own +
         " of the job's own schedule\n";
}

// Of one unit: an iteration that no run reaches, or balanced where a trace has none to spare.
RoutingCounts typical_routing(const Job& job, const RoutingInput& routing,
                              const RoutingSource& source) {
  if (!routing.file.empty()) return balanced_routing(job);
  RoutingCounts out;
  source.counts(kTypicalIteration, 0, out);
  return out;
}

// Of unit 0 in the first iteration.
StreamTimes measure_streams(const Job& job, const Program& program, const Policy* policy,
                            const RoutingSource& source) {
  RoutingCounts counts;
  source.counts(0, 0, counts);
  const LaneRows rows(job, counts);
  UnitDecisions decisions;
  for (std::int32_t s = 0; policy != nullptr && s < std::ssize(program.stages); ++s) {
    decisions.push_back(policy->decide(s, rows));
  }
  StreamOverlap streams(program.stages.size());
  Recorder* const recorders[] = {&streams};
  run_units(program, {&rows, 1}, recorders,
            {&decisions, static_cast<std::size_t>(policy != nullptr)});
  return streams.times();
}

// The job under the best of Megatron's settings, or under those that hold least.
Job megatron_best(const JobInput& input, double bound, std::string& notes) {
  const StaticSearch search = best_static_policy(input.job, input.profile, bound);
  const StaticPolicy policy =
      search.best ? *search.best : static_policy(input.job, "full-recompute");
  notes = std::string(kMegatronBest) + ": " + policy.name + ", " +
          (search.best ? "the fastest" : "since none") + " of " + grouped_text(search.settings) +
          " settings " + (search.best ? "that fits " : "fits ") + fixed_text(bound, 2) +
          " times the balanced load\n";
  return policy.job;
}

// Peak allocated of every card, an iteration after the other.
class MemoryCsv {
 public:
  explicit MemoryCsv(const std::string& path) : file_(path) {
    file_.stream() << "iteration,attempt,unit,stage,lane,peak_allocated_bytes\n";
  }
  void add(const IterationRecord& record, const std::vector<CardPeak>& cards) {
    for (const CardPeak& c : cards) {
      file_.stream() << record.iteration << ',' << record.attempt << ',' << c.card.unit << ','
                     << c.card.stage << ',' << c.card.lane << ',' << c.peak.value << '\n';
    }
  }
  void commit() { file_.commit(); }

 private:
  OutputFile file_;
};

}  // namespace

std::vector<Flag> run_flags() {
  return {{"iterations", "N", "iterations of a run; the job's when not given"},
          {"seed", "N", "of synthetic routing; 1 when not given"},
          {"risk", "P",
           "of running out of memory in an iteration, for " + std::string(kMegatronBest) + " and " +
               kAdaptive + "; 0.001"}};
}

RunOptions run_options(const Job& job, const Arguments& arguments) {
  RunOptions out;
  out.spec = job.run;
  out.spec.iterations =
      arguments.integer("iterations", 1, 10'000'000).value_or(out.spec.iterations);
  out.seed = static_cast<std::uint64_t>(
      arguments.integer("seed", 0, std::numeric_limits<std::int64_t>::max()).value_or(1));
  if (const auto text = arguments.text("risk")) {
    const auto risk = parse_number<double>(*text);
    if (!risk || !(*risk > 0 && *risk < 1)) {
      throw InputError("", "--risk", "\"" + *text + "\"",
                       "a number between 0 and 1, both excluded");
    }
    out.risk = *risk;
  }
  return out;
}

std::string policies_help() {
  std::string out = "how memory is kept within its limit: ";
  for (const std::string& form : static_policy_forms()) out += form + ", ";
  return out + kMegatronBest + ", " + kAdaPipe + "[:F], " + kAdaptiveRecompute + "[:F], " +
         kBaGuaLu2Offload + ", " + kPagedStash + "F[:B], " + kFixedPlan + ", " + kAdaptive +
         "[:N], " + kTidemark + ", " + kPlan + "FILE";
}

RunResult run_with_progress(TrainingRun& run, const RunSpec& spec, const std::string& label,
                            const std::string& memory_csv, DecisionLog* log) {
  const bool shows = isatty(STDERR_FILENO) != 0 && spec.iterations > 1;
  std::optional<MemoryCsv> csv;
  if (!memory_csv.empty()) csv.emplace(memory_csv);
  const InterruptGuard guard;
  std::int64_t done = 0;
  RunResult out = run.run(spec, [&](const IterationRecord& record) {
    done += !record.out_of_memory;
    if (csv) csv->add(record, run.card_peaks());
    if (log != nullptr) log->add(record, run.decisions());
    if (shows) {
      std::fprintf(stderr, "\r%s: iteration %lld of %lld", label.c_str(),
                   static_cast<long long>(done), static_cast<long long>(spec.iterations));
    }
    return interrupted == 0;
  });
  if (csv) csv->commit();
  if (shows) std::fprintf(stderr, "\r%79s\r", "");
  return out;
}

PolicyRun run_policy(const JobInput& given, const std::string& policy, const RunOptions& options) {
  PolicyRun out{policy, given, {}, "", std::nullopt, {}};
  const auto build = baseline(policy);
  const std::optional<std::int64_t> rehearsed = rehearsed_iterations(policy);
  const bool planned = policy.starts_with(kPlan);
  const bool searches = policy == kMegatronBest;
  const std::optional<PagedStash> stash = paged_stash(policy, given.job);
  const bool decides =
      build || rehearsed || planned || stash || policy == kFixedPlan || policy == kTidemark;
  out.input.job = static_policy(given.job, decides || searches ? "keep-everything" : policy).job;
  const Job& job = out.input.job;
  const HardwareProfile& profile = out.input.profile;
  const RoutingInput routing = routing_input(job);
  const std::unique_ptr<RoutingSource> source = make_routing(job, routing, options.seed);
  if (rehearsed.value_or(0) > 0 && !routing.file.empty()) {
    throw InputError(
        "", "policy", "\"" + policy + "\"",
        "adaptive without a number: a recorded trace has no iterations to rehearse on");
  }
  std::optional<ManagedRun> managed;
  const auto manage = [&](AdaptiveRun run) {
    out.notes += notes_of(policy, run.plan);
    managed.emplace(std::move(run));
  };
  std::optional<PagedStashRun> stashed;
  if (stash) {
    stashed.emplace(paged_stash_run(job, profile, *stash));
    managed.emplace(std::move(stashed->first));
  }
  if (build) managed.emplace(build(job, profile));
  if (planned) {
    manage(planned_run(job, profile, read_adaptive_plan(policy.substr(std::strlen(kPlan)))));
  }
  if (policy == kFixedPlan) {
    managed.emplace(fixed_run(job, profile, rows_bound(job, routing, *source, options.risk)));
  }
  if (policy == kTidemark) {
    const double bound = rows_bound(job, routing, *source, options.risk);
    InterleavedRun run =
        interleaved_run(job, profile, bound, typical_routing(job, routing, *source));
    out.input.job = run.job;
    out.notes = notes_of(run);
    manage(std::move(run.run));
  }
  if (rehearsed || searches) {
    const double bound = rows_bound(job, routing, *source, options.risk);
    if (searches) {
      out.input.job = megatron_best(out.input, bound, out.notes);
    } else if (*rehearsed == 0) {
      manage(adaptive_run(job, profile, bound));
    } else {
      Rehearsal rehearsal = rehearsed_adaptive_run(job, profile, bound, *source, *rehearsed);
      out.notes = notes_of(rehearsal, *rehearsed);
      manage(std::move(rehearsal.run));
    }
  }
  if (managed && !managed->actions.empty()) out.decisions.emplace(std::move(managed->actions));
  const bool alike = cards_are_alike(job, routing);
  Program program = managed ? std::move(managed->program) : ordered_program(job, profile);
  const Policy* const decider = managed ? managed->policy.get() : nullptr;
  if (options.measures_streams) out.streams = measure_streams(job, program, decider, *source);
  TrainingRun run =
      decider != nullptr
          ? TrainingRun(job, profile, *source, alike, std::move(program), *decider,
                        stashed ? std::optional(std::move(stashed->rerun)) : std::nullopt)
          : TrainingRun(job, profile, *source, alike, std::move(program));
  RunSpec spec = options.spec;
  spec.repeats_routing |= !routing.file.empty();  // a trace has one routing for each iteration
  out.run = run_with_progress(run, spec, policy, options.memory_csv,
                              out.decisions ? &*out.decisions : nullptr);
  if (stashed) out.notes += notes_of(stashed->limits, policy, out.run);
  return out;
}

}  // namespace tidemark
