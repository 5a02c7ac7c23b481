#include "sim/schedule.h"

#include <algorithm>
#include <utility>

namespace tidemark {

Schedule build_1f1b(std::int32_t stages, std::int32_t microbatches) {
  Schedule schedule;
  schedule.microbatches = microbatches;
  schedule.stages.resize(static_cast<std::size_t>(stages));
  for (std::int32_t r = 0; r < stages; ++r) {
    std::vector<Step>& steps = schedule.stages[static_cast<std::size_t>(r)];
    const bool first = r == 0;
    const bool last = r == stages - 1;
    const std::int32_t warmup = std::min(stages - r - 1, microbatches);
    const std::int32_t remaining = microbatches - warmup;
    schedule.warmup.push_back(warmup);
    const auto with_previous = [&](std::int32_t send, std::int32_t receive) {
      if (!first) steps.emplace_back(Transfer{{}, {0, receive}, {0, send}, {}});
    };
    const auto with_next = [&](std::int32_t send, std::int32_t receive) {
      if (!last) steps.emplace_back(Transfer{{0, send}, {}, {}, {0, receive}});
    };
    for (std::int32_t i = 0; i < warmup; ++i) {
      with_previous(-1, i);
      steps.emplace_back(Slot{SlotKind::kForward, i});
      with_next(i, -1);
    }
    if (remaining > 0) with_previous(-1, warmup);
    for (std::int32_t i = 0; i < remaining; ++i) {
      steps.emplace_back(Slot{SlotKind::kForward, warmup + i});
      with_next(warmup + i, i);
      steps.emplace_back(Slot{SlotKind::kBackward, i});
      with_previous(i, i == remaining - 1 ? -1 : warmup + i + 1);
    }
    for (std::int32_t i = remaining; i < microbatches; ++i) {
      with_next(-1, i);
      steps.emplace_back(Slot{SlotKind::kBackward, i});
      with_previous(i, -1);
    }
  }
  return schedule;
}

namespace {

// The steps of one stage; `k` counts forwards, or backwards, of all chunks.
class InterleavedStage {
 public:
  InterleavedStage(std::int32_t stages, std::int32_t stage, std::int32_t microbatches,
                   const Interleaving& interleaving)
      : stages_(stages),
        chunks_(interleaving.chunks),
        overlaps_(interleaving.overlap_p2p_comm),
        combines_(interleaving.overlap_moe_expert_parallel_comm),
        delays_(interleaving.delay_wgrad_compute),
        first_(stage == 0),
        last_(stage == stages - 1),
        total_(microbatches * interleaving.chunks) {
    for (std::int32_t begin = 0; begin < microbatches;
         begin += interleaving.microbatches_in_a_row) {
      const std::int32_t end = std::min(begin + interleaving.microbatches_in_a_row, microbatches);
      for (std::int32_t chunk = 0; chunk < chunks_; ++chunk) {
        for (std::int32_t m = begin; m < end; ++m) table_.push_back({chunk, m});
      }
    }
    warmup_ =
        std::min(2 * (stages - stage - 1) + (chunks_ - 1) * interleaving.microbatches_in_a_row +
                     (interleaving.overlap_moe_expert_parallel_comm ? 1 : 0),
                 total_);
  }

  std::int32_t warmup() const { return warmup_; }

  std::vector<Step> build() && {
    if (!first_) transfer({.receive_activation = forward_at(0)});
    for (std::int32_t k = 0; k < warmup_; ++k) warm_up(k);
    for (std::int32_t k = 0; k < total_ - warmup_; ++k) one_forward_one_backward(k);
    if (warmup_ == total_ && !last_) {
      transfer({.receive_gradient = backward_at(0)});
    }
    for (std::int32_t k = total_ - warmup_; k < total_; ++k) cool_down(k);
    return std::move(steps_);
  }

 private:
  ChunkTensor forward_at(std::int32_t k) const { return table_[static_cast<std::size_t>(k)]; }
  ChunkTensor backward_at(std::int32_t k) const {
    const ChunkTensor t = forward_at(k);
    return {chunks_ - 1 - t.chunk, t.microbatch};
  }

