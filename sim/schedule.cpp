#include "sim/schedule.h"

#include <algorithm>

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
    const auto with_previous = [&](std::int32_t send, std::int32_t receive) {
      if (!first) steps.emplace_back(Exchange{r - 1, send, receive});
    };
    const auto with_next = [&](std::int32_t send, std::int32_t receive) {
      if (!last) steps.emplace_back(Exchange{r + 1, send, receive});
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

std::int32_t peak_in_flight(const Schedule& schedule, std::int32_t stage) {
  std::int32_t live = 0;
  std::int32_t peak = 0;
  for (const Step& step : schedule.stages[static_cast<std::size_t>(stage)]) {
    if (const Slot* slot = std::get_if<Slot>(&step)) {
      live += slot->kind == SlotKind::kForward ? 1 : -1;
      peak = std::max(peak, live);
    }
  }
  return peak;
}

}  // namespace tidemark
