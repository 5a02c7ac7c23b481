#include "tools/policy_run.h"

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <limits>
#include <memory>
#include <optional>
#include <utility>

#include <unistd.h>

#include "models/input_error.h"
#include "models/parse_number.h"
#include "planner/slot_interleaving.h"
#include "tools/named_policy.h"
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

std::string stash_note(const StashLimits& limits, const RunResult& run) {
  Bytes stash;
  for (const std::vector<StashBuffer>& stage : limits.stages) {
    Bytes of_stage;
    for (const StashBuffer& b : stage) {
      of_stage += Bytes(b.pages * kStashPageRows * b.row_bytes);
    }
    stash = std::max(stash, of_stage);
  }
  return "up to " + gib_text(stash) + " of buffers a card, " +
         grouped_text(std::ranges::count(run.iterations, true, &IterationRecord::run_again)) +
         " of " + grouped_text(std::ssize(run.iterations)) + " iterations run again";
}

std::string rescues_note(const RunResult& run) {
  Bytes swapped;
  std::int64_t ns = 0;
  for (const IterationRecord& i : run.iterations) {
    swapped += i.swapped;
    ns += i.swap_ns;
  }
  const auto rescued = [](const IterationRecord& i) { return i.swapped > Bytes(); };
  return grouped_text(std::ranges::count_if(run.iterations, rescued)) + " of " +
         grouped_text(std::ssize(run.iterations)) + " iterations rescued by swapping, " +
         gib_text(swapped) + " out and in again, " + duration_text(SimDuration(ns)) + " longer";
}

// Of unit 0 in the first iteration.
StreamTimes measure_streams(const Job& job, const Program& program, const Policy* policy,
                            const RoutingSource& source) {
  RoutingCounts counts;
  source.counts(0, 0, counts);
  const LaneRows rows(job, counts);
  UnitDecisions decisions;
  if (policy != nullptr) decisions = decide_unit(*policy, program.stages.size(), rows);
  StreamOverlap streams(program.stages.size());
  Recorder* const recorders[] = {&streams};
  run_units(program, {&rows, 1}, recorders,
            {&decisions, static_cast<std::size_t>(policy != nullptr)});
  return streams.times();
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
           "of running out of memory in an iteration, for policies that plan for it; 0.001"}};
}

std::string notes_text(const PolicyRun& run) {
  std::string out;
  for (const std::string& note : run.notes) out += run.policy + ": " + note + "\n";
  return out;
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
  const RoutingInput routing = routing_input(given.job);
  NamedPolicy named =
      named_policy(given, policy, *make_routing(given.job, routing, options.seed), options.risk);
  PolicyRun out{policy, std::move(named.input), {}, std::move(named.notes), std::nullopt, {}};
  const Job& job = out.input.job;  // its experts may have a capacity by now
  const HardwareProfile& profile = out.input.profile;
  const std::unique_ptr<RoutingSource> source = make_routing(job, routing, options.seed);
  const bool alike = cards_are_alike(job, routing);
  std::optional<ManagedRun>& managed = named.managed;
  if (managed && !managed->actions.empty()) out.decisions.emplace(std::move(managed->actions));
  Program program = managed ? std::move(managed->program) : ordered_program(job, profile);
  const Policy* const decider = managed ? managed->policy.get() : nullptr;
  if (options.measures_streams) out.streams = measure_streams(job, program, decider, *source);
  TrainingRun run = decider != nullptr
                        ? TrainingRun(job, profile, *source, alike, std::move(program), *decider,
                                      std::move(named.rerun), named.rescues)
                        : TrainingRun(job, profile, *source, alike, std::move(program));
  RunSpec spec = options.spec;
  spec.repeats_routing |= !routing.file.empty();  // a trace has one routing for each iteration
  out.run = run_with_progress(run, spec, policy, options.memory_csv,
                              out.decisions ? &*out.decisions : nullptr);
  if (named.stash) out.notes.push_back(stash_note(*named.stash, out.run));
  if (named.rescues) out.notes.push_back(rescues_note(out.run));
  return out;
}

}  // namespace tidemark