  // Received after the forward (backward) of step k. A stage gets the next step's; the first and
  // last stage of the ring get theirs when the sender has made it, which may be for a later step.
  ChunkTensor arriving_activation(std::int32_t k) const {
    if (!first_) return k + 1 < total_ ? forward_at(k + 1) : ChunkTensor{};
    if (k < stages_ - 1) return {};
    const ChunkTensor sent = forward_at(k - (stages_ - 1));
    return sent.chunk == chunks_ - 1 ? ChunkTensor{} : ChunkTensor{sent.chunk + 1, sent.microbatch};
  }
  ChunkTensor arriving_gradient(std::int32_t k) const {
    if (!last_) return k + 1 < total_ ? backward_at(k + 1) : ChunkTensor{};
    if (k < stages_ - 1) return {};
    const ChunkTensor sent = backward_at(k - (stages_ - 1));
    return sent.chunk == 0 ? ChunkTensor{} : ChunkTensor{sent.chunk - 1, sent.microbatch};
  }
  ChunkTensor leaving_activation(std::int32_t k) const {
    const ChunkTensor t = forward_at(k);
    return last_ && t.chunk == chunks_ - 1 ? ChunkTensor{} : t;
  }
  ChunkTensor leaving_gradient(std::int32_t k) const {
    const ChunkTensor t = backward_at(k);
    return first_ && t.chunk == 0 ? ChunkTensor{} : t;
  }

  void forward(std::int32_t k) {
    const ChunkTensor t = forward_at(k);
    steps_.emplace_back(Slot{SlotKind::kForward, t.microbatch, t.chunk});
  }
  void backward(std::int32_t k) {
    const ChunkTensor t = backward_at(k);
    steps_.emplace_back(Slot{SlotKind::kBackward, t.microbatch, t.chunk});
  }
  void transfer(const Transfer& t) {
    const bool empty = !t.send_activation.valid() && !t.receive_activation.valid() &&
                       !t.send_gradient.valid() && !t.receive_gradient.valid();
    if (empty && !t.blocking) return;  // a blocking one still waits for the device
    steps_.emplace_back(t);
    if (t.blocking) return;
    if (t.receive_activation.valid()) pending_.push_back({false, t.receive_activation});
    if (t.receive_gradient.valid()) pending_.push_back({true, t.receive_gradient});
  }
  // What a blocking transfer has brought needs no wait.
  void wait_for(bool gradient, ChunkTensor tensor) {
    const auto it = std::find(pending_.begin(), pending_.end(), Wait{gradient, tensor});
    if (it == pending_.end()) return;
    steps_.emplace_back(*it);
    pending_.erase(it);
  }

  void warm_up(std::int32_t k) {
    forward(k);
    const bool turns = k == warmup_ - 1 && warmup_ < total_;
    const ChunkTensor first_gradient = turns && !last_ ? backward_at(0) : ChunkTensor{};
    transfer({.send_activation = leaving_activation(k),
              .receive_activation = arriving_activation(k),
              .receive_gradient = overlaps_ ? ChunkTensor{} : first_gradient});
    if (overlaps_) transfer({.receive_gradient = first_gradient, .blocking = false});
  }

  void one_forward_one_backward(std::int32_t k) {
    const std::int32_t f = k + warmup_;
    // The last forward's transfer would receive what no forward needs.
    const ChunkTensor arriving = f == total_ - 1 ? ChunkTensor{} : arriving_activation(f);
    if (combines_) {
      combined(k, arriving);
      return;
    }
    if (!overlaps_) {
      forward(f);
      backward(k);
      transfer({leaving_activation(f), arriving, leaving_gradient(k), arriving_gradient(k)});
      return;
    }
    wait_for(false, forward_at(f));
    forward(f);
    transfer({.send_activation = leaving_activation(f),
              .receive_activation = arriving,
              .blocking = false});
    wait_for(true, backward_at(k));
    backward(k);
    transfer({.send_gradient = leaving_gradient(k),
              .receive_gradient = arriving_gradient(k),
              .blocking = false});
  }

  void combined(std::int32_t k, ChunkTensor arriving) {
    const ChunkTensor f = forward_at(k + warmup_);
    const ChunkTensor b = backward_at(k);
    const Transfer forward{.send_activation = leaving_activation(k + warmup_),
                           .receive_activation = arriving,
                           .blocking = false};
    const Transfer backward{.send_gradient = leaving_gradient(k),
                            .receive_gradient = arriving_gradient(k),
                            .blocking = false};
    wait_for(false, f);
    wait_for(true, b);
    steps_.emplace_back(Slot{SlotKind::kForwardBackward, f.microbatch, f.chunk, b});
    if (overlaps_) {
      transfer(forward);
      transfer(backward);
    } else {
      transfer({forward.send_activation, forward.receive_activation, backward.send_gradient,
                backward.receive_gradient});
    }
    if (delays_) steps_.emplace_back(Slot{SlotKind::kBackwardWeight, b.microbatch, b.chunk});
  }

  void cool_down(std::int32_t k) {
    wait_for(true, backward_at(k));
    backward(k);
    transfer({.send_gradient = leaving_gradient(k),
              .receive_gradient = k == total_ - 1 ? ChunkTensor{} : arriving_gradient(k)});
  }

