// A stage's graph with the operators of many actions in it, each to run only where a microbatch
// takes that action: one program and one memory sequence serve every decision of a run.
//
//   forward:   .. last user | operators of each action; then what leaves, leaves ..
//   backward:  .. operators of each action that bring it back | first user ..
//
// What leaves is freed after its last forward user, Python's names for it included, and comes back
// under its own name. What some re-run may need is brought back before it, needed or not. An action
// that is issued ahead is so when the backward of the layer before begins; of a chunk's first
// layer, when the chunk's backward does.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "planner/action_catalogue.h"
#include "sim/decisions.h"

namespace tidemark {

struct OptionalAction {
  std::int32_t entry = 0;   // of the catalogue
  std::int32_t action = 0;  // of the entry, not `save`
};

struct OptionalGraph {
  OperatorGraph graph;
  std::vector<OptionalAction> actions;         // [action of StageDecisions]
  std::vector<NamedAction> names;              // [action of StageDecisions]
  std::vector<std::vector<std::int32_t>> ids;  // [entry][action of the entry]; -1: not in the graph

  // Requires: a choice of an action for each entry, all in the graph.
  void take(std::int32_t microbatch, std::int32_t entry, std::int32_t action,
            StageDecisions& decisions) const;
};

// `wanted`: whether an entry's action may be taken. Throws: std::logic_error as
// check_operator_graph does.
OptionalGraph with_optional_actions(
    const OperatorGraph& graph, const ActionCatalogue& catalogue,
    const std::function<bool(std::int32_t entry, std::int32_t action)>& wanted);

}  // namespace tidemark
