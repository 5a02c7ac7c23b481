#include "sim/dual_pipe.h"

#include <algorithm>
#include <deque>
#include <utility>

namespace tidemark {
namespace {

// Steps of one stage as the sources number them. `distance` is the number of stages between this
// one and the turning point, of `half`; phase 0 is the direction that comes in from the nearer end.
class DualStage {
 public:
  struct Phase {
    std::int32_t chunk = 0;
    std::int32_t first_microbatch = 0;
  };

  DualStage(Phase phase0, Phase phase1) : phases_{phase0, phase1} {}

  // `rank`: from the outer end, 0 to half - 1; `main`: fused pairs in each direction.
  std::vector<Slot> build(std::int32_t half, std::int32_t rank, std::int32_t main) && {
    const std::int32_t ahead = half - rank - 1;
    for (std::int32_t i = 0; i < 2 * ahead; ++i) forward(0);
    for (std::int32_t i = 0; i < rank + 1; ++i) {
      forward(0);
      forward(1);
    }
    for (std::int32_t i = 0; i < ahead; ++i) {
      backward_input(1);
      weight();
      forward(1);
    }
    for (std::int32_t i = 0; i < main; ++i) {
      if (i == 0 && ahead == 0) {
        // At the turning point the two are not overlapped.
        forward(0);
        backward(1);
      } else {
        forward_backward(0, 1);
      }
      forward_backward(1, 0);
    }
    for (std::int32_t i = 0; i < ahead; ++i) {
      backward(1);
      forward_backward(1, 0);
    }
    bool zero_bubble = false;  // in the second half
    for (std::int32_t i = 0; i < rank + 1; ++i) {
      const bool turns = i == (rank + 1) / 2;
      if (turns && rank % 2 == 1) zero_bubble = true;
      zero_bubble ? backward_input(1) : backward(1);
      if (turns && rank % 2 == 0) zero_bubble = true;
      zero_bubble ? backward_input(0) : backward(0);
    }
    for (std::int32_t i = 0; i < ahead; ++i) {
      weight();
      backward_input(0);
    }
    for (std::int32_t i = 0; i < rank + 1; ++i) weight();
    return std::move(order_);
  }

 private:
  ChunkTensor take(std::int32_t phase, std::int32_t (&counters)[2]) {
    const Phase& p = phases_[phase];
    return {p.chunk, p.first_microbatch + counters[phase]++};
  }

  void forward(std::int32_t phase) {
    const ChunkTensor t = take(phase, forwards_);
    order_.push_back({SlotKind::kForward, t.microbatch, t.chunk});
  }
  void backward(std::int32_t phase) {
    const ChunkTensor t = take(phase, backwards_);
    order_.push_back({SlotKind::kBackward, t.microbatch, t.chunk});
  }
  void backward_input(std::int32_t phase) {
    const ChunkTensor t = take(phase, backwards_);
    order_.push_back({SlotKind::kBackwardInput, t.microbatch, t.chunk});
    owed_.push_back(t);
  }
  void weight() {
    const ChunkTensor t = owed_.front();
    owed_.pop_front();
    order_.push_back({SlotKind::kBackwardWeight, t.microbatch, t.chunk});
  }
  void forward_backward(std::int32_t forward_phase, std::int32_t backward_phase) {
    const ChunkTensor f = take(forward_phase, forwards_);
    const ChunkTensor b = take(backward_phase, backwards_);
    order_.push_back({SlotKind::kForwardBackward, f.microbatch, f.chunk, b});
    order_.push_back({SlotKind::kBackwardWeight, b.microbatch, b.chunk});
  }

  Phase phases_[2];
  std::int32_t forwards_[2] = {0, 0};
  std::int32_t backwards_[2] = {0, 0};
  std::deque<ChunkTensor> owed_;
  std::vector<Slot> order_;
};

}  // namespace

SlotOrders build_dual_pipe(std::int32_t stages, std::int32_t microbatches) {
  SlotOrders orders;
  const std::int32_t each = microbatches / 2;
  for (std::int32_t r = 0; r < stages; ++r) {
    const std::int32_t rank = std::min(r, stages - 1 - r);
    DualStage::Phase near{0, 0};
    DualStage::Phase far{1, each};
    if (r >= stages / 2) std::swap(near, far);
    orders.push_back(DualStage(near, far).build(stages / 2, rank, each - stages + rank + 1));
  }
  return orders;
}

SlotOrders build_dual_pipe_v(std::int32_t stages, std::int32_t microbatches) {
  SlotOrders orders;
  for (std::int32_t r = 0; r < stages; ++r) {
    orders.push_back(DualStage({0, 0}, {1, 0}).build(stages, r, microbatches - 2 * stages + r + 1));
  }
  return orders;
}

}  // namespace tidemark