  std::int32_t stages_;
  std::int32_t chunks_;
  bool overlaps_;
  bool combines_;
  bool delays_;
  bool first_;
  bool last_;
  std::int32_t total_;
  std::int32_t warmup_ = 0;
  std::vector<ChunkTensor> table_;
  std::vector<Wait> pending_;
  std::vector<Step> steps_;
};

}  // namespace

Schedule build_interleaved_1f1b(std::int32_t stages, std::int32_t microbatches,
                                const Interleaving& interleaving) {
  Schedule schedule;
  schedule.microbatches = microbatches;
  schedule.chunks = interleaving.chunks;
  schedule.microbatches_in_a_row = interleaving.microbatches_in_a_row;
  schedule.overlaps_transfers = interleaving.overlap_p2p_comm;
  for (std::int32_t r = 0; r < stages; ++r) {
    InterleavedStage stage(stages, r, microbatches, interleaving);
    schedule.warmup.push_back(stage.warmup());
    schedule.stages.push_back(std::move(stage).build());
  }
  return schedule;
}

namespace {

// What a slot of a stage gets from other stages, or gives to them.
class Borders {
 public:
  Borders(const Schedule& schedule, std::int32_t stage) : schedule_(schedule), stage_(stage) {}

  ChunkTensor needs_activation(const Slot& slot) const { return from_previous(slot.forward()); }
  ChunkTensor needs_gradient(const Slot& slot) const { return from_next(slot.backward()); }
  ChunkTensor makes_activation(const Slot& slot) const { return from_next(slot.forward()); }
  ChunkTensor makes_gradient(const Slot& slot) const { return from_previous(slot.backward()); }

 private:
  // `t` if its chunk has a neighbour on that side, on another stage.
  ChunkTensor from_previous(ChunkTensor t) const {
    if (!t.valid() || schedule_.virtual_stage(stage_, t.chunk) == 0) return {};
    return schedule_.previous(stage_, t.chunk).stage == stage_ ? ChunkTensor{} : t;
  }
  ChunkTensor from_next(ChunkTensor t) const {
    const std::int64_t last = schedule_.virtual_stages() - 1;
    if (!t.valid() || schedule_.virtual_stage(stage_, t.chunk) == last) return {};
    return schedule_.next(stage_, t.chunk).stage == stage_ ? ChunkTensor{} : t;
  }

  const Schedule& schedule_;
  std::int32_t stage_;
};

}  // namespace

Schedule with_transfers(const SlotOrders& orders, std::int32_t microbatches, std::int32_t chunks,
                        Placement placement) {
  Schedule schedule;
  schedule.microbatches = microbatches;
  schedule.chunks = chunks;
  schedule.placement = placement;
  schedule.overlaps_transfers = true;
  schedule.buffers_sends = true;
  schedule.stages.resize(orders.size());
  for (std::size_t r = 0; r < orders.size(); ++r) {
    const std::vector<Slot>& order = orders[r];
    std::vector<Step>& steps = schedule.stages[r];
    const Borders borders(schedule, static_cast<std::int32_t>(r));
    const auto post = [&](const Slot* done, const Slot* coming) {
      Transfer t{.blocking = false};
      if (done != nullptr) {
        t.send_activation = borders.makes_activation(*done);
        t.send_gradient = borders.makes_gradient(*done);
      }
      if (coming != nullptr) {
        t.receive_activation = borders.needs_activation(*coming);
        t.receive_gradient = borders.needs_gradient(*coming);
      }
      const bool empty = !t.send_activation.valid() && !t.receive_activation.valid() &&
                         !t.send_gradient.valid() && !t.receive_gradient.valid();
      if (!empty) steps.emplace_back(t);
    };
    if (!order.empty()) post(nullptr, &order[0]);
    for (std::size_t i = 0; i < order.size(); ++i) {
      post(i > 0 ? &order[i - 1] : nullptr, i + 1 < order.size() ? &order[i + 1] : nullptr);
      const ChunkTensor activation = borders.needs_activation(order[i]);
      const ChunkTensor gradient = borders.needs_gradient(order[i]);
      if (activation.valid()) steps.emplace_back(Wait{false, activation});
      if (gradient.valid()) steps.emplace_back(Wait{true, gradient});
      steps.emplace_back(order[i]);
    }
    if (!order.empty()) post(&order.back(), nullptr);
    schedule.warmup.push_back(static_cast<std::int32_t>(
        std::ranges::find_if(order, [](const Slot& s) { return s.backward().valid(); }) -
        order.begin()));
  }
  return schedule;
}

std::int32_t peak_in_flight(const Schedule& schedule, std::int32_t stage) {
  std::int32_t live = 0;
  std::int32_t peak = 0;
  for (const Step& step : schedule.stages[static_cast<std::size_t>(stage)]) {
    const Slot* slot = std::get_if<Slot>(&step);
    if (slot == nullptr) continue;
    if (slot->forward().valid()) ++live;
    peak = std::max(peak, live);
    if (slot->backward().valid()) --live;
  }
  return peak;
}

}  // namespace tidemark
