// The adaptive policy's decisions: at each gate the lightest rung of a stage's ladder whose excess
// over the most frugal one stays within the point's share of what the headroom has left
// (planner/adaptive_policy.h says why).
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "models/operator_graph.h"
#include "planner/action_catalogue.h"
#include "planner/action_ladder.h"
#include "planner/optional_actions.h"
#include "sim/policy.h"
#include "sim/schedule.h"

namespace tidemark {

// What is decided together: at a slot's beginning or at one of its gates.
struct DecisionPoint {
  // Bytes that a rung holds beyond the most frugal one: `fixed`, and `per_row` of layers whose
  // rows are known here.
  struct Excess {
    std::int64_t fixed = 0;
    std::vector<std::pair<std::int32_t, std::int64_t>> per_row;  // MoE layer, bytes a row
  };
  std::vector<Excess> rungs;
  std::vector<std::vector<std::int32_t>> actions;  // [rung]: of the optional graph
  std::int64_t likes = 0;                          // excess of the lightest rung, balanced
};

// Of a chunk.
struct ChunkPoints {
  std::vector<DecisionPoint> points;
  std::int64_t likes = 0;
};

// Of a stage.
struct LadderStage {
  std::vector<ChunkPoints> chunks;
  std::int32_t optional_actions = 0;
  std::int32_t in_flight = 0;  // at most
  std::int64_t headroom = 0;   // bytes that excesses share
};

// `moe_index`: [layer], as moe_layer_indices gives it. Rows that a point does not know count as
// `bound_rows`.
ChunkPoints decision_points(const OperatorGraph& graph, const Chunk& chunk,
                            const ActionCatalogue& catalogue, const std::vector<LadderRung>& ladder,
                            const OptionalGraph& optional,
                            const std::vector<std::int64_t>& moe_index, std::int64_t balanced_rows,
                            std::int64_t bound_rows);

// Every microbatch takes the lightest rung, or the most frugal one.
StageDecisions all_take(const LadderStage& stage, std::int32_t microbatches, bool frugal);

class LadderPolicy : public Policy {
 public:
  LadderPolicy(const Schedule& schedule, std::vector<LadderStage> stages)
      : schedule_(schedule), stages_(std::move(stages)) {}

  StageDecisions decide(std::int32_t stage, const LaneRows& rows) const override;
  // The most bytes beyond the most frugal plan that any lane then holds.
  std::int64_t most_excess(std::int32_t stage, const LaneRows& rows) const;

 private:
  StageDecisions walk(std::int32_t stage, const LaneRows& rows, std::int64_t& most_excess) const;

  const Schedule schedule_;
  std::vector<LadderStage> stages_;
};

}  // namespace tidemark
