#include "models/combined_order.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "models/weight_gradients.h"

namespace tidemark {
namespace {

// Decoder layers of a chunk in the order of the forward. What follows them is the post-process,
// layers of multi-token prediction included.
std::vector<std::int32_t> decoder_layers(const OperatorGraph& graph, const Chunk& chunk) {
  std::vector<std::int32_t> layers;
  for (std::int32_t i = chunk.forward.begin; i < chunk.forward.end; ++i) {
    const std::int32_t layer = graph.forward[static_cast<std::size_t>(i)].layer;
    if (layer < 0 && !layers.empty()) break;
    if (layer >= 0 && (layers.empty() || layers.back() != layer)) layers.push_back(layer);
  }
  return layers;
}

std::int32_t forward_step(LayerPart part) {
  switch (part) {
    case LayerPart::kAttention:
      return 1;
    case LayerPart::kDispatch:
      return 3;
    case LayerPart::kMlp:
      return 7;
    default:
      return 8;
  }
}

std::int32_t backward_step(const Operator& op, const CombinedSlots& options) {
  const bool later = op.deferrable && options.delay_wgrad_compute;
  switch (op.part) {
    case LayerPart::kCombine:
      return 0;
    case LayerPart::kMlp:
      return later ? 4 : 2;
    case LayerPart::kDispatch:
      return 5;
    default:
      if (later) return 10;
      return options.early_attn_memory_release ? 6 : 9;
  }
}

bool runs_on_expert_stream(const Operator& op) {
  return op.part == LayerPart::kDispatch || op.part == LayerPart::kCombine;
}

void sort_by_position(std::vector<Operator>& list, OperatorRange range,
                      const std::vector<CombinedPosition>& positions) {
  std::vector<std::int32_t> order(static_cast<std::size_t>(range.size()));
  std::iota(order.begin(), order.end(), range.begin);
  std::ranges::stable_sort(order, {}, [&](std::int32_t i) {
    return positions[static_cast<std::size_t>(i - range.begin)];
  });
  reorder(list, range, order);
}

}  // namespace

std::vector<CombinedPosition> combined_positions(const OperatorGraph& graph, const Chunk& chunk,
                                                 bool forward) {
  std::vector<std::int32_t> layers = decoder_layers(graph, chunk);
  if (!forward) std::ranges::reverse(layers);
  const OperatorRange range = forward ? chunk.forward : chunk.backward;
  const std::int32_t turn = forward ? 0 : 1;  // before and after the layers forward goes first
  std::vector<CombinedPosition> positions;
  bool in_layers = false;
  for (std::int32_t i = range.begin; i < range.end; ++i) {
    const Operator& op = (forward ? graph.forward : graph.backward)[static_cast<std::size_t>(i)];
    if (op.added) {
      positions.emplace_back();
      continue;
    }
    const auto layer = std::ranges::find(layers, op.layer);
    if (layer == layers.end()) {
      positions.push_back({in_layers ? 2 : 0, 0, turn});
      continue;
    }
    in_layers = true;
    positions.push_back({1, static_cast<std::int32_t>(layer - layers.begin()),
                         forward ? forward_step(op.part) : backward_step(op, *graph.combined)});
  }
  // What an action adds goes with the operator before it, or in a backward with the one after it.
  const auto added = [&](std::size_t i) {
    return (forward ? graph.forward : graph.backward)[static_cast<std::size_t>(range.begin) + i]
        .added;
  };
  for (std::size_t i = 1; forward && i < positions.size(); ++i) {
    if (added(i)) positions[i] = positions[i - 1];
  }
  for (std::size_t i = positions.size(); !forward && i-- > 1;) {
    if (added(i - 1)) positions[i - 1] = positions[i];
  }
  return positions;
}

OperatorGraph arrange_for_combined_slots(OperatorGraph graph, const CombinedSlots& options) {
  graph.combined = options;
  for (auto* list : {&graph.forward, &graph.backward}) {
    for (Operator& op : *list) {
      if (runs_on_expert_stream(op) && op.stream == Stream::kCompute) {
        op.stream = Stream::kExpertComm;
      }
    }
  }
  for (Chunk& chunk : graph.chunks) {
    sort_by_position(graph.forward, chunk.forward, combined_positions(graph, chunk, true));
    if (options.delay_wgrad_compute) keep_operands_of_deferred(graph, chunk);
    std::vector<CombinedPosition> positions = combined_positions(graph, chunk, false);
    // Those of the last layer's attention go behind everything.
    const std::vector<std::int32_t> layers = decoder_layers(graph, chunk);
    std::int32_t behind = 0;
    for (std::int32_t i = chunk.backward.begin; i < chunk.backward.end; ++i) {
      const Operator& op = graph.backward[static_cast<std::size_t>(i)];
      const bool last = !layers.empty() && op.layer == layers.front();
      if (!options.delay_wgrad_compute || !op.deferrable || !last) continue;
      if (op.part != LayerPart::kAttention) continue;
      positions[static_cast<std::size_t>(i - chunk.backward.begin)] = {3, 0, 0};
      ++behind;
    }
    sort_by_position(graph.backward, chunk.backward, positions);
    chunk.weight = {chunk.backward.end - behind, chunk.backward.end};
    chunk.backward.end -= behind;
  }
  check_operator_graph(graph);
  return graph;
}

}  // namespace tidemark
