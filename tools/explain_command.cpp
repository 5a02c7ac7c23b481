#include <algorithm>
#include <optional>
#include <utility>

#include <nlohmann/json.hpp>

#include "models/input_error.h"
#include "planner/remedies.h"
#include "planner/slot_interleaving.h"
#include "sim/peak_snapshot.h"
#include "tools/command.h"
#include "tools/gnuplot.h"
#include "tools/job_input.h"
#include "tools/memory_breakdown.h"
#include "tools/memory_snapshot.h"
#include "tools/output_file.h"
#include "tools/quantity_text.h"
#include "tools/segment_map.h"
#include "tools/simulation_report.h"
#include "tools/slot_path.h"
#include "tools/text_table.h"
#include "traces/routing.h"

namespace tidemark {
namespace {

using Align = TextTable::Align;

std::string mib_text(Bytes bytes) { return fixed_text(to_mib(bytes), 1) + " MiB"; }

std::string layer_text(std::int32_t layer) {
  return layer < 0 ? "outside layers" : "layer " + std::to_string(layer);
}

// One stage of a simulation, taken apart.
struct Explanation {
  std::int64_t stage = 0;
  const StageResult& result;
  PeakMoment moment;
  LiveMemory live;
  std::vector<KeptLayer> kept;
  std::vector<Remedy> remedies;

