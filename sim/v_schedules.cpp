#include "sim/v_schedules.h"

#include <algorithm>
#include <array>
#include <deque>
#include <optional>
#include <tuple>
#include <utility>

namespace tidemark {
namespace {

// Every pass of a chunk takes one unit of time.
using Time = std::int64_t;
constexpr Time kNotDone = -1;

// Runs all stages side by side; each starts what it may start first.
class ZeroBubbleV {
 public:
  ZeroBubbleV(std::int32_t stages, std::int32_t microbatches)
      : count_(stages), microbatches_(microbatches), stages_(static_cast<std::size_t>(stages)) {
    for (auto* done : {&forward_done_, &backward_done_}) {
      done->assign(static_cast<std::size_t>(2 * stages) * static_cast<std::size_t>(microbatches),
                   kNotDone);
    }
  }

  SlotOrders build() && {
    while (run_next()) {
    }
    SlotOrders orders;
    for (Stage& s : stages_) orders.push_back(std::move(s.order));
    return orders;
  }

 private:
  struct Stage {
    Time free = 0;
    std::int32_t held = 0;  // chunks
    std::int32_t forwards[2] = {0, 0};
    std::int32_t backwards[2] = {0, 0};
    std::deque<ChunkTensor> owed;  // weight gradients
    std::vector<Slot> order;
  };
  // In the order of preference among what can start at the same time.
  enum class Preference { kBackward, kSecondForward, kFirstForward, kWeight };
  struct Choice {
    Time start = 0;
    Preference preference = Preference::kWeight;
    std::int32_t chunk = 0;
    bool operator<(const Choice& o) const {
      return std::tie(start, preference, chunk) < std::tie(o.start, o.preference, o.chunk);
    }
  };

  std::int32_t virtual_stage(std::int32_t stage, std::int32_t chunk) const {
    return static_cast<std::int32_t>(
        tidemark::virtual_stage(Placement::kV, count_, {stage, chunk}));
  }
  Time& done(std::vector<Time>& times, std::int32_t virtual_stage, std::int32_t microbatch) {
    return times[static_cast<std::size_t>(virtual_stage) * static_cast<std::size_t>(microbatches_) +
                 static_cast<std::size_t>(microbatch)];
  }

  std::optional<Choice> forward(std::int32_t stage, std::int32_t chunk) {
    const Stage& s = stages_[static_cast<std::size_t>(stage)];
    const std::int32_t m = s.forwards[chunk];
    // First chunks leave room for a second one: without it, stages could wait for each other.
    const std::int32_t room = 2 * count_ - s.held - (chunk == 0 ? 1 : 0);
    if (m == microbatches_ || room < 1) return std::nullopt;
    const std::int32_t at = virtual_stage(stage, chunk);
    const Time input = at == 0 ? 0 : done(forward_done_, at - 1, m);
    if (input == kNotDone) return std::nullopt;
    return Choice{std::max(s.free, input),
                  chunk == 1 ? Preference::kSecondForward : Preference::kFirstForward, chunk};
  }
  std::optional<Choice> backward(std::int32_t stage, std::int32_t chunk) {
    const Stage& s = stages_[static_cast<std::size_t>(stage)];
    const std::int32_t m = s.backwards[chunk];
    if (m == microbatches_) return std::nullopt;
    const std::int32_t at = virtual_stage(stage, chunk);
    const Time own = done(forward_done_, at, m);
    const Time gradient = at == 2 * count_ - 1 ? own : done(backward_done_, at + 1, m);
    if (own == kNotDone || gradient == kNotDone) return std::nullopt;
    return Choice{std::max({s.free, own, gradient}), Preference::kBackward, chunk};
  }
  std::optional<Choice> choose(std::int32_t stage) {
    const Stage& s = stages_[static_cast<std::size_t>(stage)];
    std::optional<Choice> best;
    const auto consider = [&](const std::optional<Choice>& c) {
      if (c && (!best || *c < *best)) best = c;
    };
    for (const std::int32_t chunk : {0, 1}) {
      consider(forward(stage, chunk));
      consider(backward(stage, chunk));
    }
    if (!s.owed.empty()) consider(Choice{s.free, Preference::kWeight, s.owed.front().chunk});
    return best;
  }

  // Returns: whether any stage had something left.
  bool run_next() {
    std::optional<Choice> best;
    std::int32_t at = 0;
    for (std::int32_t r = 0; r < count_; ++r) {
      const std::optional<Choice> c = choose(r);
      if (c && (!best || c->start < best->start)) {
        best = c;
        at = r;
      }
    }
    if (best) run(at, *best);
    return best.has_value();
  }

  void run(std::int32_t stage, const Choice& c) {
    Stage& s = stages_[static_cast<std::size_t>(stage)];
    s.free = c.start + 1;
    const std::int32_t at = virtual_stage(stage, c.chunk);
    switch (c.preference) {
      case Preference::kWeight:
        s.order.push_back({SlotKind::kBackwardWeight, s.owed.front().microbatch, c.chunk});
        s.owed.pop_front();
        --s.held;
        break;
      case Preference::kBackward: {
        const std::int32_t m = s.backwards[c.chunk]++;
        done(backward_done_, at, m) = s.free;
        s.order.push_back({SlotKind::kBackwardInput, m, c.chunk});
        s.owed.push_back({c.chunk, m});
        break;
      }
      default: {
        const std::int32_t m = s.forwards[c.chunk]++;
        done(forward_done_, at, m) = s.free;
        s.order.push_back({SlotKind::kForward, m, c.chunk});
        ++s.held;
      }
    }
  }

