// The order of operators where a forward and a backward of two microbatches run as one slot
// (--overlap-moe-expert-parallel-comm): each hides the other's expert communication.
//
// Layer i of the forward pairs with the i-th layer of the backward, which counts from the last:
//
//   expert stream   combine B |  dispatch F   -> dispatch B |  combine F
//   compute         attn F    |  mlp B -> dw  -> mlp F      |  attn B -> dw
//
// Dispatch and combine with everything in them (permutations back, additions) run on the expert
// stream. With delay_wgrad_compute, weight gradients (dw) follow the gradients that others wait
// for; those of the last layer's attention are left for after the transfers. With
// ep_overlap_early_attn_memory_release, attn B comes before mlp F: it frees what it kept earlier
// and hides less. Source: core/models/common/model_chunk_schedule_plan.py,
// TransformerLayerSchedulePlan.run and TransformerModelChunkSchedulePlan.run.
#pragma once

#include <compare>
#include <cstdint>
#include <vector>

#include "models/operator_graph.h"

namespace tidemark {

// Where an operator stands in a combined slot; smaller ones are issued first.
struct CombinedPosition {
  std::int32_t phase = 0;  // before the layers, in them, after them
  std::int32_t layer = 0;  // counted from where its pass begins
  std::int32_t step = 0;   // in the pair of layers
  friend constexpr auto operator<=>(CombinedPosition, CombinedPosition) = default;
};

// Of a chunk's forward operators, or of those of its backward. Requires: an arranged graph, whose
// positions do not descend.
std::vector<CombinedPosition> combined_positions(const OperatorGraph& graph, const Chunk& chunk,
                                                 bool forward);

// Puts each pass of each chunk into the order it has in combined slots, on the streams it has
// there.
OperatorGraph arrange_for_combined_slots(OperatorGraph graph, const CombinedSlots& options);

}  // namespace tidemark
