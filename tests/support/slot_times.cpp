#include "tests/support/slot_times.h"

#include <algorithm>
#include <map>
#include <stdexcept>
#include <tuple>
#include <utility>
#include <variant>

namespace tidemark {
namespace {

std::int64_t duration(const Slot& slot, const Slot* before, const SlotDurations& d) {
  if (before != nullptr && before->kind == SlotKind::kForwardBackward &&
      before->beside == ChunkTensor{slot.chunk, slot.microbatch} &&
      slot.kind == SlotKind::kBackwardWeight) {
    return 0;
  }
  switch (slot.kind) {
    case SlotKind::kForward:
      return d.forward;
    case SlotKind::kBackward:
      return d.backward_input + d.backward_weight;
    case SlotKind::kBackwardInput:
      return d.backward_input;
    case SlotKind::kBackwardWeight:
      return d.backward_weight;
    default:
      return d.forward_backward;
  }
}

}  // namespace

std::vector<StageSpan> slot_times(const Schedule& schedule, const SlotDurations& durations) {
  // By backward?, virtual stage and microbatch.
  std::map<std::tuple<bool, std::int64_t, std::int32_t>, std::int64_t> done;
  std::vector<StageSpan> spans(schedule.stages.size());
  std::vector<std::size_t> at(schedule.stages.size(), 0);
  std::vector<const Slot*> before(schedule.stages.size(), nullptr);
  const auto run = [&](std::size_t r, const Slot& slot) {
    std::int64_t start = spans[r].end;
    const auto needs = [&](bool backward, std::int64_t stage, std::int32_t microbatch) {
      const auto it = done.find({backward, stage, microbatch});
      if (it == done.end()) return false;
      start = std::max(start, it->second);
      return true;
    };
    const auto virtual_stage = [&](ChunkTensor t) {
      return schedule.virtual_stage(static_cast<std::int32_t>(r), t.chunk);
    };
    const ChunkTensor f = slot.forward();
    const ChunkTensor b = slot.backward();
    if (f.valid() && virtual_stage(f) > 0 && !needs(false, virtual_stage(f) - 1, f.microbatch)) {
      return false;
    }
    if (b.valid()) {
      const bool last = virtual_stage(b) == schedule.virtual_stages() - 1;
      if (!needs(last ? false : true, virtual_stage(b) + (last ? 0 : 1), b.microbatch))
        return false;
    }
    if (before[r] == nullptr) spans[r].begin = start;
    const std::int64_t ns = duration(slot, std::exchange(before[r], &slot), durations);
    spans[r].end = start + ns;
    spans[r].busy += ns;
    if (f.valid()) done[{false, virtual_stage(f), f.microbatch}] = spans[r].end;
    if (b.valid()) done[{true, virtual_stage(b), b.microbatch}] = spans[r].end;
    return true;
  };
  for (bool progress = true; progress;) {
    progress = false;
    for (std::size_t r = 0; r < at.size(); ++r) {
      for (; at[r] < schedule.stages[r].size(); ++at[r]) {
        const Slot* slot = std::get_if<Slot>(&schedule.stages[r][at[r]]);
        if (slot != nullptr && !run(r, *slot)) break;
        progress = true;
      }
    }
  }
  for (std::size_t r = 0; r < at.size(); ++r) {
    if (at[r] < schedule.stages[r].size()) throw std::logic_error("slots wait for each other");
  }
  return spans;
}

}  // namespace tidemark
