#include "planner/recompute_baselines.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <string>
#include <utility>

#include "models/gradient_buffers.h"
#include "models/layer_operators.h"
#include "models/linear_operators.h"
#include "models/parameters.h"
#include "planner/action_program.h"
#include "planner/adaptive_recompute.h"
#include "planner/decided_memory.h"
#include "planner/layer_times.h"
#include "sim/simulation.h"

namespace tidemark {
namespace {

constexpr int kBisections = 6;

using GivenUp = std::vector<std::vector<bool>>;  // [stage][entry]

// A job to be planned for a load.
struct Planned {
  ActionProgram program;
  LaneRows rows;
  std::int64_t balanced_rows = 0;
  std::int64_t lane_rows = 0;       // planned for
  std::vector<std::int64_t> least;  // [stage]: reserved with everything run again

  std::int64_t bytes(std::size_t stage, std::size_t entry) const {
    return program.stages[stage].freed(entry).at(lane_rows);
  }
  std::int64_t forward_ns(std::size_t stage, std::size_t entry) const {
    const CataloguedAction& action = program.stages[stage].catalogue.entries[entry].actions[1];
    return action.compute_ps.at(balanced_rows) / kPsPerNs;
  }
  AdaPipeUnit unit(std::size_t stage, std::size_t entry) const {
    return {forward_ns(stage, entry), bytes(stage, entry)};
  }
  bool may_run_again(std::size_t stage, std::size_t entry) const {
    return program.stages[stage].action_of[entry] >= 0;
  }
};

Planned plan_for(const Job& job, const HardwareProfile& profile, double rows) {
  ActionProgram program = build_action_program(job, profile, ActionKind::kRecompute);
  LaneRows lanes = LaneRows::alike(program.job, rows);
  const std::int64_t balanced = balanced_lane_rows(program.job);
  std::vector<std::int64_t> least;
  for (const CardMemory& card :
       steady_memory(program.job, profile, program.program, lanes, program.everything())) {
    least.push_back(card.reserved.value);
  }
  return {std::move(program), std::move(lanes), balanced,
          static_cast<std::int64_t>(static_cast<double>(balanced) * rows), std::move(least)};
}

ManagedRun run_of(Planned planned, const GivenUp& given_up) {
  ManagedRun out;
  out.policy = std::make_unique<ConstantPolicy>(planned.program.constant(given_up));
  out.actions = planned.program.names();
  out.program = std::move(planned.program.program);
  return out;
}

std::string why_not_dealt(const Job& job) {
  const ParallelLayout& layout = job.layout;
  if (layout.pipeline == 1) return "there is one stage";
  if (!layout.is_megatrons() || layout.virtual_pipeline > 1) {
    return "its formulas are those of 1F1B without virtual stages";
  }
  if (job.batch.num_microbatches(layout) < layout.pipeline) {
    return "there are fewer microbatches than stages";
  }
  if (job.model.num_layers < layout.pipeline) return "there are fewer layers than stages";
  return "";
}

// Without virtual stages.
std::vector<std::int64_t> split_of(const Job& job) {
  std::vector<std::int64_t> out;
  for (std::int64_t s = 0; s < job.layout.pipeline; ++s) {
    out.push_back(job.layout.chunk_layers(s, job.model.num_layers).size());
  }
  return out;
}

Job with_split(Job job, const std::vector<std::int64_t>& layers) {
  job.layout.listed_layers = layers;
  job.layout.first_stage_layers = job.layout.last_stage_layers = 0;
  job.layout.account_for_embedding = job.layout.account_for_loss = false;
  return job;
}

// [layer]: parameters, gradients and optimizer state of its weights.
std::vector<std::int64_t> static_bytes(const Job& job, std::int64_t stage) {
  std::vector<std::int64_t> out(static_cast<std::size_t>(job.model.num_layers), 0);
  const OptimizerOptions& o = job.options.optimizer;
  for (const GradientBuffer& buffer : gradient_buffers(job, stage)) {
    for (const Weight& weight : chunk_weights(job, stage)) {
      if (weight.expert != buffer.expert || weight.layer < 0) continue;
      if (weight.layer >= job.model.num_layers) continue;
      out[static_cast<std::size_t>(weight.layer)] +=
          weight.count() * (kBf16 + o.main_grad_bytes) +
          weight.count() * (o.main_param_bytes + o.exp_avg_bytes + o.exp_avg_sq_bytes) /
              buffer.shards;
    }
  }
  return out;
}

// Layers of a kind, with experts or without, are as the one of them is of which most may run again:
// the last of a stage sends its output.
AdaPipeProblem adapipe_problem(const Planned& planned, const HardwareProfile& profile) {
  const Job& job = planned.program.job;
  const auto num_layers = static_cast<std::size_t>(job.model.num_layers);
  const auto times = layer_times(planned.program.program, LaneRows::alike(job));
  std::vector<AdaPipeLayer> measured(num_layers);
  for (std::size_t s = 0; s < times.size(); ++s) {
    const ActionProgram::Stage& stage = planned.program.stages[s];
    for (std::size_t e = 0; e < stage.catalogue.entries.size(); ++e) {
      const CatalogueEntry& entry = stage.catalogue.entries[e];
      const auto layer = static_cast<std::size_t>(entry.layer);
      if (layer >= num_layers) continue;
      measured[layer].kept_bytes += entry.kept.bytes.at(planned.lane_rows) - planned.bytes(s, e);
      if (planned.may_run_again(s, e)) measured[layer].units.push_back(planned.unit(s, e));
    }
    const std::vector<std::int64_t> held = static_bytes(job, static_cast<std::int64_t>(s));
    for (const auto& [layer, time] : times[s]) {
      if (layer < 0 || layer >= job.model.num_layers) continue;
      AdaPipeLayer& own = measured[static_cast<std::size_t>(layer)];
      own.forward_ns = time.forward_ns;
      own.backward_ns = time.backward_ns;
      own.static_bytes = held[static_cast<std::size_t>(layer)];
      // What a stage runs again of a microbatch is there at once.
      for (const AdaPipeUnit& unit : own.units) own.static_bytes += unit.bytes;
    }
  }
  const AdaPipeLayer* kinds[2] = {nullptr, nullptr};  // [has experts]
  for (std::size_t l = 0; l < num_layers; ++l) {
    const AdaPipeLayer*& kind = kinds[job.model.is_moe(static_cast<std::int64_t>(l))];
    if (kind == nullptr || kind->units.size() < measured[l].units.size()) kind = &measured[l];
  }
  AdaPipeProblem out;
  out.microbatches = job.batch.num_microbatches(job.layout);
  for (std::size_t l = 0; l < num_layers; ++l) {
    out.layers.push_back(*kinds[job.model.is_moe(static_cast<std::int64_t>(l))]);
  }
  for (std::size_t s = 0; s < times.size(); ++s) {
    std::int64_t beside = planned.least[s];
    const auto range = job.layout.chunk_layers(static_cast<std::int64_t>(s), job.model.num_layers);
    for (std::int64_t l = range.begin; l < range.end; ++l) {
      const AdaPipeLayer& layer = out.layers[static_cast<std::size_t>(l)];
      beside -= layer.static_bytes + planned.program.stages[s].in_flight * layer.kept_bytes;
    }
    out.capacity_bytes.push_back(segment_limit(job, profile).value - beside);
  }
  const auto add_outside = [&](const std::map<std::int32_t, LayerTime>& stage, AdaPipeLayer& to) {
    for (const auto& [layer, time] : stage) {
      if (layer >= 0 && layer < job.model.num_layers) continue;
      to.forward_ns += time.forward_ns;
      to.backward_ns += time.backward_ns;
    }
  };
  add_outside(times.front(), out.layers.front());
  add_outside(times.back(), out.layers.back());
  return out;
}

// Layers of a stage with the same operators.
struct LayerKind {
  std::vector<std::string> modules;
  std::vector<std::vector<std::size_t>> layers;  // [layer]: entries that may be run again
  std::vector<std::size_t> module_of;            // [entry of a layer]
};

std::vector<LayerKind> layer_kinds(const Planned& planned, std::size_t stage) {
  const auto& entries = planned.program.stages[stage].catalogue.entries;
  std::map<std::int32_t, std::vector<std::size_t>> by_layer;
  for (std::size_t e = 0; e < entries.size(); ++e) {
    if (planned.may_run_again(stage, e)) by_layer[entries[e].layer].push_back(e);
  }
  std::map<std::vector<std::string>, LayerKind> kinds;
  for (auto& [layer, own] : by_layer) {
    std::vector<std::string> names;
    for (const std::size_t e : own) names.push_back(entries[e].name);
    LayerKind& kind = kinds[names];
    if (kind.layers.empty()) {
      for (const std::string& name : names) {
        const std::string module = name.substr(0, name.find('.'));
        const auto known = std::ranges::find(kind.modules, module);
        kind.module_of.push_back(static_cast<std::size_t>(known - kind.modules.begin()));
        if (known == kind.modules.end()) kind.modules.push_back(module);
      }
    }
    kind.layers.push_back(std::move(own));
  }
  std::vector<LayerKind> out;
  for (auto& [names, kind] : kinds) out.push_back(std::move(kind));
  return out;
}

// The vendor's plan of one stage, for memory beside what cannot be run again.
void solve_stage(const Planned& planned, std::size_t stage, const std::vector<LayerKind>& kinds,
                 std::int64_t memory, std::vector<bool>& given_up) {
  std::vector<AdaptiveRecomputeProblem> problems;
  std::int64_t all_bytes = 0;
  for (const LayerKind& kind : kinds) {
    AdaptiveRecomputeProblem& p = problems.emplace_back();
    p.modules.resize(kind.modules.size());
    p.layers = std::ssize(kind.layers);
    p.stages = planned.program.job.layout.pipeline;
    for (std::size_t i = 0; i < kind.module_of.size(); ++i) {
      const std::size_t e = kind.layers[0][i];
      RecomputeModule& module = p.modules[kind.module_of[i]];
      module.forward_ns += planned.forward_ns(stage, e);
      module.bytes += planned.bytes(stage, e);
      p.layer_ns += planned.forward_ns(stage, e);
      p.layer_bytes += planned.bytes(stage, e);
    }
    all_bytes += p.layers * p.layer_bytes;
  }
  for (std::size_t k = 0; k < kinds.size(); ++k) {
    AdaptiveRecomputeProblem& p = problems[k];
    p.device_bytes = static_cast<std::int64_t>(static_cast<double>(memory) *
                                               static_cast<double>(p.layers * p.layer_bytes) /
                                               static_cast<double>(all_bytes));
    std::size_t layer = 0;
    for (const LayerRecompute& option : solve_adaptive_recompute(p).options) {
      for (std::int64_t n = 0; n < option.layers; ++n, ++layer) {
        for (std::size_t i = 0; i < kinds[k].module_of.size(); ++i) {
          const bool chosen =
              std::ranges::find(option.modules, static_cast<std::int32_t>(kinds[k].module_of[i])) !=
              option.modules.end();
          given_up[kinds[k].layers[layer][i]] = option.full || chosen;
        }
      }
    }
  }
}

}  // namespace

AdaPipeRun adapipe_run(const Job& job, const HardwareProfile& profile, double rows) {
  Planned planned = plan_for(job, profile, rows);
  AdaPipeRun out{job, {}, {}, why_not_dealt(job)};
  if (out.keeps_split_since.empty()) {
    out.split = solve_adapipe(adapipe_problem(planned, profile));
    if (out.split.layers.empty()) out.keeps_split_since = "none fits";
  }
  if (!out.split.layers.empty() && out.split.layers != split_of(job)) {
    out.job = with_split(job, out.split.layers);
    planned = plan_for(out.job, profile, rows);
  }
  GivenUp given_up;
  for (std::size_t s = 0; s < planned.least.size(); ++s) {
    const ActionProgram::Stage& stage = planned.program.stages[s];
    AdaPipeLayer all;
    for (std::size_t e = 0; e < stage.action_of.size(); ++e) {
      if (planned.may_run_again(s, e)) all.units.push_back(planned.unit(s, e));
    }
    const auto solved = adapipe_saves({&all, 1}, stage.in_flight,
                                      segment_limit(out.job, profile).value - planned.least[s]);
    std::vector<bool>& own = given_up.emplace_back(stage.action_of.size(), false);
    std::size_t unit = 0;
    for (std::size_t e = 0; e < own.size(); ++e) {
      if (planned.may_run_again(s, e)) own[e] = !solved || !solved->saved[0][unit++];
    }
  }
  out.run = run_of(std::move(planned), given_up);
  return out;
}

ManagedRun adaptive_recompute_run(const Job& job, const HardwareProfile& profile, double rows) {
  Planned planned = plan_for(job, profile, rows);
  const std::size_t stages = planned.least.size();
  const std::int64_t limit = segment_limit(job, profile).value;
  std::vector<std::vector<LayerKind>> kinds;
  std::vector<std::int64_t> fits;      // [stage]: memory that a plan fits with; 0: all run again
  std::vector<std::int64_t> too_much;  // [stage]
  GivenUp best;
  for (std::size_t s = 0; s < stages; ++s) {
    kinds.push_back(layer_kinds(planned, s));
    fits.push_back(0);
    too_much.push_back(2 * std::max<std::int64_t>(0, limit - planned.least[s]));
    std::vector<bool>& all = best.emplace_back();
    for (std::size_t e = 0; e < planned.program.stages[s].action_of.size(); ++e) {
      all.push_back(planned.may_run_again(s, e));
    }
  }
  // The first try takes all that is left.
  for (int i = 0; i <= kBisections; ++i) {
    GivenUp tried = best;
    for (std::size_t s = 0; s < stages; ++s) {
      solve_stage(planned, s, kinds[s], std::midpoint(fits[s], too_much[s]), tried[s]);
    }
    const std::vector<CardMemory> memory =
        steady_memory(planned.program.job, profile, planned.program.program, planned.rows,
                      planned.program.constant(tried));
    for (std::size_t s = 0; s < stages; ++s) {
      const bool good = memory[s].reserved.value <= limit;
      (good ? fits : too_much)[s] = std::midpoint(fits[s], too_much[s]);
      if (good) best[s] = tried[s];
      // More than the card leaves is not tried.
      too_much[s] = std::min(too_much[s], std::max<std::int64_t>(0, limit - planned.least[s]));
    }
  }
  return run_of(std::move(planned), best);
}

}  // namespace tidemark
