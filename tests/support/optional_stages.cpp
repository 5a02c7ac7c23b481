#include "tests/support/optional_stages.h"

#include "models/layer_operators.h"
#include "planner/action_catalogue.h"
#include "sim/operator_cost.h"

namespace tidemark {

std::vector<OptionalGraph> optional_stages(const Job& job, const HardwareProfile& profile) {
  OperatorCosts costs(job, profile);
  std::vector<OptionalGraph> out;
  for (std::int64_t stage = 0; stage < job.layout.pipeline; ++stage) {
    const OperatorGraph before = build_operator_graph(job, stage);
    // The jobs are tiny: nothing is too small.
    const ActionCatalogue catalogue =
        build_action_catalogue(before, costs, balanced_lane_rows(job), 0);
    out.push_back(
        with_optional_actions(before, catalogue, [](std::int32_t, std::int32_t) { return true; }));
  }
  return out;
}

std::vector<OperatorGraph> graphs_of(const std::vector<OptionalGraph>& stages) {
  std::vector<OperatorGraph> out;
  for (const OptionalGraph& stage : stages) out.push_back(stage.graph);
  return out;
}

StageDecisions random_decisions(const OptionalGraph& stage, std::int32_t microbatches, Rng& rng) {
  StageDecisions out(microbatches, stage.graph.optional_actions);
  for (std::int32_t mb = 0; mb < microbatches; ++mb) {
    for (std::size_t e = 0; e < stage.ids.size(); ++e) {
      const auto action = static_cast<std::int32_t>(rng.below(std::ssize(stage.ids[e])));
      if (action > 0) stage.take(mb, static_cast<std::int32_t>(e), action, out);
    }
  }
  return out;
}

}  // namespace tidemark
