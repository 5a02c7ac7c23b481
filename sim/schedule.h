// The order in which a pipeline stage runs its slots and talks to its neighbours.
//
// 1F1B as Megatron-LM orders it (core/pipeline_parallel/schedules.py,
// forward_backward_pipelining_without_interleaving): p - r - 1 warm-up forwards, one forward and
// one backward in turn, the remaining backwards.
//
//   stage r:    F0 >  F1 >  .. F(w) <>  B0 ..      > activations, <> activations and gradients
//   stage r+1:  > F0  ..       <> B0
//
// Interleaved 1F1B (forward_backward_pipelining_with_interleaving): a stage has v chunks and runs
// groups of N microbatches of one chunk in a row, then of the next; 2 (p - r - 1) + (v - 1) N
// warm-up forwards, one more to overlap experts' communication. Stages form a ring: the last sends
// chunk c's activations to chunk c + 1 of the first.
//
// Other orders, without transfers: sim/zero_bubble.h, sim/v_schedules.h, sim/dual_pipe.h;
// with_transfers adds what they send and receive.
#pragma once

#include <cstdint>
#include <variant>
#include <vector>

#include "models/placement.h"

namespace tidemark {

// A chunk's microbatch, as the stage that names it counts; microbatch -1: none.
struct ChunkTensor {
  std::int32_t chunk = 0;
  std::int32_t microbatch = -1;
  bool valid() const { return microbatch >= 0; }
  friend constexpr bool operator==(ChunkTensor, ChunkTensor) = default;
};

// F, B and W of the literature. A backward is whole (kBackward), or in two: the gradients that
// other operators wait for, and later those of weights.
enum class SlotKind : std::uint8_t {
  kForward,
  kBackward,
  kBackwardInput,
  kBackwardWeight,
  kForwardBackward,  // of two microbatches, interleaved operator by operator
};

struct Slot {
  SlotKind kind = SlotKind::kForward;
  std::int32_t microbatch = 0;
  std::int32_t chunk = 0;
  ChunkTensor beside{};  // of kForwardBackward: what runs backward

  // What it runs of each pass, if anything.
  ChunkTensor forward() const {
    const bool runs = kind == SlotKind::kForward || kind == SlotKind::kForwardBackward;
    return runs ? ChunkTensor{chunk, microbatch} : ChunkTensor{};
  }
  ChunkTensor backward() const {
    const bool runs = kind == SlotKind::kBackward || kind == SlotKind::kBackwardInput;
    return runs ? ChunkTensor{chunk, microbatch} : beside;
  }
};

// Point-to-point operations that a stage posts together. Activations go to the next virtual stage,
// gradients to the one before. A message moves when both sides have posted it.
struct Transfer {
  ChunkTensor send_activation{};
  ChunkTensor receive_activation{};
  ChunkTensor send_gradient{};
  ChunkTensor receive_gradient{};
  // The host waits for all of it. Otherwise a Wait makes the compute stream wait.
  bool blocking = true;
};

// Of the compute stream, for something that an earlier Transfer posted to receive.
struct Wait {
  bool gradient = false;
  ChunkTensor tensor;
  friend constexpr bool operator==(const Wait&, const Wait&) = default;
};

using Step = std::variant<Slot, Transfer, Wait>;

struct Schedule {
  std::vector<std::vector<Step>> stages;  // [stage][step]
  std::vector<std::int32_t> warmup;       // [stage]: forwards of the warm-up
  std::int32_t microbatches = 0;
  std::int32_t chunks = 1;  // of a stage; more than one: interleaved
  std::int32_t microbatches_in_a_row = 1;
  bool overlaps_transfers = false;
  Placement placement = Placement::kRing;
  // A stage goes on whatever of what it has sent is still on its way. Otherwise it lets one message
  // go on in each direction.
  bool buffers_sends = false;
  // Its lists keep zero-byte stand-ins of inputs and outputs (Megatron-Kwai).
  bool lists_stand_ins = false;

  std::int64_t virtual_stages() const {
    return tidemark::virtual_stages(placement, std::ssize(stages), chunks);
  }
  std::int64_t virtual_stage(std::int32_t stage, std::int32_t chunk) const {
    return tidemark::virtual_stage(placement, std::ssize(stages), {stage, chunk});
  }
  // Who receives a chunk's output (its input's gradient), or sent its input (its output's
  // gradient).
  ChunkPlace next(std::int32_t stage, std::int32_t chunk) const {
    return place_after(placement, std::ssize(stages), {stage, chunk}, 1);
  }
  ChunkPlace previous(std::int32_t stage, std::int32_t chunk) const {
    return place_after(placement, std::ssize(stages), {stage, chunk}, -1);
  }
  // Each copy of the model runs its share of the microbatches.
  std::int32_t first_microbatch(std::int32_t chunk) const {
    return placement == Placement::kBidirectional ? chunk * microbatches / 2 : 0;
  }
  std::int32_t end_microbatch(std::int32_t chunk) const {
    return placement == Placement::kBidirectional ? (chunk + 1) * microbatches / 2 : microbatches;
  }
};

// Requires: stages >= 1, microbatches >= 1.
Schedule build_1f1b(std::int32_t stages, std::int32_t microbatches);

struct Interleaving {
  std::int32_t chunks = 2;
  std::int32_t microbatches_in_a_row = 0;  // N, from the number of stages to the microbatches
  bool overlap_p2p_comm = true;
  // One warm-up forward more, so that every forward of the steady phase runs beside a backward.
  bool overlap_moe_expert_parallel_comm = false;
  // The backward beside a forward leaves weight gradients for after its transfer.
  bool delay_wgrad_compute = false;
};

// Requires: stages >= 2, chunks >= 2, microbatches % N == 0 or >= stages.
Schedule build_interleaved_1f1b(std::int32_t stages, std::int32_t microbatches,
                                const Interleaving& interleaving);

// A stage's slots in order, without what it sends and receives.
using SlotOrders = std::vector<std::vector<Slot>>;  // [stage][slot]

// Sends what a slot has made when it is done, and asks for what a slot needs when the one before it
// begins; nothing blocks the host.
Schedule with_transfers(const SlotOrders& orders, std::int32_t microbatches, std::int32_t chunks,
                        Placement placement);

// The most microbatches (of chunks) a stage holds at once: forwards run minus backwards finished.
std::int32_t peak_in_flight(const Schedule& schedule, std::int32_t stage);

}  // namespace tidemark
