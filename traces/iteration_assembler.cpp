#include "traces/iteration_assembler.h"

#include <algorithm>
#include <utility>

#include "models/input_error.h"

namespace tidemark {

IterationAssembler::IterationAssembler(TraceWriter& writer, const RoutingShape& shape,
                                       std::int64_t members, std::int64_t first, std::string file,
                                       Mend mend)
    : writer_(writer),
      shape_(shape),
      members_(members),
      next_(first),
      file_(std::move(file)),
      mend_(std::move(mend)) {}

IterationAssembler::Record IterationAssembler::record(std::int64_t iteration, std::int64_t unit,
                                                      std::int64_t microbatch, std::int64_t layer,
                                                      std::int64_t member, std::int64_t line) {
  if (iteration < next_) {
    throw InputError(file_, "line " + std::to_string(line),
                     "iteration " + std::to_string(iteration) + " again, after later ones",
                     "iterations in order (cut the log where the job was restarted)");
  }
  if (open_.size() > kOpen) close_first(false);
  Open& open = open_[iteration];
  if (open.units.empty()) {
    open.units.resize(static_cast<std::size_t>(shape_.units));
    for (RoutingCounts& counts : open.units) {
      resize(counts, shape_);
      std::ranges::fill(counts.counts, 0);
    }
    open.missing = shape_.units * shape_.microbatches * shape_.moe_layers * members_;
    open.seen.resize(static_cast<std::size_t>(open.missing));
  }
  const std::int64_t row = (unit * shape_.microbatches + microbatch) * shape_.moe_layers + layer;
  const auto index = static_cast<std::size_t>(row * members_ + member);
  const Record record{open.units[static_cast<std::size_t>(unit)].row(microbatch, layer),
                      open.seen[index]};
  if (!open.seen[index]) {
    open.seen[index] = true;
    --open.missing;
  }
  return record;
}

bool IterationAssembler::close_first(bool may_be_incomplete) {
  const auto it = open_.find(next_);
  if (it == open_.end()) {
    throw InputError(file_, "iteration " + std::to_string(next_), "no records",
                     "iterations without gaps");
  }
  Open& open = it->second;
  std::size_t index = 0;
  for (std::int64_t unit = 0; open.missing > 0 && unit < shape_.units; ++unit) {
    for (std::int64_t mb = 0; mb < shape_.microbatches; ++mb) {
      for (std::int64_t layer = 0; layer < shape_.moe_layers; ++layer) {
        std::vector<std::int64_t> missing;
        for (std::int64_t member = 0; member < members_; ++member) {
          if (!open.seen[index++]) missing.push_back(member);
        }
        if (missing.empty()) continue;
        if (mend_(open.units[static_cast<std::size_t>(unit)].row(mb, layer), missing)) continue;
        if (may_be_incomplete) return false;
        throw InputError(file_, "iteration " + std::to_string(next_),
                         "no record of unit " + std::to_string(unit) + ", microbatch " +
                             std::to_string(mb) + ", MoE layer " + std::to_string(layer) +
                             " by rank " + std::to_string(missing.front()) + " of the unit" +
                             (missing.size() > 1 ? " and others" : ""),
                         "a record of each");
      }
    }
  }
  for (const RoutingCounts& counts : open.units) {
    try {
      writer_.write(counts);
    } catch (const InputError& error) {
      std::vector<Violation> placed = error.violations();
      for (Violation& v : placed) v.file = file_;
      throw InputError(std::move(placed));
    }
  }
  open_.erase(it);
  ++next_;
  return true;
}

bool IterationAssembler::finish() {
  while (!open_.empty()) {
    if (!close_first(open_.size() == 1)) return true;
  }
  return false;
}

}  // namespace tidemark
