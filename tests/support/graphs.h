// Hand-made operator graphs of one chunk.
#pragma once

#include "models/operator_graph.h"

namespace tidemark {

// The only chunk of a graph whose lists are complete.
inline Chunk& close_chunk(OperatorGraph& graph) {
  graph.chunks.resize(1);
  graph.chunks[0].forward = {0, static_cast<std::int32_t>(graph.forward.size())};
  graph.chunks[0].backward = {0, static_cast<std::int32_t>(graph.backward.size())};
  return graph.chunks[0];
}

}  // namespace tidemark