  // What PyTorch's allocator counts beyond the blocks of fresh segments.
  Bytes tails() const {
    return result.card.memory.peak_in_pass - result.resident_bytes - live.bytes;
  }
};

std::string optimizer_step_text(const Explanation& e) {
  const CardMemory& memory = e.result.card.memory;
  if (!memory.peaks_in_optimizer_step()) return "";
  return "The optimizer step lies higher, at " + gib_text(memory.peak) + ": it makes " +
         gib_text(memory.gradient_copies) + " of fp32 copies of gradients.\n";
}

std::string peak_text(const Explanation& e) {
  std::string out = "Stage " + std::to_string(e.stage) + " peaks " +
                    duration_text(SimDuration(e.result.peak_time_ns)) +
                    " into an iteration, in the " + e.moment.text();
  if (!e.moment.operator_name.empty()) out += ", operator " + e.moment.operator_name;
  return out + ": " + gib_text(e.result.resident_bytes) + " resident + " + gib_text(e.live.bytes) +
         " live + " + mib_text(e.tails()) +
         " of block tails = " + gib_text(e.result.card.memory.peak_in_pass) +
         ". In the first iteration, without " + gib_text(e.result.moment_bytes) +
         " of optimizer moments, the peak is " +
         gib_text(e.result.peak_allocated_first_iteration()) + ".\n" + optimizer_step_text(e);
}

std::string resident_text(const Explanation& e) {
  TextTable table({{"resident", Align::kLeft}, {"bytes"}, {"size"}, {"rule from", Align::kLeft}});
  for (const ResidentItem& item : e.result.resident) {
    table.add_row({item.name, grouped_text(item.bytes.value), mib_text(item.bytes),
                   item.source + (item.calibrated ? " [calibrated]" : "")});
  }
  table.add_row({"left by the last microbatch", grouped_text(e.result.carried_over.value),
                 mib_text(e.result.carried_over), "Megatron's schedule and module state"});
  const Bytes copies = e.result.card.memory.gradient_copies;
  if (copies > Bytes()) {
    table.add_row({"fp32 gradients", grouped_text(copies.value), mib_text(copies),
                   "Megatron distrib_optimizer.py; until the next iteration"});
  }
  const Bytes tails = e.result.tails_after_iteration() - copies;
  table.add_row({"block tails", grouped_text(tails.value), mib_text(tails),
                 "PyTorch CUDACachingAllocator.cpp"});
  table.add_row({"allocated after an iteration",
                 grouped_text(e.result.allocated_after_iteration().value),
                 mib_text(e.result.allocated_after_iteration()), ""});
  return table.text() +
         "[calibrated]: a constant fitted on measured runs or assumed, not derived.\n";
}

std::string outside_text(const SimulationResult& result) {
  TextTable table({{"outside PyTorch's allocator", Align::kLeft},
                   {"bytes"},
                   {"size"},
                   {"rule from", Align::kLeft}});
  for (const OutsideItem& item : result.outside) {
    table.add_row({item.name, grouped_text(item.bytes.value), mib_text(item.bytes), item.source});
  }
  const Bytes all = result.capacity - result.limit();
  table.add_row({"not for segments", grouped_text(all.value), mib_text(all), ""});
  return table.text();
}

std::string live_text(const Explanation& e) {
  TextTable table({{"live at the peak", Align::kLeft}, {"copies"}, {"size"}, {"share"}});
  constexpr std::size_t kShown = 20;
  const auto whole = static_cast<double>(e.live.bytes.value);
  Bytes rest = e.live.bytes;
  for (std::size_t i = 0; i < std::min(kShown, e.live.names.size()); ++i) {
    const LiveGroup& group = e.live.names[i];
    table.add_row({group.name, std::to_string(group.copies), mib_text(group.bytes),
                   share_text(static_cast<double>(group.bytes.value), whole)});
    rest -= group.bytes;
  }
  if (e.live.names.size() > kShown) {
    table.add_row({"(" + std::to_string(e.live.names.size() - kShown) + " smaller)", "",
                   mib_text(rest), share_text(static_cast<double>(rest.value), whole)});
  }
  TextTable layers({{"by layer", Align::kLeft}, {"size"}, {"share"}});
  for (const LiveLayer& layer : e.live.layers) {
    layers.add_row({layer_text(layer.layer), mib_text(layer.bytes),
                    share_text(static_cast<double>(layer.bytes.value), whole)});
  }
  return table.text() + "\n" + layers.text();
}

std::string kept_text(const Explanation& e) {
  TextTable table({{"kept from forward to backward", Align::kLeft}, {"bytes"}, {"size"}});
  Bytes all;
  for (const KeptLayer& layer : e.kept) {
    table.add_row({layer_text(layer.layer) + (layer.moe ? " (MoE)" : " (dense)"),
                   grouped_text(layer.bytes.value), mib_text(layer.bytes)});
    all += layer.bytes;
  }
  table.add_row({"all layers of the stage", grouped_text(all.value), mib_text(all)});
  return table.text() +
         "The last layer's output is sent on and not kept. Each microbatch in flight "
         "holds that much: up to " +
         std::to_string(e.result.in_flight_peak) + " on this stage, " +
         gib_text(all * e.result.in_flight_peak) + ".\n";
}

std::string remedies_text(const Explanation& e) {
  TextTable table({{"change", Align::kLeft}, {"frees"}, {"iteration"}, {"flags", Align::kLeft}});
  for (const Remedy& remedy : e.remedies) {
    const bool bound = !remedy.simulated;
    const SimDuration change(bound ? 0 : remedy.simulated->time_change_ns);
    table.add_row({remedy.change, (bound ? "<= " : "") + gib_text(remedy.freed),
                   bound ? "longer" : (change.count() < 0 ? "-" : "+") + duration_text(abs(change)),
                   remedy.flags});
  }
  return "What would free memory at this peak. \"<=\": an upper bound, what is live and would be "
         "made again;\nthe others are simulated, and count on the stage that is then the fullest.\n"
         "\n" +
         table.text();
}

nlohmann::ordered_json groups_json(const std::vector<LiveGroup>& groups) {
  nlohmann::ordered_json json = nlohmann::ordered_json::array();
  for (const LiveGroup& group : groups) {
    json.push_back({{"name", group.name}, {"copies", group.copies}, {"bytes", group.bytes.value}});
  }
  return json;
}

nlohmann::ordered_json explanation_json(const Explanation& e) {
  nlohmann::ordered_json json;
  json["stage"] = e.stage;
  json["peak"] = {
      {"time_ns", e.result.peak_time_ns},   {"pass", e.moment.pass},
      {"microbatch", e.moment.microbatch},  {"layer", e.moment.layer},
      {"operator", e.moment.operator_name}, {"resident_bytes", e.result.resident_bytes.value},
      {"live_bytes", e.live.bytes.value}};
  for (const ResidentItem& item : e.result.resident) {
    json["resident"].push_back(
        {{"name", item.name},
         {"bytes", item.bytes.value},
         {"since_optimizer_step", item.since == ResidentSince::kOptimizerStep},
         {"source", item.source},
         {"calibrated", item.calibrated}});
  }
  json["carried_over_bytes"] = e.result.carried_over.value;
  json["live"] = groups_json(e.live.names);
  for (const LiveLayer& layer : e.live.layers) {
    json["live_by_layer"].push_back({{"layer", layer.layer}, {"bytes", layer.bytes.value}});
  }
  for (const KeptLayer& layer : e.kept) {
    json["kept_by_layer"].push_back({{"layer", layer.layer},
                                     {"moe", layer.moe},
                                     {"bytes", layer.bytes.value},
                                     {"storages", groups_json(layer.names)}});
  }
  json["in_flight_peak"] = e.result.in_flight_peak;
  json["remedies"] = nlohmann::ordered_json::array();
  for (const Remedy& remedy : e.remedies) {
    nlohmann::ordered_json item;
    item["change"] = remedy.change;
    item["flags"] = remedy.flags;
    item["freed_bytes"] = remedy.freed.value;
    item["upper_bound"] = !remedy.simulated.has_value();
    if (remedy.simulated) {
      item["time_change_ns"] = remedy.simulated->time_change_ns;
      item["fits"] = remedy.simulated->fits;
    }
    json["remedies"].push_back(std::move(item));
  }
  return json;
}

// The files beside the report.
void write_peak(const Arguments& arguments, const JobInput& input, const Simulation& simulation,
                const Explanation& e) {
  const auto map = arguments.text("segment-map");
  const auto file = arguments.text("memory-snapshot");
  if (!map && !file) return;
  const AllocatorSnapshot snapshot =
      snapshot_at_peak(input.job, input.profile, simulation, e.stage);
  if (map) {
    plot(segment_map(snapshot, e.moment.microbatch,
                     input.job.name + ", stage " + std::to_string(e.stage) +
                         " at its peak: " + gib_text(Bytes(snapshot.reserved())) + " reserved, " +
                         gib_text(Bytes(snapshot.allocated())) + " allocated"),
         *map);
  }
  if (file) {
    OutputFile out(*file);
    write_memory_snapshot(out.stream(), snapshot);
    out.commit();
  }
}

// The longest of the stages' where none is asked for.
Report report_slot(const JobInput& input, std::optional<std::int64_t> asked,
                   const Arguments& arguments) {
  for (const char* of_memory : {"segment-map", "memory-snapshot"}) {
    if (arguments.has(of_memory)) {
      throw InputError("", std::string("--") + of_memory, "given with --slot", "one of the two");
    }
  }
  const Program program = ordered_program(input.job, input.profile);
  const LaneRows rows(input.job, balanced_routing(input.job));
  ExplainedSlot longest;
  std::size_t stage = 0;
  for (std::size_t s = 0; s < program.stages.size(); ++s) {
    if (asked && static_cast<std::size_t>(*asked) != s) continue;
    ExplainedSlot slot = explain_slot(program, s, rows);
    if (slot.slot == nullptr || slot.run.ns <= longest.run.ns) continue;
    longest = std::move(slot);
    stage = s;
  }
  if (longest.slot == nullptr) {
    throw InputError("", "--slot", "given",
                     "a job that runs a forward and a backward as one slot in the middle of an "
                     "iteration (pipeline_schedule combined-1f1b, or "
                     "overlap_moe_expert_parallel_comm)");
  }
  Report report;
  report.json = result_with_provenance(input.files, arguments);
  report.json["slot"] = slot_json(program, stage, longest);
  report.text =
      job_text(input) + "\n" + slot_text(program, stage, longest) + warnings_text(input.job);
  return report;
}

Report run_explain(const Arguments& arguments) {
  const JobInput input = read_job_input(arguments);
  const std::optional<std::int64_t> asked =
      arguments.integer("stage", 0, input.job.layout.pipeline - 1);
  if (arguments.has("slot")) return report_slot(input, asked, arguments);
  const Simulation simulation = simulate(input.job, input.profile, balanced_routing(input.job),
                                         ordered_program(input.job, input.profile));
  const Verdict verdict = judge(input, simulation);
  const std::int64_t stage = asked.value_or(verdict.stage);
  const Explanation explanation{stage,
                                simulation.result.stages[static_cast<std::size_t>(stage)],
                                peak_moment(simulation, stage),
                                live_at_peak(input.job, simulation, stage),
                                kept_by_layer(input.job, simulation, stage),
                                find_remedies(input.job, input.profile, simulation, stage)};
  write_peak(arguments, input, simulation, explanation);
  Report report;
  report.exit = verdict.exit();
  report.json = result_with_provenance(input.files, arguments);
  add_simulation(report.json, input, simulation, verdict);
  report.json["explanation"] = explanation_json(explanation);
  report.text = verdict.text + "\n\n" + job_text(input) + "\n" + peak_text(explanation);
  for (const auto& section : {resident_text, live_text, kept_text, remedies_text}) {
    report.text += "\n" + section(explanation);
  }
  report.text += "\n" + outside_text(simulation.result) + warnings_text(input.job);
  return report;
}

}  // namespace

Command explain_command() {
  std::vector<Flag> flags = job_flags();
  flags.push_back({"stage", "N", "explain this pipeline stage instead of the fullest"});
  flags.push_back({"slot", "",
                   "instead of memory: what the length of a combined slot is made of, and what "
                   "would shorten it"});
  flags.push_back({"segment-map", "FILE",
                   "draw the allocator's segments at the peak, with gnuplot; .svg or .png"});
  flags.push_back(
      {"memory-snapshot", "FILE",
       "write them with the trace that led there as PyTorch's memory snapshot, a pickle "
       "for pytorch.org/memory_viz"});
  return {"explain", "JOB.json | --megatron-args FILE --hardware NAME",
          "what fills a card at its peak, by storage and layer, and what would free memory",
          std::move(flags), run_explain};
}

}  // namespace tidemark
