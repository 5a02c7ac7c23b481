#include "models/weight_gradients.h"

#include <algorithm>
#include <utility>

namespace tidemark {
namespace {

bool writes(const Operator& op, StorageId s) { return std::ranges::count(op.writes, s) > 0; }

void rename(Operator& op, StorageId from, StorageId to) {
  for (auto* list : {&op.reads, &op.writes, &op.holds}) std::ranges::replace(*list, from, to);
}

}  // namespace

void reorder(std::vector<Operator>& list, OperatorRange range,
             const std::vector<std::int32_t>& order) {
  std::vector<Operator> moved;
  std::vector<std::int32_t> position(order.size());
  for (const std::int32_t from : order) {
    position[static_cast<std::size_t>(from - range.begin)] =
        range.begin + static_cast<std::int32_t>(moved.size());
    moved.push_back(std::move(list[static_cast<std::size_t>(from)]));
  }
  for (Operator& op : moved) {
    if (op.contends_with < 0) continue;
    op.contends_with = position[static_cast<std::size_t>(op.contends_with - range.begin)];
  }
  std::ranges::move(moved, list.begin() + range.begin);
}

void keep_operands_of_deferred(OperatorGraph& graph, Chunk& chunk) {
  std::vector<Operator>& list = graph.backward;
  for (std::int32_t d = chunk.backward.begin; d < chunk.backward.end; ++d) {
    if (!list[static_cast<std::size_t>(d)].deferrable) continue;
    for (const StorageId s : list[static_cast<std::size_t>(d)].reads) {
      std::int32_t sum = d + 1;
      while (sum < chunk.backward.end && !writes(list[static_cast<std::size_t>(sum)], s)) ++sum;
      if (sum == chunk.backward.end) continue;
      Storage copy = graph.storages[s.index()];
      copy.name = "gradient_sum";
      graph.storages.push_back(std::move(copy));
      const StorageId own(std::ssize(graph.storages) - 1);
      Operator& adds = list[static_cast<std::size_t>(sum)];
      std::ranges::replace(adds.writes, s, own);
      for (std::int32_t i = sum + 1; i < chunk.backward.end; ++i) {
        rename(list[static_cast<std::size_t>(i)], s, own);
      }
      if (chunk.input_gradient == s) chunk.input_gradient = own;
    }
  }
}

OperatorGraph split_weight_gradients(OperatorGraph graph) {
  for (Chunk& chunk : graph.chunks) {
    keep_operands_of_deferred(graph, chunk);
    std::vector<std::int32_t> order;
    for (const bool deferred : {false, true}) {
      if (deferred)
        chunk.weight.begin = chunk.backward.begin + static_cast<std::int32_t>(order.size());
      for (std::int32_t i = chunk.backward.begin; i < chunk.backward.end; ++i) {
        if (graph.backward[static_cast<std::size_t>(i)].deferrable == deferred) order.push_back(i);
      }
    }
    reorder(graph.backward, chunk.backward, order);
    chunk.weight.end = std::exchange(chunk.backward.end, chunk.weight.begin);
  }
  check_operator_graph(graph);
  return graph;
}

}  // namespace tidemark
