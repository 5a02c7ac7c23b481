#include "sim/check_schedule.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <variant>

namespace tidemark {
namespace {

// What has happened to one chunk's microbatch on one stage.
struct State {
  bool forward = false;
  bool backward = false;  // its input's gradient is there
  bool weight = false;    // and those of its weights
  bool fused = false;     // ran backward beside a forward
  bool activation_awaited = false;
  bool gradient_awaited = false;
};

// A message, as its receiver counts.
struct Message {
  bool sent = false;
  bool received = false;  // its receive is posted
  bool moves() const { return sent && received; }
};

class Checker {
 public:
  explicit Checker(const Schedule& schedule)
      : schedule_(schedule),
        at_(schedule.stages.size(), 0),
        posted_(schedule.stages.size(), false),
        last_sent_(schedule.stages.size()),
        states_(schedule.stages.size() * cells()),
        activations_(states_.size()),
        gradients_(states_.size()) {}

  std::vector<std::string> run() && {
    for (bool progress = true; progress;) {
      progress = false;
      for (std::size_t stage = 0; stage < at_.size(); ++stage) progress |= advance(stage);
    }
    for (std::size_t stage = 0; stage < at_.size(); ++stage) {
      if (at_[stage] < schedule_.stages[stage].size()) {
        complain(stage, "waits for ever for another stage");
      } else {
        check_finished(stage);
      }
    }
    return std::move(problems_);
  }

 private:
  // The last message that a stage sent without blocking, of each kind.
  struct Unfinished {
    const Message* activation = nullptr;
    const Message* gradient = nullptr;
  };

  std::size_t cells() const {
    return static_cast<std::size_t>(schedule_.chunks) *
           static_cast<std::size_t>(schedule_.microbatches);
  }
  std::size_t index(std::size_t stage, ChunkTensor t) const {
    return stage * cells() +
           static_cast<std::size_t>(t.chunk) * static_cast<std::size_t>(schedule_.microbatches) +
           static_cast<std::size_t>(t.microbatch);
  }
  bool exists(ChunkTensor t) const {
    return t.chunk >= 0 && t.chunk < schedule_.chunks &&
           t.microbatch >= schedule_.first_microbatch(t.chunk) &&
           t.microbatch < schedule_.end_microbatch(t.chunk);
  }
  bool is_first(std::size_t stage, ChunkTensor t) const {
    return schedule_.virtual_stage(static_cast<std::int32_t>(stage), t.chunk) == 0;
  }
  bool is_last(std::size_t stage, ChunkTensor t) const {
    return schedule_.virtual_stage(static_cast<std::int32_t>(stage), t.chunk) ==
           schedule_.virtual_stages() - 1;
  }
  // The same microbatch on the next or previous virtual stage.
  std::size_t neighbour(std::size_t stage, ChunkTensor t, bool next, std::size_t* index_of) const {
    const auto s = static_cast<std::int32_t>(stage);
    const ChunkPlace at = next ? schedule_.next(s, t.chunk) : schedule_.previous(s, t.chunk);
    *index_of = index(static_cast<std::size_t>(at.stage),
                      {static_cast<std::int32_t>(at.chunk), t.microbatch});
    return static_cast<std::size_t>(at.stage);
  }

  void complain(std::size_t stage, const std::string& what) {
    problems_.push_back("stage " + std::to_string(stage) + " step " + std::to_string(at_[stage]) +
                        " " + what);
  }
  static std::string name(ChunkTensor t) {
    return "chunk " + std::to_string(t.chunk) + " microbatch " + std::to_string(t.microbatch);
  }

  // Goes on until the end, or until another stage has to do something first.
  bool advance(std::size_t stage) {
    bool moved = false;
    while (at_[stage] < schedule_.stages[stage].size()) {
      const Step& step = schedule_.stages[stage][at_[stage]];
      if (const Slot* slot = std::get_if<Slot>(&step)) {
        run_slot(stage, *slot);
      } else if (const Transfer* t = std::get_if<Transfer>(&step)) {
        if (!posted_[stage]) moved |= post(stage, *t);
        if (!goes_on(stage, *t)) return moved;
        posted_[stage] = false;
      } else if (!wait(stage, std::get<Wait>(step))) {
        return moved;
      }
      ++at_[stage];
      moved = true;
    }
    return moved;
  }

