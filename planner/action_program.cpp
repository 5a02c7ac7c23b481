#include "planner/action_program.h"

#include <algorithm>
#include <utility>

#include "models/layer_operators.h"
#include "planner/optional_actions.h"
#include "sim/parallel.h"
#include "sim/simulation.h"

namespace tidemark {

UnitDecisions ActionProgram::constant(const std::vector<std::vector<bool>>& given_up) const {
  UnitDecisions out;
  for (std::size_t s = 0; s < stages.size(); ++s) {
    StageDecisions& decisions =
        out.emplace_back(program.schedule.microbatches, stages[s].optional_actions);
    for (std::size_t e = 0; e < stages[s].action_of.size(); ++e) {
      if (!given_up[s][e]) continue;
      for (std::int32_t mb = 0; mb < program.schedule.microbatches; ++mb) {
        decisions.at(mb, stages[s].action_of[e]) = 1;
      }
    }
  }
  return out;
}

UnitDecisions ActionProgram::everything() const {
  std::vector<std::vector<bool>> given_up;
  for (const Stage& stage : stages) {
    std::vector<bool>& all = given_up.emplace_back();
    for (const std::int32_t action : stage.action_of) all.push_back(action >= 0);
  }
  return constant(given_up);
}

std::vector<std::vector<NamedAction>> ActionProgram::names() const {
  std::vector<std::vector<NamedAction>> out;
  for (const Stage& stage : stages) out.push_back(stage.names);
  return out;
}

ActionProgram build_action_program(const Job& given, const HardwareProfile& profile,
                                   ActionKind action) {
  ActionProgram out{on_platform(given, profile), {}, {}};
  const Job& job = out.job;
  std::vector<ActionType> types = action_types();
  std::erase_if(
      types, [&](const ActionType& t) { return t.kind != ActionKind::kSave && t.kind != action; });
  out.stages.resize(static_cast<std::size_t>(job.layout.pipeline));
  std::vector<OperatorGraph> graphs(out.stages.size());
  parallel_for(graphs.size(), [&](std::size_t s) {
    const OperatorGraph graph = build_operator_graph(job, static_cast<std::int64_t>(s));
    OperatorCosts costs(job, profile);
    ActionProgram::Stage& stage = out.stages[s];
    stage.catalogue =
        build_action_catalogue(graph, costs, balanced_lane_rows(job), kLeastActionBytes, types);
    OptionalGraph optional = with_optional_actions(graph, stage.catalogue,
                                                   [](std::int32_t, std::int32_t) { return true; });
    for (const std::vector<std::int32_t>& ids : optional.ids) {
      stage.action_of.push_back(ids.size() > 1 ? ids[1] : -1);
    }
    for (const CatalogueEntry& entry : stage.catalogue.entries) {
      const auto chunk = std::ranges::find_if(
          graph.chunks, [&](const Chunk& c) { return entry.kept.writer < c.forward.end; });
      stage.chunk_of.push_back(static_cast<std::int32_t>(chunk - graph.chunks.begin()));
    }
    stage.optional_actions = optional.graph.optional_actions;
    stage.names = std::move(optional.names);
    graphs[s] = std::move(optional.graph);
  });
  out.program = build_program(job, profile, std::move(graphs));
  for (std::size_t s = 0; s < out.stages.size(); ++s) {
    const std::int32_t chunks = out.program.schedule.chunks;
    const std::int32_t held = peak_in_flight(out.program.schedule, static_cast<std::int32_t>(s));
    out.stages[s].in_flight = (held + chunks - 1) / chunks;
  }
  return out;
}

}  // namespace tidemark
