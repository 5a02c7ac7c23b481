#include "tools/stream_overlap.h"

#include <algorithm>

namespace tidemark {
namespace {

using Spans = std::vector<std::pair<std::int64_t, std::int64_t>>;

Spans merged(Spans spans) {
  std::ranges::sort(spans);
  Spans out;
  for (const auto& span : spans) {
    if (!out.empty() && span.first <= out.back().second) {
      out.back().second = std::max(out.back().second, span.second);
    } else {
      out.push_back(span);
    }
  }
  return out;
}

std::int64_t length(const Spans& spans) {
  std::int64_t sum = 0;
  for (const auto& [start, end] : spans) sum += end - start;
  return sum;
}

// Of `spans`, while none of `busy` runs. Both without overlaps of their own, in order.
std::int64_t exposed(const Spans& spans, const Spans& busy) {
  std::int64_t sum = length(spans);
  std::size_t first = 0;  // that ends after the span at hand begins
  for (const auto& [start, end] : spans) {
    while (first < busy.size() && busy[first].second <= start) ++first;
    for (std::size_t b = first; b < busy.size() && busy[b].first < end; ++b) {
      sum -= std::min(end, busy[b].second) - std::max(start, busy[b].first);
    }
  }
  return sum;
}

}  // namespace

void StreamOverlap::on_operator(std::int32_t stage, std::int32_t, std::int32_t op,
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
  } else if (what.stream == Stream::kTensorComm) {
    at.gathering.emplace_back(start[0], end[0]);
  } else if (what.time_class == TimeClass::kHostCopy) {
    at.copying.emplace_back(start[0], end[0]);
  }
}

StreamTimes StreamOverlap::times() const {
  StreamTimes out;
  for (const Stage& stage : stages_) {
    const Spans busy = merged(stage.computing);
    const Spans gathering = merged(stage.gathering);
    const Spans exchanging = merged(stage.exchanging);
    const Spans copying = merged(stage.copying);
    out.computing += length(busy);
    out.tensor_communication += length(gathering);
    out.exposed_tensor_communication += exposed(gathering, busy);
    out.expert_communication += length(exchanging);
    out.exposed_expert_communication += exposed(exchanging, busy);
    out.copies += length(copying);
    out.exposed_copies += exposed(copying, busy);
  }
  const std::int64_t stages = std::ssize(stages_);
  for (std::int64_t* sum : {&out.computing, &out.tensor_communication,
                            &out.exposed_tensor_communication, &out.expert_communication,
                            &out.exposed_expert_communication, &out.copies, &out.exposed_copies}) {
    *sum /= stages;
  }
  return out;
}

}  // namespace tidemark
