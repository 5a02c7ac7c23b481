#include "models/data_flow.h"

#include <cstddef>
#include <cstdint>
#include <vector>

namespace tidemark {

DataFlow data_flow(const OperatorGraph& graph) {
  DataFlow flow(graph.size());
  std::vector<std::int32_t> writer(graph.storages.size(), -1);
  for (std::size_t i = 0; i < graph.size(); ++i) {
    for (StorageId s : graph.at(i).reads) {
      const std::int32_t from = writer[s.index()];
      if (from >= 0) boost::add_edge(static_cast<std::size_t>(from), i, flow);
    }
    for (StorageId s : graph.at(i).writes) writer[s.index()] = static_cast<std::int32_t>(i);
  }
  return flow;
}

}  // namespace tidemark
