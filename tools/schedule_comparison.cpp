#include "tools/schedule_comparison.h"

#include <algorithm>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "models/input_error.h"
#include "models/job_reader.h"
#include "tools/job_input.h"
#include "tools/quantity_text.h"
#include "tools/simulation_report.h"
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
  if (name != kCombined) o.delay_wgrad_compute = o.ep_overlap_early_attn_memory_release = false;
  // Megatron refuses it beside combined slots.
  if (job.combines_slots()) o.moe_shared_expert_overlap = false;
  return job;
}

struct Outcome {
  std::string name;
  std::string refused;  // why it cannot be; empty: it was simulated
  IterationResult iteration;
  std::vector<std::int32_t> in_flight;  // [stage]: chunks
  std::int64_t chunks = 1;              // of a stage
  Bytes peak_allocated;                 // of the stage that allocates most
  Bytes peak_reserved;
  bool fits = false;
};

Outcome simulate_schedule(const JobInput& input, const std::string& name) {
  Outcome out;
  out.name = name;
  const Job job = with_schedule(input.job, name);
  try {
    validate(job, "");
  } catch (const InputError& error) {
    const Violation& v = error.violations().front();
    out.refused = v.place + ": " + v.found + ", needs " + v.allowed;
    return out;
  }
  const Simulation simulation = simulate(job, input.profile, balanced_routing(job));
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

std::string table_text(const std::vector<Outcome>& outcomes) {
  using Align = TextTable::Align;
  TextTable table({{"schedule", Align::kLeft},
                   {"iteration"},
                   {"bubble"},
                   {"in flight"},
                   {"peak allocated"},
                   {"reserved"},
                   {"fits", Align::kLeft}});
  std::string refused;
  for (const Outcome& o : outcomes) {
    if (!o.refused.empty()) {
      refused += o.name + " is not possible: " + o.refused + "\n";
      continue;
    }
    // In microbatches of a stage.
    const double most =
        static_cast<double>(*std::ranges::max_element(o.in_flight)) / static_cast<double>(o.chunks);
    table.add_row({o.name, duration_text(SimDuration(o.iteration.time_ns)),
                   share_text(o.iteration.bubble_fraction, 1), fixed_text(most, 1),
                   gib_text(o.peak_allocated), gib_text(o.peak_reserved), o.fits ? "yes" : "no"});
  }
  return table.text() + (refused.empty() ? "" : "\n" + refused);
}

nlohmann::ordered_json to_json(const Outcome& o) {
  nlohmann::ordered_json json;
  json["name"] = o.name;
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
  return json;
}

}  // namespace

Report compare_schedules(const Arguments& arguments) {
  const std::vector<std::string> names = read_schedules(arguments);
  const JobInput input = read_job_input(arguments);
  std::vector<Outcome> outcomes;
  for (const std::string& name : names) outcomes.push_back(simulate_schedule(input, name));
  Report report;
  report.json = result_with_provenance(input.files, arguments);
  for (const Outcome& o : outcomes) report.json["schedules"].push_back(to_json(o));
  report.text = job_text(input) + "\n" + table_text(outcomes) +
                "\nIn flight: microbatches of a whole stage that the fullest stage holds.\n" +
                warnings_text(input.job);
  return report;
}

}  // namespace tidemark