  void run_slot(std::size_t stage, const Slot& slot) {
    // Side by side: neither of the two may be for the other.
    if (const ChunkTensor t = slot.backward(); t.valid()) run_backward(stage, t);
    if (const ChunkTensor t = slot.forward(); t.valid()) run_forward(stage, t);
    if (slot.beside.valid() && exists(slot.beside)) states_[index(stage, slot.beside)].fused = true;
    if (slot.kind == SlotKind::kBackward) run_weight(stage, {slot.chunk, slot.microbatch});
    if (slot.kind == SlotKind::kBackwardWeight) run_weight(stage, {slot.chunk, slot.microbatch});
  }

  void run_forward(std::size_t stage, ChunkTensor t) {
    if (!exists(t)) return complain(stage, "runs " + name(t) + ", which does not exist");
    State& state = states_[index(stage, t)];
    if (state.forward) complain(stage, "runs " + name(t) + " forward twice");
    state.forward = true;
    if (is_first(stage, t) || state.activation_awaited) return;
    std::size_t from = 0;
    const bool local = neighbour(stage, t, false, &from) == stage;
    if (!local || !states_[from].forward) complain(stage, "runs " + name(t) + " without its input");
  }

  void run_backward(std::size_t stage, ChunkTensor t) {
    if (!exists(t)) return complain(stage, "runs " + name(t) + ", which does not exist");
    State& state = states_[index(stage, t)];
    if (!state.forward) complain(stage, "runs " + name(t) + " backward before forward");
    if (state.backward) complain(stage, "runs " + name(t) + " backward twice");
    state.backward = true;
    if (is_last(stage, t) || state.gradient_awaited) return;
    std::size_t from = 0;
    const bool local = neighbour(stage, t, true, &from) == stage;
    if (!local || !states_[from].backward) {
      complain(stage, "runs " + name(t) + " backward without its output's gradient");
    }
  }

  void run_weight(std::size_t stage, ChunkTensor t) {
    if (!exists(t)) return complain(stage, "runs " + name(t) + ", which does not exist");
    State& state = states_[index(stage, t)];
    if (!state.backward) {
      complain(stage, "runs the weights' gradients of " + name(t) + " before its input's");
    }
    if (state.weight) complain(stage, "runs the weights' gradients of " + name(t) + " twice");
    state.weight = true;
    splits_fused_ |= state.fused;
  }

  bool post(std::size_t stage, const Transfer& t) {
    posted_[stage] = true;
    if (t.send_activation.valid()) send(stage, t.send_activation, false);
    if (t.send_gradient.valid()) send(stage, t.send_gradient, true);
    if (t.receive_activation.valid()) receive(stage, t.receive_activation, false);
    if (t.receive_gradient.valid()) receive(stage, t.receive_gradient, true);
    return true;
  }

  Message& sent_message(std::size_t stage, ChunkTensor t, bool gradient) {
    std::size_t there = 0;
    neighbour(stage, t, !gradient, &there);
    return gradient ? gradients_[there] : activations_[there];
  }

  void send(std::size_t stage, ChunkTensor t, bool gradient) {
    if (!exists(t) || (gradient ? is_first(stage, t) : is_last(stage, t))) {
      return complain(stage, "sends " + name(t) + " to nobody");
    }
    const State& state = states_[index(stage, t)];
    if (!(gradient ? state.backward : state.forward)) {
      complain(stage, "sends " + name(t) + " before it is made");
    }
    Message& message = sent_message(stage, t, gradient);
    if (message.sent) complain(stage, "sends " + name(t) + " twice");
    message.sent = true;
  }

