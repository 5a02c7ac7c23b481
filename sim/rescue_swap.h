// The rescue of the vendor's adaptive recompute: where an allocation fails, tensors that were saved
// for backward are swapped out to the host until it succeeds, and in again when their backward
// reads them.
//
// Swapped are tensors of layers that the forward has left (all but the layer it is in), the oldest
// first, until as many bytes have gone as were requested; then the allocation is tried again, until
// nothing is left to swap: then the card is out of memory. What a backward has read stays. What is
// run again was never saved. The CPU waits for each copy, so the card stands still for
//
//   bytes / device-to-host rate + bytes / host-to-device rate
//
// Source: HYGON-AI/Megatron-LM-das, hcu_megatron/core/memory/adaptive_recomputing/{swap_manager,
// adaptive_recompute,adaptive_recompute_apply}.py (after MindSpeed, whose allocator has the loop).
//
// In its favour: the vendor swaps only while it looks for a plan and for ten steps after, here all
// along; copies run at the rate of pinned memory, which theirs is not; an iteration takes longer by
// what the card that swaps most stands still, as if stages stood still at the same time. Left out:
// that tensors which are not contiguous go last, and a limit of host memory.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "models/operator_graph.h"

namespace tidemark {

// What of a card could be swapped out, and what is, in one iteration.
class RescueSwap {
 public:
  struct Tensor {
    StorageId storage;
    std::int32_t microbatch = 0;
  };
  static constexpr std::int64_t kLeastBytes = 1024;  // smaller tensors stay

  // `graph` outlives this.
  RescueSwap(const OperatorGraph& graph, std::int64_t microbatches);

  // The card is about to run the operator at `index` of forward ++ backward. Returns: storages that
  // it reads and that are out; they come in now.
  std::vector<StorageId> issue(std::int32_t index, std::int32_t microbatch);
  void freed(StorageId storage, std::int32_t microbatch) { at(storage, microbatch) = {}; }
  // Returns: what goes out for a request, oldest first; less than the request if there is no more.
  std::vector<Tensor> swap_out(std::int64_t requested,
                               const std::function<std::int64_t(const Tensor&)>& bytes);

 private:
  struct State {
    std::int64_t saved_at = 0;  // place in the order of saving; 0: not saved
    bool out = false;
  };
  State& at(StorageId storage, std::int32_t microbatch) {
    return states_[static_cast<std::size_t>(microbatch) * graph_.storages.size() + storage.index()];
  }

  const OperatorGraph& graph_;
  std::vector<bool> kept_;     // [storage]
  std::vector<State> states_;  // [microbatch][storage]
  std::int64_t saved_ = 0;     // so far
  std::int64_t left_ = 0;      // of those, by layers that the forward has left
  std::int32_t layer_ = -1;    // that the forward is in
};

std::int64_t rescue_swap_ns(Bytes swapped, double d2h_bytes_per_s, double h2d_bytes_per_s);

}  // namespace tidemark
