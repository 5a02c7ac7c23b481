// The actions of a catalogue, fixed, as a change of the graph they were made for: what optional
// actions (planner/optional_actions.h) are compared with.
//
//   forward:   .. last user | action's forward operators ..
//   backward:  .. action's backward operators | first user ..
//
// What leaves dies with its last user in the forward, Python's names for it included, and comes
// back as a storage of its own, for all users in the backward. What a re-run needs that has left
// too is brought back before it. An action that is issued ahead is so when the backward of the
// layer before begins; of a chunk's first layer, when the chunk's backward does.
#pragma once

#include <span>

#include "planner/action_catalogue.h"

namespace tidemark {

// `choice`: for each entry, an index into its actions. Requires: `catalogue` of `graph`.
// Throws: std::logic_error as check_operator_graph does.
OperatorGraph apply_actions(const OperatorGraph& graph, const ActionCatalogue& catalogue,
                            std::span<const std::int32_t> choice);

}  // namespace tidemark
