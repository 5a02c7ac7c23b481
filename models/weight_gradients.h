// Weight gradients that run later than the rest of their backward.
#pragma once

#include <cstdint>
#include <vector>

#include "models/operator_graph.h"

namespace tidemark {

// Moves each chunk's deferrable weight gradients behind its backward, into Chunk::weight
// (zero-bubble schedules). What they read lives until then.
OperatorGraph split_weight_gradients(OperatorGraph graph);

// Before deferrable operators of a chunk move behind others: what they read must keep its value.
// PyTorch adds gradients in place only where nothing else refers to them, so a sum into what a
// deferred product still reads becomes a storage of its own.
void keep_operands_of_deferred(OperatorGraph& graph, Chunk& chunk);

// Moves operators of `list` within `range`: `order` lists their positions.
void reorder(std::vector<Operator>& list, OperatorRange range,
             const std::vector<std::int32_t>& order);

}  // namespace tidemark
