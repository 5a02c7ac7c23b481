// The order in which a pipeline stage runs its slots and talks to its neighbours.
//
// 1F1B as Megatron-LM orders it (core/pipeline_parallel/schedules.py,
// forward_backward_pipelining_without_interleaving): p - r - 1 warm-up forwards, one forward and
// one backward in turn, the remaining backwards. Neighbours meet in exchanges: each is one batch of
// point-to-point operations that both of them post, and the host waits for it.
//
//   stage r:    F0 >  F1 >  .. F(w) <>  B0 ..      > send_forward, <> send_forward_recv_backward
//   stage r+1:  > F0  ..       <> B0
#pragma once

#include <cstdint>
#include <variant>
#include <vector>

namespace tidemark {

enum class SlotKind : std::uint8_t { kForward, kBackward };

struct Slot {
  SlotKind kind = SlotKind::kForward;
  std::int32_t microbatch = 0;
};

// With the next stage: send an activation, receive a gradient. With the previous stage: send a
// gradient, receive an activation. -1: nothing in that direction.
struct Exchange {
  std::int32_t peer = 0;  // stage
  std::int32_t send_microbatch = -1;
  std::int32_t receive_microbatch = -1;
};

using Step = std::variant<Slot, Exchange>;

struct Schedule {
  std::vector<std::vector<Step>> stages;  // [stage][step]
  std::int32_t microbatches = 0;
};

// Requires: stages >= 1, microbatches >= 1.
Schedule build_1f1b(std::int32_t stages, std::int32_t microbatches);

// The most microbatches a stage holds at once: forwards run minus backwards finished.
std::int32_t peak_in_flight(const Schedule& schedule, std::int32_t stage);

}  // namespace tidemark
