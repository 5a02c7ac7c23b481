#include "tools/simulation_report.h"

#include <algorithm>
#include <array>
#include <limits>
#include <vector>

#include <nlohmann/json.hpp>

#include "planner/remedies.h"
#include "tools/memory_breakdown.h"
#include "tools/quantity_text.h"
#include "tools/text_table.h"

namespace tidemark {
namespace {

using Align = TextTable::Align;

struct Named {
  const char* key;
  const char* words;
};
// By TimeClass.
constexpr Named kTimeClasses[kNumTimeClasses] = {
    {"matrix_products", "matrix products"},
    {"grouped_matrix_products", "experts' matrix products"},
    {"attention", "attention"},
    {"elementwise", "elementwise, norms, routing"},
    {"loss", "loss"},
    {"tensor_parallel", "tensor-parallel communication"},
    {"context_parallel", "context-parallel communication"},
    {"expert_parallel", "expert-parallel communication"},
    {"data_parallel", "data-parallel communication"},
    {"host_copy", "copies to and from the host"}};
// By CostKind.
constexpr Named kCostKinds[] = {{"measured", "of measured shapes"},
                                {"interpolated", "from measurements of other shapes"},
                                {"roofline", "bytes over bandwidth"},
                                {"assumed", "assumed"}};

double seconds(std::int64_t ns) { return static_cast<double>(ns) * 1e-9; }

double tokens_per_second_and_card(const Job& job, const IterationResult& iteration) {
  return static_cast<double>(iteration.tokens) / seconds(iteration.time_ns) /
         static_cast<double>(job.layout.cards);
}

std::string layers_text(const Job& job, std::int64_t stage) {
  std::string out;
  for (std::int64_t c = 0; c < job.layout.virtual_pipeline; ++c) {
    const auto layers =
        job.layout.chunk_layers(job.layout.virtual_stage(stage, c), job.model.num_layers);
    if (layers.size() == 0) continue;
    out += (out.empty() ? "" : " ") + std::to_string(layers.begin);
    if (layers.size() > 1) out += "-" + std::to_string(layers.end - 1);
  }
  std::int64_t moe = 0;
  for (std::int64_t layer : job.layout.stage_layers(stage, job.model.num_layers)) {
    moe += job.model.is_moe(layer);
  }
  if (moe > 0) out += " (" + std::to_string(moe) + " MoE)";
  return out;
}

std::string stages_table(const Job& job, const Simulation& simulation) {
  TextTable table({{"stage"},
                   {"layers", Align::kLeft},
                   {"parameters"},
                   {"resident"},
                   {"in flight"},
                   {"peak, iteration 1"},
                   {"peak, later"},
                   {"reserved"},
                   {"peak at"},
                   {"during the", Align::kLeft}});
  for (std::size_t i = 0; i < simulation.result.stages.size(); ++i) {
    const StageResult& s = simulation.result.stages[i];
    const auto stage = static_cast<std::int64_t>(i);
    const bool in_step = s.card.memory.peaks_in_optimizer_step();
    table.add_row({std::to_string(i), layers_text(job, stage), grouped_text(s.parameters),
                   gib_text(s.resident_bytes), std::to_string(s.in_flight_peak),
                   gib_text(s.peak_allocated_first_iteration()), gib_text(s.peak_allocated()),
                   gib_text(s.peak_reserved()),
                   in_step ? "end" : duration_text(SimDuration(s.peak_time_ns)),
                   in_step ? "optimizer step" : peak_moment(simulation, stage).text()});
  }
  return table.text();
}

// Busy time of lane 0 by class: on the stage with the longest slots, and on average.
std::string time_table(const Simulation& simulation) {
  const std::vector<StageResult>& stages = simulation.result.stages;
  const auto busiest = std::max_element(stages.begin(), stages.end(),
                                        [](const StageResult& a, const StageResult& b) {
                                          return a.times.slots_ns < b.times.slots_ns;
                                        });
  const auto iteration = static_cast<double>(simulation.result.iteration.time_ns);
  TextTable table({{"busy with", Align::kLeft},
                   {"stage " + std::to_string(busiest - stages.begin())},
                   {"of iteration"},
                   {"mean of stages"},
                   {"of iteration"}});
  for (std::size_t c = 0; c < kNumTimeClasses; ++c) {
    std::int64_t sum = 0;
    for (const StageResult& s : stages) sum += s.times.busy_ns[c];
    if (sum == 0) continue;
    const std::int64_t longest = busiest->times.busy_ns[c];
    const std::int64_t mean = sum / std::ssize(stages);
    table.add_row({kTimeClasses[c].words, duration_text(SimDuration(longest)),
                   share_text(static_cast<double>(longest), iteration),
                   duration_text(SimDuration(mean)),
                   share_text(static_cast<double>(mean), iteration)});
  }
  std::int64_t in_slots = 0;
  for (const StageResult& s : stages) in_slots += s.times.slots_ns;
  const std::int64_t time = simulation.result.iteration.time_ns;
  const std::int64_t outside = time - busiest->times.slots_ns;
  const std::int64_t mean_outside = time - in_slots / std::ssize(stages);
  table.add_row({"(outside forwards and backwards)", duration_text(SimDuration(outside)),
                 share_text(static_cast<double>(outside), iteration),
                 duration_text(SimDuration(mean_outside)),
                 share_text(static_cast<double>(mean_outside), iteration)});
  return table.text();
}

// What is known of the cards that are not emulated.
std::string others_text(const SimulationResult& result) {
  const auto same = [](const StageResult& s) {
    return s.out_of_memory || s.gives_back || s.reserved_bound == s.peak_reserved();
  };
  if (std::ranges::all_of(result.stages, same)) return "No card of a stage reserves more.\n";
  std::string out;
  for (std::size_t i = 0; i < result.stages.size(); ++i) {
    const StageResult& s = result.stages[i];
    if (same(s)) continue;
    out += "Other cards of stage " + std::to_string(i) + ": " +
           (s.reserved_bound ? "at most " + gib_text(*s.reserved_bound) + " reserved (estimated).\n"
                             : "no bound is known.\n");
  }
  return out;
}

std::string cost_kinds_text(const Simulation& simulation) {
  std::array<double, std::size(kCostKinds)> by_kind{};
  double all = 0;
  for (const StageResult& s : simulation.result.stages) {
    for (std::size_t k = 0; k < by_kind.size(); ++k) {
      by_kind[k] += static_cast<double>(s.times.compute_by_kind_ns[k]);
      all += static_cast<double>(s.times.compute_by_kind_ns[k]);
    }
  }
  std::string out = "Compute time is known from:";
  for (std::size_t k = 0; k < by_kind.size(); ++k) {
    out += (k == 0 ? " " : ", ") + share_text(by_kind[k], all) + " " + kCostKinds[k].words;
  }
  return out + ".\n";
}

// What to change in a job that lacks `missing`.
std::string remedies_text(const std::vector<Remedy>& remedies, Bytes missing) {
  std::string enough;
  for (const Remedy& remedy : remedies) {
    const bool fits = remedy.simulated ? remedy.simulated->fits : remedy.freed >= missing;
    if (!fits) continue;
    enough += (enough.empty() ? "" : "; ") + std::string(remedy.simulated ? "" : "perhaps ") +
              remedy.change;
  }
  if (!enough.empty()) return " Enough by itself: " + enough + ".";
  if (remedies.empty()) return "";
  return " No single change is enough; the largest: " + remedies.front().change + " (" +
         gib_text(remedies.front().freed) + ").";
}

nlohmann::ordered_json exact(Flops flops) {
  if (flops <= std::numeric_limits<std::uint64_t>::max()) return static_cast<std::uint64_t>(flops);
  return static_cast<double>(flops);
}

nlohmann::ordered_json iteration_json(const IterationResult& iteration) {
  nlohmann::ordered_json json;
  json["time_ns"] = iteration.time_ns;
  json["tokens"] = iteration.tokens;
  json["model_flops"] = exact(iteration.model_flops);
  json["tflops_per_card"] = iteration.tflops_per_card;
  json["mfu"] = iteration.mfu;
  json["bubble_fraction"] = iteration.bubble_fraction;
  return json;
}

nlohmann::ordered_json stage_json(const Simulation& simulation, std::int64_t stage) {
  const StageResult& s = simulation.result.stages[static_cast<std::size_t>(stage)];
  nlohmann::ordered_json json;
  json["stage"] = stage;
  json["parameters_per_card"] = s.parameters;
  json["static_bytes"] = s.resident_bytes.value;
  json["allocated_after_iteration_bytes"] = s.allocated_after_iteration().value;
  json["peak_allocated_bytes"] = s.peak_allocated().value;
  json["peak_allocated_first_iteration_bytes"] = s.peak_allocated_first_iteration().value;
  json["peak_reserved_bytes"] = s.peak_reserved().value;
  json["peak_reserved_first_iteration_bytes"] = s.peak_reserved_first_iteration().value;
  if (s.reserved_bound) {
    json["reserved_bound_bytes"] = s.reserved_bound->value;
    json["bound_fits"] = *s.reserved_bound <= simulation.result.limit();
  }
  json["pinned_host_bytes"] = s.host_memory.value;
  json["peak_time_ns"] = s.peak_time_ns;
  json["peak_in"] = s.card.memory.peaks_in_optimizer_step() ? "optimizer step"
                                                            : peak_moment(simulation, stage).text();
  json["in_flight_peak"] = s.in_flight_peak;
  json["slots_ns"] = s.times.slots_ns;
  for (std::size_t c = 0; c < kNumTimeClasses; ++c) {
    json["busy_ns"][kTimeClasses[c].key] = s.times.busy_ns[c];
  }
  for (std::size_t k = 0; k < std::size(kCostKinds); ++k) {
    json["compute_ns_by_cost"][kCostKinds[k].key] = s.times.compute_by_kind_ns[k];
  }
  return json;
}

}  // namespace

Verdict judge(const JobInput& input, const Simulation& simulation) {
  const SimulationResult& result = simulation.result;
  Verdict verdict;
  verdict.stage = result.tightest_stage();
  verdict.headroom = result.headroom();
  verdict.fits = result.fits();
  const StageResult& stage = result.stages[static_cast<std::size_t>(verdict.stage)];
  const std::string peak = "stage " + std::to_string(verdict.stage) + " reserves up to " +
                           gib_text(stage.peak_reserved()) + " of a card's " +
                           gib_text(result.limit()) + " (" + gib_text(stage.peak_allocated()) +
                           " allocated)";
  if (verdict.fits) {
    verdict.text =
        result.gives_back()
            ? "Fits, but only by giving cached memory back and waiting for the device: " + peak +
                  "."
            : "Fits: " + peak + ", " + gib_text(verdict.headroom) + " to spare.";
    return verdict;
  }
  verdict.text = "Does not fit: " + peak + ", " + gib_text(-verdict.headroom) + " too much." +
                 remedies_text(find_remedies(input.job, input.profile, simulation, verdict.stage),
                               -verdict.headroom);
  return verdict;
}

std::string job_text(const JobInput& input) {
  const Job& job = input.job;
  const ParallelLayout& l = job.layout;
  const auto number = [](std::int64_t n) { return std::to_string(n); };
  std::string out = "job         " + job.name + ": " + number(job.model.num_layers) + " layers";
  if (job.model.num_moe_layers() > 0) {
    out += ", " + number(job.model.num_moe_layers()) + " of them with " +
           number(job.model.moe->num_experts) + " experts";
  }
  out += "\nhardware    " + number(l.cards) + " x " + input.profile.name + " (" +
         input.profile.description + ")";
  out += "\nlayout      TP " + number(l.tensor) +
         (l.splits_sequence() ? " (sequence parallel)" : "") + ", CP " + number(l.context) +
         ", PP " + number(l.pipeline) + ", DP " + number(l.data());
  if (job.model.moe) {
    out += ", EP " + number(l.expert) + ", ETP " + number(l.expert_tensor);
  }
  out += "\nbatch       " + number(job.batch.global_batch_size) + " sequences of " +
         number(job.batch.seq_length) + " tokens: " + number(job.batch.num_microbatches(l)) +
         " microbatches of " + number(job.batch.micro_batch_size) + " a pipeline";
  out += "\nframeworks  Megatron core " + job.versions.megatron_core.text() +
         ", Transformer Engine " + job.versions.transformer_engine.text();
  if (job.versions.dtk) out += ", DTK " + job.versions.dtk->year_month();
  if (job.versions.fork == Fork::kKwai) out += ", Kwai's fork";
  return out + "\n";
}

std::string simulation_text(const JobInput& input, const Simulation& simulation) {
  const IterationResult& iteration = simulation.result.iteration;
  std::string out = "Iteration: " + duration_text(SimDuration(iteration.time_ns)) + ", " +
                    fixed_text(tokens_per_second_and_card(input.job, iteration), 1) +
                    " tokens/s a card, " + fixed_text(iteration.tflops_per_card, 1) +
                    " TFLOP/s a card, MFU " + share_text(iteration.mfu, 1) + ", pipeline bubble " +
                    share_text(iteration.bubble_fraction, 1) + ".\n";
  Bytes host;
  for (const StageResult& s : simulation.result.stages) host = std::max(host, s.host_memory);
  if (host > Bytes(0)) {
    out += "Offloading needs up to " + gib_text(host) + " of pinned host memory for a card.\n";
  }
  out += "\nWhat each stage holds on a card, and when that peaks:\n\n" +
         stages_table(input.job, simulation) + others_text(simulation.result);
  out += "\nWhere the time goes (streams overlap, so shares may add up to more than all):\n\n" +
         time_table(simulation) + "\n" + cost_kinds_text(simulation);
  return out;
}

std::string warnings_text(const Job& job) {
  std::string out;
  for (const std::string& warning : job.warnings) out += "warning: " + warning + "\n";
  return out;
}

void add_simulation(nlohmann::ordered_json& result, const JobInput& input,
                    const Simulation& simulation, const Verdict& verdict) {
  result["verdict"] = {{"fits", verdict.fits},
                       {"stage", verdict.stage},
                       {"headroom_bytes", verdict.headroom.value},
                       {"text", verdict.text}};
  result["outside_allocator"] = nlohmann::ordered_json::array();
  for (const OutsideItem& item : simulation.result.outside) {
    result["outside_allocator"].push_back({{"name", item.name}, {"bytes", item.bytes.value}});
  }
  result["iteration"] = iteration_json(simulation.result.iteration);
  result["stages"] = nlohmann::ordered_json::array();
  for (std::int64_t stage = 0; stage < std::ssize(simulation.result.stages); ++stage) {
    result["stages"].push_back(stage_json(simulation, stage));
  }
  result["warnings"] = input.job.warnings;
}

void add_lanes(nlohmann::ordered_json& result, const Simulation& simulation) {
  result["lanes"] = nlohmann::ordered_json::array();
  for (std::size_t stage = 0; stage < simulation.result.stages.size(); ++stage) {
    const StageResult& s = simulation.result.stages[stage];
    for (std::int64_t lane = 0; lane < std::ssize(s.memory.lanes); ++lane) {
      result["lanes"].push_back(
          {{"stage", stage}, {"lane", lane}, {"peak_allocated_bytes", s.lane_peak(lane).value}});
    }
  }
}

}  // namespace tidemark
