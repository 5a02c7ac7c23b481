#include "tools/schedule_comparison.h"

#include <algorithm>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "models/input_error.h"
#include "models/job_reader.h"
#include "planner/slot_interleaving.h"
#include "tools/job_input.h"
#include "tools/quantity_text.h"
#include "tools/simulation_report.h"
#include "tools/stream_overlap.h"
#include "tools/text_table.h"
#include "traces/routing.h"

namespace tidemark {
namespace {

// Besides the names of job files: Megatron's with virtual stages, and that with the slots that
// --overlap-moe-expert-parallel-comm combines.
constexpr const char* kInterleaved = "interleaved";
constexpr const char* kCombined = "combined";

std::vector<std::string> schedule_names() {
  std::vector<std::string> names{kInterleaved, kCombined};
  for (const auto& [schedule, name] : pipeline_schedules()) names.push_back(name);
  return names;
}

std::vector<std::string> read_schedules(const Arguments& arguments) {
  const std::vector<std::string> known = schedule_names();
  std::string allowed = "names separated by commas, of:";
  for (const std::string& name : known) allowed += " " + name;
  std::vector<std::string> names;
  std::vector<Violation> violations;
  std::istringstream list(arguments.text("schedules").value_or(""));
  for (std::string name; std::getline(list, name, ',');) {
    if (std::ranges::count(known, name) == 0) {
      violations.push_back({"", "--schedules", "\"" + name + "\"", allowed});
    }
    names.push_back(name);
  }
  if (names.empty()) violations.push_back({"", "--schedules", "nothing", allowed});
  throw_if_any(violations);
  return names;
}

// The job with another schedule; chunks of a stage change where it needs others.
Job with_schedule(Job job, const std::string& name) {
  ParallelLayout& l = job.layout;
  TrainingOptions& o = job.options;
  l.schedule = PipelineSchedule::kOneForwardOneBackward;
  o.overlap_moe_expert_parallel_comm = name == kCombined;
  if (name == kInterleaved || name == kCombined) {
    l.virtual_pipeline = std::max<std::int64_t>(l.virtual_pipeline, 2);
  } else {
    for (const auto& [schedule, text] : pipeline_schedules()) {
      if (text == name) l.schedule = schedule;
    }
    l.virtual_pipeline = std::max<std::int64_t>(l.required_chunks(), 1);
  }
  const bool delays = name == kCombined || l.schedule == PipelineSchedule::kCombined1F1B;
  if (!delays) o.delay_wgrad_compute = o.ep_overlap_early_attn_memory_release = false;
  // Megatron refuses it beside combined slots.
  if (job.combines_slots()) o.moe_shared_expert_overlap = false;
  return job;
}

struct Outcome {
  std::string name;
  std::string order;    // of combined slots; empty: there are none
  std::string refused;  // why it cannot be; empty: it was simulated
  IterationResult iteration;
  std::vector<std::int32_t> in_flight;  // [stage]: chunks
  std::int64_t chunks = 1;              // of a stage
  Bytes peak_allocated;                 // of the stage that allocates most
  Bytes peak_reserved;
  bool fits = false;
  std::int64_t expert_ns = 0;  // expert-parallel communication of a card, mean over the stages
  std::int64_t exposed_ns = 0;
};

Outcome simulate_job(const Job& job, const HardwareProfile& profile) {
  Outcome out;
  StreamOverlap streams(static_cast<std::size_t>(job.layout.pipeline));
  const Simulation simulation =
      simulate(job, profile, balanced_routing(job), ordered_program(job, profile), &streams);
  const StreamTimes times = streams.times();
  out.expert_ns = times.expert_communication;
  out.exposed_ns = times.exposed_expert_communication;
  out.iteration = simulation.result.iteration;
  out.chunks = job.layout.virtual_pipeline;
  out.fits = simulation.result.fits();
  for (const StageResult& s : simulation.result.stages) {
    out.in_flight.push_back(s.in_flight_peak);
    out.peak_allocated = std::max(out.peak_allocated, s.peak_allocated());
    out.peak_reserved = std::max(out.peak_reserved, s.peak_reserved());
  }
  return out;
}

// Combined slots in both orders.
std::vector<Outcome> simulate_schedule(const JobInput& input, const std::string& name) {
  Job job = with_schedule(input.job, name);
  try {
    validate(job, "");
  } catch (const InputError& error) {
    const Violation& v = error.violations().front();
    Outcome refused;
    refused.name = name;
    refused.refused = v.place + ": " + v.found + ", needs " + v.allowed;
    return {refused};
  }
  std::vector<Outcome> out;
  for (const auto& [order, text] : slot_order_names()) {
    if (!job.combines_slots() && !out.empty()) break;
    job.options.combined_slot_order = order;
    out.push_back(simulate_job(job, input.profile));
    out.back().name = name;
    if (job.combines_slots()) out.back().order = text;
  }
  return out;
}

// What the second order of the same schedule makes better.
std::string gain_text(const Outcome& first, const Outcome& second) {
  const std::int64_t saved = first.iteration.time_ns - second.iteration.time_ns;
  if (saved <= 0) return second.name + ": no order shorter than Megatron's was found.\n";
  return second.name + ": our order of combined slots saves " + duration_text(SimDuration(saved)) +
         " (" +
         share_text(static_cast<double>(saved), static_cast<double>(first.iteration.time_ns)) +
         ") of Megatron's; exposed expert communication " +
         duration_text(SimDuration(first.exposed_ns)) + " -> " +
         duration_text(SimDuration(second.exposed_ns)) + ".\n";
}

std::string table_text(const std::vector<Outcome>& outcomes) {
  using Align = TextTable::Align;
  TextTable table({{"schedule", Align::kLeft},
                   {"iteration"},
                   {"bubble"},
                   {"in flight"},
                   {"peak allocated"},
                   {"reserved"},
                   {"fits", Align::kLeft},
                   {"expert communication"},
                   {"exposed"}});
  std::string refused;
  std::string gains;
  const Outcome* before = nullptr;
  for (const Outcome& o : outcomes) {
    if (!o.refused.empty()) {
      refused += o.name + " is not possible: " + o.refused + "\n";
      continue;
    }
    // In microbatches of a stage.
    const double most =
        static_cast<double>(*std::ranges::max_element(o.in_flight)) / static_cast<double>(o.chunks);
    table.add_row({o.name + (o.order.empty() ? "" : ", order " + o.order),
                   duration_text(SimDuration(o.iteration.time_ns)),
                   share_text(o.iteration.bubble_fraction, 1), fixed_text(most, 1),
                   gib_text(o.peak_allocated), gib_text(o.peak_reserved), o.fits ? "yes" : "no",
                   duration_text(SimDuration(o.expert_ns)),
                   duration_text(SimDuration(o.exposed_ns))});
    if (before != nullptr && before->name == o.name) gains += gain_text(*before, o);
    before = &o;
  }
  return table.text() + (gains.empty() ? "" : "\n" + gains) +
         (refused.empty() ? "" : "\n" + refused);
}

nlohmann::ordered_json to_json(const Outcome& o) {
  nlohmann::ordered_json json;
  json["name"] = o.name;
  if (!o.order.empty()) json["combined_slot_order"] = o.order;
  if (!o.refused.empty()) {
    json["refused"] = o.refused;
    return json;
  }
  json["time_ns"] = o.iteration.time_ns;
  json["bubble_fraction"] = o.iteration.bubble_fraction;
  json["chunks_per_stage"] = o.chunks;
  json["in_flight_peak_chunks"] = o.in_flight;
  json["peak_allocated_bytes"] = o.peak_allocated.value;
  json["peak_reserved_bytes"] = o.peak_reserved.value;
  json["fits"] = o.fits;
  json["expert_communication_ns"] = o.expert_ns;
  json["exposed_expert_communication_ns"] = o.exposed_ns;
  return json;
}

}  // namespace

Report compare_schedules(const Arguments& arguments) {
  const std::vector<std::string> names = read_schedules(arguments);
  const JobInput input = read_job_input(arguments);
  std::vector<Outcome> outcomes;
  for (const std::string& name : names) {
    for (Outcome& o : simulate_schedule(input, name)) outcomes.push_back(std::move(o));
  }
  Report report;
  report.json = result_with_provenance(input.files, arguments);
  for (const Outcome& o : outcomes) report.json["schedules"].push_back(to_json(o));
  report.text = job_text(input) + "\n" + table_text(outcomes) +
                "\nIn flight: microbatches of a whole stage that the fullest stage holds. Expert "
                "communication:\nof a card, mean over the stages; exposed while nothing "
                "computes.\n" +
                warnings_text(input.job);
  return report;
}

}  // namespace tidemark
