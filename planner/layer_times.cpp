#include "planner/layer_times.h"

#include <algorithm>
#include <variant>

#include "sim/lane_engine.h"

namespace tidemark {
namespace {

class LayerRecorder : public Recorder {
 public:
  explicit LayerRecorder(const Program& program)
      : program_(program), times_(program.stages.size()), now_(program.stages.size()) {}

  void on_operator(std::int32_t stage, std::int32_t step, std::int32_t op, const SlotProgram& slot,
                   std::span<const std::int64_t> start,
                   std::span<const std::int64_t> end) override {
    const auto s = static_cast<std::size_t>(stage);
    const Slot& runs = std::get<Slot>(program_.schedule.stages[s][static_cast<std::size_t>(step)]);
    const bool forward = runs.kind == SlotKind::kForward;
    if (runs.microbatch != (forward ? program_.schedule.microbatches - 1 : 0)) return;
    if (op == 0) now_[s] = *std::ranges::min_element(start);
    const ProgramOp& o = slot.ops[static_cast<std::size_t>(op)];
    if (o.action >= 0 || o.operator_index < 0) return;
    const Operator& what = program_.stages[s].graph.at(static_cast<std::size_t>(o.operator_index));
    const std::int64_t done = std::max(now_[s], *std::ranges::max_element(end));
    LayerTime& time = times_[s][what.layer];
    (forward ? time.forward_ns : time.backward_ns) += done - now_[s];
    now_[s] = done;
  }
  void on_transfer(std::int32_t, std::int32_t, std::span<const std::int64_t>,
                   std::span<const std::int64_t>) override {}

  std::vector<std::map<std::int32_t, LayerTime>> take() { return std::move(times_); }

 private:
  const Program& program_;
  std::vector<std::map<std::int32_t, LayerTime>> times_;
  std::vector<std::int64_t> now_;  // [stage]: the latest end so far in the slot at hand
};

}  // namespace

std::vector<std::map<std::int32_t, LayerTime>> layer_times(const Program& program,
                                                           const LaneRows& rows) {
  LayerRecorder recorder(program);
  Recorder* const recorders[] = {&recorder};
  run_units(program, {&rows, 1}, recorders);
  return recorder.take();
}

}  // namespace tidemark
