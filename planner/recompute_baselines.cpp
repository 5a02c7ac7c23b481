#include "planner/recompute_baselines.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <string>
#include <utility>

#include "models/layer_operators.h"
#include "planner/action_program.h"
#include "planner/adapipe.h"
#include "planner/adaptive_recompute.h"
#include "planner/decided_memory.h"
#include "sim/simulation.h"
#include "traces/routing.h"

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
  bool may_run_again(std::size_t stage, std::size_t entry) const {
    return program.stages[stage].action_of[entry] >= 0;
  }
};

Planned plan_for(const Job& job, const HardwareProfile& profile, double rows) {
  ActionProgram program = build_action_program(job, profile, ActionKind::kRecompute);
  LaneRows lanes(program.job, scaled(balanced_routing(program.job), rows));
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

ManagedRun adapipe_run(const Job& job, const HardwareProfile& profile, double rows) {
  Planned planned = plan_for(job, profile, rows);
  GivenUp given_up;
  for (std::size_t s = 0; s < planned.least.size(); ++s) {
    const ActionProgram::Stage& stage = planned.program.stages[s];
    AdaPipeProblem problem;
    problem.stages = stage.in_flight;  // what a first stage of so many would hold
    problem.capacity_bytes = segment_limit(job, profile).value - planned.least[s];
    AdaPipeLayer& all = problem.layers.emplace_back();
    for (std::size_t e = 0; e < stage.action_of.size(); ++e) {
      if (!planned.may_run_again(s, e)) continue;
      all.units.push_back({planned.forward_ns(s, e), 0, planned.bytes(s, e), false});
    }
    const AdaPipeStage solved = adapipe_stage(problem, 0, 0, 1);
    const bool fits = solved.end_layer > solved.first_layer;
    std::vector<bool>& own = given_up.emplace_back(stage.action_of.size(), false);
    std::size_t unit = 0;
    for (std::size_t e = 0; e < own.size(); ++e) {
      if (planned.may_run_again(s, e)) own[e] = !fits || !solved.saved[0][unit++];
    }
  }
  return run_of(std::move(planned), given_up);
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
