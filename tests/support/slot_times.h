// When each slot of a schedule runs, if slots take fixed times and messages none: the world of the
// formulas in papers. Looks at slots only, not at transfers; slots depend on each other as the
// passes of a model do.
#pragma once

#include <cstdint>
#include <vector>

#include "sim/schedule.h"

namespace tidemark {

// Of one chunk.
struct SlotDurations {
  std::int64_t forward = 1;
  std::int64_t backward_input = 1;
  std::int64_t backward_weight = 1;
  // Fused, with the weight gradients that follow as a slot of their own: what it makes is sent
  // after them, as in DualPipe's sources.
  std::int64_t forward_backward = 3;
};

struct StageSpan {
  std::int64_t begin = 0;  // of its first slot
  std::int64_t end = 0;    // of its last
  std::int64_t busy = 0;
  std::int64_t idle() const { return end - begin - busy; }
};

// Requires: a legal schedule.
std::vector<StageSpan> slot_times(const Schedule& schedule, const SlotDurations& durations);

}  // namespace tidemark