  std::int32_t count_;
  std::int32_t microbatches_;
  std::vector<Stage> stages_;
  std::vector<Time> forward_done_;  // [virtual stage][microbatch]
  std::vector<Time> backward_done_;
};

// One microbatch's passes: when each runs on the next stage after it has on the one before, and the
// pauses where the passes turn around.
struct BuildingBlock {
  std::array<std::int32_t, 4> steps{};   // F of chunk 0, F of chunk 1, B of chunk 1, B of chunk 0
  std::array<std::int32_t, 3> pauses{};  // between them
};
constexpr std::int32_t kPeriod = 6;  // slots a microbatch takes on a stage

// When F0, F1, B1 and B0 of microbatch 0 run on a stage.
std::array<std::int32_t, 4> passes(const BuildingBlock& block, std::int32_t stages,
                                   std::int32_t stage) {
  std::array<std::int32_t, 4> out{};
  std::int32_t enters = 0;
  for (std::size_t i = 0; i < 4; ++i) {
    const bool down = i % 2 == 0;  // from the first stage to the last
    out[i] = enters + block.steps[i] * (down ? stage : stages - 1 - stage);
    enters += block.steps[i] * (stages - 1) + (i < 3 ? block.pauses[i] : 0);
  }
  return out;
}

bool collides(const BuildingBlock& block, std::int32_t stages) {
  for (std::int32_t r = 0; r < stages; ++r) {
    std::array<bool, kPeriod> taken{};
    for (const std::int32_t time : passes(block, stages, r)) {
      if (std::exchange(taken[static_cast<std::size_t>(time % kPeriod)], true)) return true;
    }
  }
  return false;
}

// The shortest pauses with which microbatches fit between each other.
BuildingBlock with_pauses(std::array<std::int32_t, 4> steps, std::int32_t stages) {
  BuildingBlock block{steps, {}};
  for (std::int32_t sum = 3; sum <= 3 * kPeriod; ++sum) {
    for (std::int32_t a = 1; a <= sum - 2; ++a) {
      for (std::int32_t b = 1; b <= sum - a - 1; ++b) {
        block.pauses = {a, b, sum - a - b};
        if (!collides(block, stages)) return block;
      }
    }
  }
  return block;
}

SlotOrders repeat(const BuildingBlock& block, std::int32_t stages, std::int32_t microbatches) {
  SlotOrders orders;
  for (std::int32_t r = 0; r < stages; ++r) {
    const std::array<std::int32_t, 4> at = passes(block, stages, r);
    std::array<bool, kPeriod> taken{};
    for (const std::int32_t time : at) taken[static_cast<std::size_t>(time % kPeriod)] = true;
    // Weight gradients take the two slots that are left, each as soon as it can.
    const auto next_gap = [&](std::int32_t after) {
      std::int32_t time = after + 1;
      while (taken[static_cast<std::size_t>(time % kPeriod)]) ++time;
      taken[static_cast<std::size_t>(time % kPeriod)] = true;
      return time;
    };
    const std::int32_t weight1 = next_gap(at[2]);
    const std::int32_t weight0 = next_gap(at[3]);
    const std::pair<std::int32_t, Slot> pattern[] = {
        {at[0], {SlotKind::kForward, 0, 0}},          {at[1], {SlotKind::kForward, 0, 1}},
        {at[2], {SlotKind::kBackwardInput, 0, 1}},    {at[3], {SlotKind::kBackwardInput, 0, 0}},
        {weight1, {SlotKind::kBackwardWeight, 0, 1}}, {weight0, {SlotKind::kBackwardWeight, 0, 0}}};
    std::vector<std::pair<std::int32_t, Slot>> timed;
    for (std::int32_t m = 0; m < microbatches; ++m) {
      for (auto [time, slot] : pattern) {
        slot.microbatch = m;
        timed.emplace_back(time + kPeriod * m, slot);
      }
    }
    std::ranges::sort(timed, {}, [](const auto& t) { return t.first; });
    std::vector<Slot>& order = orders.emplace_back();
    for (const auto& [time, slot] : timed) order.push_back(slot);
  }
  return orders;
}

}  // namespace

SlotOrders build_zb_v(std::int32_t stages, std::int32_t microbatches) {
  return ZeroBubbleV(stages, microbatches).build();
}

SlotOrders build_v_half(std::int32_t stages, std::int32_t microbatches) {
  return repeat(with_pauses({1, 2, 1, 2}, stages), stages, microbatches);
}

SlotOrders build_v_min(std::int32_t stages, std::int32_t microbatches) {
  return repeat(with_pauses({1, 1, 1, 1}, stages), stages, microbatches);
}

}  // namespace tidemark
