#include "sim/issue_clock.h"

#include <algorithm>
#include <utility>

namespace tidemark {

ClockRecorder::ClockRecorder(const Program& program, std::vector<std::int64_t> lanes,
                             Recorder* next)
    : program_(program),
      lanes_(std::move(lanes)),
      next_(next),
      clocks_(program.stages.size()),
      host_(program.stages.size(), 0),
      launches_(program.stages.size()) {
  for (std::size_t stage = 0; stage < clocks_.size(); ++stage) {
    if (lanes_[stage] < 0) continue;
    clocks_[stage].steps.resize(program.schedule.stages[stage].size());
  }
}

void ClockRecorder::on_operator(std::int32_t stage, std::int32_t step, std::int32_t op,
                                const SlotProgram& slot, std::span<const std::int64_t> start,
                                std::span<const std::int64_t> end) {
  const auto s = static_cast<std::size_t>(stage);
  if (next_ != nullptr) next_->on_operator(stage, step, op, slot, start, end);
  if (lanes_[s] < 0) return;
  const std::int64_t done = end[static_cast<std::size_t>(lanes_[s])];
  const ProgramOp& source = slot.ops[static_cast<std::size_t>(op)];
  std::vector<StageClock::Times>& times = clocks_[s].steps[static_cast<std::size_t>(step)];
  if (times.empty()) times.reserve(slot.ops.size());
  if (source.action >= 0 && start[static_cast<std::size_t>(lanes_[s])] == done) {  // not taken
    times.push_back({host_[s], done});
    return;
  }
  Launches& launches = launches_[s];
  std::int64_t& oldest = launches.done_ns[launches.count++ % kLaunchQueue];
  host_[s] = std::max(host_[s], std::exchange(oldest, done));
  host_[s] += program_.host_issue_ns;
  if (source.operator_index >= 0) {
    times.push_back({host_[s], done});
  }
  if (source.host_waits) host_[s] = std::max(host_[s], done);
}

void ClockRecorder::on_transfer(std::int32_t stage, std::int32_t step,
                                std::span<const std::int64_t> start,
                                std::span<const std::int64_t> end) {
  const auto s = static_cast<std::size_t>(stage);
  if (next_ != nullptr) next_->on_transfer(stage, step, start, end);
  if (lanes_[s] < 0) return;
  const std::int64_t done = end[static_cast<std::size_t>(lanes_[s])];
  clocks_[s].steps[static_cast<std::size_t>(step)].push_back({host_[s], done});
  const Step& what = program_.schedule.stages[s][static_cast<std::size_t>(step)];
  const Transfer* transfer = std::get_if<Transfer>(&what);
  if (transfer != nullptr && transfer->blocking) host_[s] = done;
}

}  // namespace tidemark