  void receive(std::size_t stage, ChunkTensor t, bool gradient) {
    if (!exists(t) || (gradient ? is_last(stage, t) : is_first(stage, t))) {
      return complain(stage, "receives " + name(t) + " from nobody");
    }
    Message& message = (gradient ? gradients_ : activations_)[index(stage, t)];
    if (message.received) complain(stage, "receives " + name(t) + " twice");
    message.received = true;
  }

  // Whether a stage gets past a transfer that it has posted.
  bool goes_on(std::size_t stage, const Transfer& t) {
    if (!t.blocking) return sends_go_on(stage, t);
    for (const bool gradient : {false, true}) {
      const ChunkTensor sent = gradient ? t.send_gradient : t.send_activation;
      const ChunkTensor received = gradient ? t.receive_gradient : t.receive_activation;
      if (sent.valid() && exists(sent) && !sent_message(stage, sent, gradient).moves())
        return false;
      if (!received.valid() || !exists(received)) continue;
      if (!await(stage, received, gradient)) return false;
    }
    return true;
  }

  bool sends_go_on(std::size_t stage, const Transfer& t) {
    if (schedule_.buffers_sends) return true;
    Unfinished& last = last_sent_[stage];
    const bool sends_activation = t.send_activation.valid() && exists(t.send_activation);
    const bool sends_gradient = t.send_gradient.valid() && exists(t.send_gradient);
    if (sends_activation && last.activation != nullptr && !last.activation->moves()) return false;
    if (sends_gradient && last.gradient != nullptr && !last.gradient->moves()) return false;
    if (sends_activation) last.activation = &sent_message(stage, t.send_activation, false);
    if (sends_gradient) last.gradient = &sent_message(stage, t.send_gradient, true);
    return true;
  }

  bool wait(std::size_t stage, const Wait& w) {
    if (!exists(w.tensor)) {
      complain(stage, "waits for " + name(w.tensor) + ", which does not exist");
      return true;
    }
    const Message& message = (w.gradient ? gradients_ : activations_)[index(stage, w.tensor)];
    if (!message.received) {
      complain(stage, "waits for " + name(w.tensor) + ", which it never asked for");
      return true;
    }
    return await(stage, w.tensor, w.gradient);
  }

  bool await(std::size_t stage, ChunkTensor t, bool gradient) {
    const std::size_t i = index(stage, t);
    if (!(gradient ? gradients_ : activations_)[i].moves()) return false;
    (gradient ? states_[i].gradient_awaited : states_[i].activation_awaited) = true;
    return true;
  }

  void check_finished(std::size_t stage) {
    for (std::int32_t c = 0; c < schedule_.chunks; ++c) {
      for (std::int32_t m = schedule_.first_microbatch(c); m < schedule_.end_microbatch(c); ++m) {
        const std::size_t i = index(stage, {c, m});
        const State& state = states_[i];
        const bool weight = state.weight || (state.fused && !splits_fused_);
        if (!state.forward || !state.backward || !weight) {
          complain(stage, "never finishes " + name({c, m}));
        }
        for (const Message* message : {&activations_[i], &gradients_[i]}) {
          if (message->sent != message->received) {
            complain(stage, "has half a message of " + name({c, m}));
          }
        }
      }
    }
  }

  const Schedule& schedule_;
  std::vector<std::size_t> at_;        // [stage]: its step
  std::vector<bool> posted_;           // [stage]: the transfer at hand
  std::vector<Unfinished> last_sent_;  // [stage]
  std::vector<State> states_;          // [stage][chunk][microbatch]
  std::vector<Message> activations_;   // [receiving stage][chunk][microbatch]
  std::vector<Message> gradients_;
  bool splits_fused_ = false;  // weight gradients follow fused slots as slots of their own
  std::vector<std::string> problems_;
};

}  // namespace

std::vector<std::string> check_schedule(const Schedule& schedule) {
  return Checker(schedule).run();
}

}  // namespace tidemark
