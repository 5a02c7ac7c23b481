#include "sim/ratio_offload.h"

#include <algorithm>
#include <cmath>
#include <tuple>

namespace tidemark {
namespace {

constexpr std::int64_t kSmallestOffloaded = 1 << 20;

std::vector<StorageId> eligible(const OperatorGraph& graph, const Chunk& chunk) {
  const std::vector<Lifetime> lives = lifetimes(graph);
  std::vector<StorageId> saved;
  const auto add = [&](StorageId s) {
    const bool kept = lives[s.index()].last >= static_cast<std::int32_t>(graph.forward.size());
    if (kept && graph.storages[s.index()].bytes.fixed >= kSmallestOffloaded) saved.push_back(s);
  };
  if (chunk.input.valid()) add(chunk.input);
  for (std::int32_t op = chunk.forward.begin; op < chunk.forward.end; ++op) {
    for (StorageId s : graph.forward[static_cast<std::size_t>(op)].writes) {
      if (lives[s.index()].first == op) add(s);
    }
  }
  return saved;
}

}  // namespace

ChunkOffload plan_ratio_offload(OperatorGraph& graph, std::size_t chunk, double ratio) {
  std::vector<StorageId> order = eligible(graph, graph.chunks[chunk]);
  const auto bytes = [&](StorageId s) { return graph.storages[s.index()].bytes.fixed; };
  std::ranges::stable_sort(order, {}, [&](StorageId s) {
    return std::pair(graph.storages[s.index()].saved_as_views, -bytes(s));
  });
  if (ratio > 0.5) std::ranges::reverse(order);

  std::int64_t sum = 0;
  for (StorageId s : order) sum += bytes(s);
  ChunkOffload plan;
  plan.bytes =
      round_up(static_cast<std::int64_t>(std::ceil(static_cast<double>(sum) * ratio)), kMiB.value);
  std::int64_t at = 0;
  for (StorageId s : order) {
    const std::int64_t end = at + bytes(s);
    if (end <= plan.bytes) {
      plan.whole.push_back(s);
    } else if (at < plan.bytes) {
      const auto append = [&](const char* name, std::int64_t size) {
        graph.storages.push_back({name, {size, 0}, graph.storages[s.index()].layer});
        return StorageId(std::ssize(graph.storages) - 1);
      };
      plan.border = s;
      plan.remainder = append("offload.remainder", end - plan.bytes);
      plan.reloaded_border = append("offload.reloaded_border", end - at);
    }
    at = end;
  }
  return plan;
}

std::vector<std::int64_t> reload_buffers(const std::vector<ChunkOffload>& chunks) {
  std::int64_t bytes = 0;
  bool viewed = false;
  for (const ChunkOffload& chunk : chunks) {
    bytes = std::max(bytes, chunk.bytes);
    viewed = viewed || !chunk.whole.empty();
  }
  if (bytes == 0) return {};
  return std::vector<std::int64_t>(viewed ? 2 : 1, bytes);
}

}  // namespace tidemark
