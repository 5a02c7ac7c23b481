// Which operators of a stage's graph a slot issues, in order.
#pragma once

#include <cstdint>
#include <map>
#include <tuple>
#include <vector>

#include "models/operator_graph.h"
#include "sim/schedule.h"

namespace tidemark {

struct IssuedOperator {
  std::int32_t index = 0;  // in forward ++ backward
  bool beside = false;     // of the microbatch that runs backward beside a forward
};

// A whole backward is the gradients of inputs and then those of weights that run by themselves.
// Requires of combined slots: a graph arranged for them; they have the order that the graph gives
// (OperatorGraph::slot_orders), or Megatron's.
std::vector<IssuedOperator> slot_operators(const OperatorGraph& graph, const Slot& slot);

// Remembers the answers: they are the same for every microbatch.
class SlotOperators {
 public:
  explicit SlotOperators(const OperatorGraph& graph) : graph_(&graph) {}
  const std::vector<IssuedOperator>& of(const Slot& slot);

 private:
  const OperatorGraph* graph_;
  std::map<std::tuple<SlotKind, std::int32_t, std::int32_t>, std::vector<IssuedOperator>> known_;
};

// The microbatch that an operator of a slot works on.
inline ChunkTensor works_on(const Slot& slot, bool beside) {
  return beside ? slot.beside : ChunkTensor{slot.chunk, slot.microbatch};
}

}  // namespace tidemark
