#include "sim/rescue_swap.h"

#include <algorithm>
#include <utility>

namespace tidemark {

RescueSwap::RescueSwap(const OperatorGraph& graph, std::int64_t microbatches)
    : graph_(graph),
      kept_(graph.storages.size(), false),
      states_(graph.storages.size() * static_cast<std::size_t>(microbatches)) {
  for (StorageId s : kept_storages(graph)) kept_[s.index()] = true;
}

std::vector<StorageId> RescueSwap::issue(std::int32_t index, std::int32_t microbatch) {
  const Operator& op = graph_.at(static_cast<std::size_t>(index));
  std::vector<StorageId> back;
  for (StorageId s : op.reads) {
    State& state = at(s, microbatch);
    if (std::exchange(state.out, false)) back.push_back(s);
  }
  if (static_cast<std::size_t>(index) >= graph_.forward.size()) {
    for (StorageId s : op.reads) at(s, microbatch).saved_at = 0;
    return back;
  }
  if (op.layer < 0) return back;
  if (std::exchange(layer_, op.layer) != op.layer) left_ = saved_;
  for (const auto* list : {&op.reads, &op.writes}) {
    for (StorageId s : *list) {
      if (kept_[s.index()]) at(s, microbatch).saved_at = ++saved_;
    }
  }
  return back;
}

std::vector<RescueSwap::Tensor> RescueSwap::swap_out(
    std::int64_t requested, const std::function<std::int64_t(const Tensor&)>& bytes) {
  std::vector<std::pair<std::int64_t, Tensor>> candidates;  // by place
  for (std::size_t i = 0; i < states_.size(); ++i) {
    const State& state = states_[i];
    if (state.saved_at == 0 || state.saved_at > left_ || state.out) continue;
    const std::size_t storages = graph_.storages.size();
    candidates.push_back({state.saved_at,
                          {StorageId(static_cast<std::int32_t>(i % storages)),
                           static_cast<std::int32_t>(i / storages)}});
  }
  std::ranges::sort(candidates, {}, &std::pair<std::int64_t, Tensor>::first);
  std::vector<Tensor> out;
  std::int64_t swapped = 0;
  for (const auto& [place, tensor] : candidates) {
    if (swapped >= requested) break;
    const std::int64_t size = bytes(tensor);
    if (size < kLeastBytes) continue;
    at(tensor.storage, tensor.microbatch).out = true;
    swapped += size;
    out.push_back(tensor);
  }
  return out;
}

std::int64_t rescue_swap_ns(Bytes swapped, double d2h_bytes_per_s, double h2d_bytes_per_s) {
  if (swapped <= Bytes()) return 0;
  const auto bytes = static_cast<double>(swapped.value);
  return round_up_ns(bytes / d2h_bytes_per_s + bytes / h2d_bytes_per_s).count();
}

}  // namespace tidemark
