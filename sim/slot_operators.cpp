#include "sim/slot_operators.h"

#include "models/combined_order.h"

namespace tidemark {
namespace {

void append(std::vector<IssuedOperator>& out, OperatorRange range, std::int32_t offset) {
  for (std::int32_t i = range.begin; i < range.end; ++i) out.push_back({offset + i, false});
}

// Merges two lists that are in order by themselves.
std::vector<IssuedOperator> in_megatrons_order(const OperatorGraph& graph, const Chunk& f,
                                               const Chunk& b, std::int32_t offset) {
  const std::vector<CombinedPosition> forward = combined_positions(graph, f, true);
  const std::vector<CombinedPosition> backward = combined_positions(graph, b, false);
  std::vector<IssuedOperator> out;
  std::size_t i = 0;
  std::size_t j = 0;
  while (i < forward.size() || j < backward.size()) {
    const bool takes_forward =
        j == backward.size() || (i < forward.size() && forward[i] <= backward[j]);
    if (takes_forward) {
      out.push_back({f.forward.begin + static_cast<std::int32_t>(i++), false});
    } else {
      out.push_back({offset + b.backward.begin + static_cast<std::int32_t>(j++), true});
    }
  }
  return out;
}

std::vector<IssuedOperator> combined(const OperatorGraph& graph, std::int32_t f, std::int32_t b) {
  const auto offset = static_cast<std::int32_t>(graph.forward.size());
  const auto given = graph.slot_orders.find({f, b});
  if (given == graph.slot_orders.end()) {
    return in_megatrons_order(graph, graph.chunks[static_cast<std::size_t>(f)],
                              graph.chunks[static_cast<std::size_t>(b)], offset);
  }
  std::vector<IssuedOperator> out;
  for (const std::int32_t op : given->second) out.push_back({op, op >= offset});
  return out;
}

}  // namespace

std::vector<IssuedOperator> slot_operators(const OperatorGraph& graph, const Slot& slot) {
  const auto offset = static_cast<std::int32_t>(graph.forward.size());
  const Chunk& chunk = graph.chunks[static_cast<std::size_t>(slot.chunk)];
  std::vector<IssuedOperator> out;
  switch (slot.kind) {
    case SlotKind::kForward:
      append(out, chunk.forward, 0);
      break;
    case SlotKind::kBackward:
      append(out, chunk.backward, offset);
      append(out, chunk.weight, offset);
      break;
    case SlotKind::kBackwardInput:
      append(out, chunk.backward, offset);
      break;
    case SlotKind::kBackwardWeight:
      append(out, chunk.weight, offset);
      break;
    case SlotKind::kForwardBackward:
      return combined(graph, slot.chunk, slot.beside.chunk);
  }
  return out;
}

const std::vector<IssuedOperator>& SlotOperators::of(const Slot& slot) {
  const auto [it, unknown] =
      known_.try_emplace({slot.kind, slot.chunk, slot.beside.chunk}, std::vector<IssuedOperator>{});
  if (unknown) it->second = slot_operators(*graph_, slot);
  return it->second;
}

}  // namespace tidemark
