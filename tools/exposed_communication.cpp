#include "tools/exposed_communication.h"

#include <algorithm>

namespace tidemark {

void ExposedCommunication::on_operator(std::int32_t stage, std::int32_t, std::int32_t op,
                                       const SlotProgram& slot, std::span<const std::int64_t> start,
                                       std::span<const std::int64_t> end) {
  if (start[0] == end[0]) return;
  const ProgramOp& what = slot.ops[static_cast<std::size_t>(op)];
  Stage& at = stages_[static_cast<std::size_t>(stage)];
  // Permutations on the experts' stream are computation too.
  if (what.stream == Stream::kExpertComm && what.group != Group::kNone) {
    at.exchanging.emplace_back(start[0], end[0]);
  } else if (what.stream == Stream::kCompute || what.stream == Stream::kSharedExpert) {
    at.computing.emplace_back(start[0], end[0]);
  }
}

std::int64_t ExposedCommunication::all_ns() const {
  std::int64_t sum = 0;
  for (const Stage& stage : stages_) {
    for (const auto& [start, end] : stage.exchanging) sum += end - start;
  }
  return sum / std::ssize(stages_);
}

std::int64_t ExposedCommunication::exposed_ns() const {
  std::int64_t hidden = 0;
  for (const Stage& stage : stages_) {
    Spans computing = stage.computing;
    std::ranges::sort(computing);
    // Of the two compute streams together.
    Spans busy;
    for (const auto& span : computing) {
      if (!busy.empty() && span.first <= busy.back().second) {
        busy.back().second = std::max(busy.back().second, span.second);
      } else {
        busy.push_back(span);
      }
    }
    Spans exchanging = stage.exchanging;
    std::ranges::sort(exchanging);
    std::size_t first = 0;  // that ends after the exchange at hand begins
    for (const auto& [start, end] : exchanging) {
      while (first < busy.size() && busy[first].second <= start) ++first;
      for (std::size_t b = first; b < busy.size() && busy[b].first < end; ++b) {
        hidden += std::min(end, busy[b].second) - std::max(start, busy[b].first);
      }
    }
  }
  return all_ns() - hidden / std::ssize(stages_);
}

}  // namespace tidemark
