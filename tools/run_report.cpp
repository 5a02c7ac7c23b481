#include "tools/run_report.h"

#include <algorithm>

#include <nlohmann/json.hpp>

#include "models/flops.h"
#include "tools/quantity_text.h"
#include "tools/text_table.h"

namespace tidemark {
namespace {

double mfu(const JobInput& input, std::int64_t iterations, std::int64_t ns) {
  if (ns == 0) return 0;
  const double flops =
      static_cast<double>(model_flops_per_iteration(input.job)) * static_cast<double>(iterations);
  const double seconds = static_cast<double>(ns) * 1e-9;
  return flops / seconds / static_cast<double>(input.job.layout.cards) * 1e-12 /
         input.profile.peak_bf16_tflops.value;
}

std::string card_text(const RunResult& run, const CardId& card) {
  const std::string unit = run.units == 1 ? "" : "unit " + std::to_string(card.unit) + ", ";
  return unit + "stage " + std::to_string(card.stage) + ", lane " + std::to_string(card.lane);
}

nlohmann::ordered_json stages_json(const RunResult& run) {
  nlohmann::ordered_json out = nlohmann::ordered_json::array();
  for (std::size_t s = 0; s < run.stages.size(); ++s) {
    const StageReserved& reserved = run.stages[s];
    out.push_back({{"stage", s}, {"peak_reserved_bytes", reserved.emulated.value}});
    if (!reserved.bound) continue;
    out.back()["reserved_bound_bytes"] = reserved.bound->value;
    out.back()["bound_fits"] = *reserved.bound <= run.limit;
  }
  return out;
}

std::string reserved_table(const RunResult& run) {
  TextTable table(
      {{"stage"}, {"emulated card"}, {"any card, at most"}, {"", TextTable::Align::kLeft}});
  for (std::size_t s = 0; s < run.stages.size(); ++s) {
    const StageReserved& reserved = run.stages[s];
    const bool crosses = reserved.bound && *reserved.bound > run.limit;
    table.add_row({std::to_string(s), gib_text(reserved.emulated),
                   reserved.bound ? gib_text(*reserved.bound) : "-",
                   crosses ? "above the limit" : ""});
  }
  return table.text();
}

nlohmann::ordered_json card_json(const CardId& card) {
  return {{"unit", card.unit}, {"stage", card.stage}, {"lane", card.lane}};
}

const IterationRecord& tightest(const RunResult& run) {
  return *std::ranges::max_element(run.iterations, {}, &IterationRecord::peak_reserved);
}

std::int64_t most_retries(const RunResult& run) {
  return std::ranges::max_element(run.iterations, {}, &IterationRecord::alloc_retries)
      ->alloc_retries;
}

// What is known of the cards that are not emulated, behind others.
std::string others_text(const RunResult& run) {
  const std::optional<std::int64_t> stage = run.highest_bound();
  if (!stage) return " Of each stage one card is emulated; no bound on the others is known.";
  const Bytes bound = *run.stages[static_cast<std::size_t>(*stage)].bound;
  return std::string(" The other cards reserve at most ") + gib_text(bound) + " (stage " +
         std::to_string(*stage) + ", estimated)" +
         (bound <= run.limit ? "." : ": whether all of them fit is open.");
}

std::string verdict(const RunResult& run) {
  const IterationRecord& worst = tightest(run);
  const std::string highest = gib_text(worst.peak_reserved) + " of " + gib_text(run.limit) + " (" +
                              card_text(run, worst.hottest) + ", iteration " +
                              std::to_string(worst.iteration) + ")";
  const std::string ran =
      grouped_text(run.finished) + (run.finished == 1 ? " iteration" : " iterations");
  if (run.out_of_memory.empty()) {
    return "Fits: " + ran + " without running out of memory; the tightest card reserves " +
           highest + "." + others_text(run) + retries_text(most_retries(run));
  }
  const std::string times = run.out_of_memory.size() == 1
                                ? "once"
                                : grouped_text(std::ssize(run.out_of_memory)) + " times";
  return "Out of memory " + times + " in " + ran + (run.stuck ? ", and cannot go on" : "") +
         "; without a limit the tightest card would reserve " + highest + ".";
}

}  // namespace

std::string retries_text(std::int64_t alloc_retries) {
  return alloc_retries == 0 ? ""
                            : " Up to " + grouped_text(alloc_retries) +
                                  " requests of an iteration wait for the device to find room; the "
                                  "times leave that out.";
}

double mfu_with_losses(const JobInput& input, const RunResult& run) {
  return mfu(input, run.finished, run.total_ns);
}

double mfu_without_losses(const JobInput& input, const RunResult& run) {
  return mfu(input, run.finished, run.total_ns - run.lost_ns);
}

std::int64_t mean_iteration_ns(const RunResult& run) {
  std::int64_t sum = 0;
  for (const IterationRecord& i : run.iterations) {
    if (!i.out_of_memory) sum += i.time_ns;
  }
  return run.finished == 0 ? 0 : sum / run.finished;
}

ExitCode exit_of(const RunResult& run) {
  return run.out_of_memory.empty() ? ExitCode::kOk : ExitCode::kDoesNotFit;
}

std::string run_text(const JobInput& input, const RunResult& run) {
  const auto percent = [](double share) { return fixed_text(100 * share, 1) + " %"; };
  std::string out = verdict(run) + "\n";
  if (run.interrupted) out += "Interrupted: what follows is the part that ran.\n";
  out += "\nCards evaluated: " +
         grouped_text(run.units * input.job.layout.pipeline * input.job.layout.lanes_per_stage()) +
         (run.units < input.job.layout.units() ? ", which stand for all" : "") + ".\n";
  out += "Throughput: " + fixed_text(run.tokens_per_second(input.job), 0) +
         " useful tokens/s, MFU " + percent(mfu_with_losses(input, run)) + " (" +
         percent(mfu_without_losses(input, run)) +
         " without losses). Lost: " + duration_text(SimDuration(run.lost_ns)) + " of " +
         duration_text(SimDuration(run.total_ns)) + ".\n";
  out += "Peak allocated of cards: " + gib_text(run.cards.min) + " least, " +
         gib_text(run.cards.mean) + " mean, " + gib_text(run.cards.p999) + " 99.9th percentile, " +
         gib_text(run.cards.max) + " most.\n";
  out += "Waiting for later members of their groups: " +
         duration_text(SimDuration(run.cards.mean_wait_ns)) + " a card and iteration, at most " +
         duration_text(SimDuration(run.cards.max_wait_ns)) + ".\n\nWhat the stages reserve, of " +
         gib_text(run.limit) + ":\n\n" + reserved_table(run) + "\nThe hottest cards:\n";
  for (const CardPeak& hot : run.cards.hottest) {
    out += "  " + gib_text(hot.peak) + "  " + card_text(run, hot.card) + "\n";
  }
  if (run.out_of_memory.empty()) return out;
  out += "\nOut of memory:\n";
  constexpr std::size_t kShown = 10;
  for (std::size_t i = 0; i < std::min(kShown, run.out_of_memory.size()); ++i) {
    const RunOutOfMemory& o = run.out_of_memory[i];
    out += "  iteration " + std::to_string(o.iteration) + " after " +
           duration_text(SimDuration(o.time_ns)) + ", " + card_text(run, o.card);
    if (o.microbatch >= 0) out += ", microbatch " + std::to_string(o.microbatch);
    if (o.layer >= 0) out += ", layer " + std::to_string(o.layer);
    if (!o.storage.empty()) out += ", " + o.storage + " of " + gib_text(o.requested);
    out += ": " + gib_text(o.short_by) + " short\n";
  }
  if (run.out_of_memory.size() > kShown) {
    out += "  and " + std::to_string(run.out_of_memory.size() - kShown) + " more\n";
  }
  return out;
}

void add_run(nlohmann::ordered_json& result, const JobInput& input, const RunResult& run) {
  result["verdict"] = {{"fits", run.out_of_memory.empty()}, {"text", verdict(run)}};
  result["run"] = {{"iterations_finished", run.finished},
                   {"interrupted", run.interrupted},
                   {"stuck", run.stuck},
                   {"units_evaluated", run.units},
                   {"total_ns", run.total_ns},
                   {"lost_ns", run.lost_ns},
                   {"tokens_per_second", run.tokens_per_second(input.job)},
                   {"mfu", mfu_with_losses(input, run)},
                   {"mfu_without_losses", mfu_without_losses(input, run)},
                   {"limit_bytes", run.limit.value}};
  nlohmann::ordered_json& cards = result["cards"];
  cards = {{"peak_allocated_min_bytes", run.cards.min.value},
           {"peak_allocated_mean_bytes", run.cards.mean.value},
           {"peak_allocated_p999_bytes", run.cards.p999.value},
           {"peak_allocated_max_bytes", run.cards.max.value},
           {"mean_group_wait_ns", run.cards.mean_wait_ns},
           {"max_group_wait_ns", run.cards.max_wait_ns}};
  for (const CardPeak& hot : run.cards.hottest) {
    nlohmann::ordered_json card = card_json(hot.card);
    card["peak_allocated_bytes"] = hot.peak.value;
    cards["hottest"].push_back(std::move(card));
  }
  result["stages"] = stages_json(run);
  result["out_of_memory"] = nlohmann::ordered_json::array();
  for (const RunOutOfMemory& o : run.out_of_memory) {
    result["out_of_memory"].push_back({{"iteration", o.iteration},
                                       {"card", card_json(o.card)},
                                       {"time_ns", o.time_ns},
                                       {"microbatch", o.microbatch},
                                       {"layer", o.layer},
                                       {"storage", o.storage},
                                       {"requested_bytes", o.requested.value},
                                       {"short_by_bytes", o.short_by.value}});
  }
  result["iterations"] = nlohmann::ordered_json::array();
  const std::int64_t every = 1 + (std::ssize(run.iterations) - 1) / kSeriesLimit;
  for (std::int64_t i = 0; i < std::ssize(run.iterations); ++i) {
    const IterationRecord& r = run.iterations[static_cast<std::size_t>(i)];
    if (i % every != 0 && !r.out_of_memory) continue;
    result["iterations"].push_back({{"iteration", r.iteration},
                                    {"attempt", r.attempt},
                                    {"time_ns", r.time_ns},
                                    {"peak_allocated_bytes", r.peak_allocated.value},
                                    {"peak_reserved_bytes", r.peak_reserved.value},
                                    {"hottest", card_json(r.hottest)},
                                    {"imbalance", r.imbalance},
                                    {"out_of_memory", r.out_of_memory}});
    if (r.run_again) result["iterations"].back()["run_again"] = true;
    if (r.swapped > Bytes()) {
      result["iterations"].back()["swapped_bytes"] = r.swapped.value;
      result["iterations"].back()["swap_ns"] = r.swap_ns;
    }
    if (r.alloc_retries > 0) result["iterations"].back()["num_alloc_retries"] = r.alloc_retries;
  }
}

}  // namespace tidemark
