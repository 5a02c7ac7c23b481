#include "planner/time_prediction.h"

#include <algorithm>
#include <array>
#include <variant>

#include "sim/lane_engine.h"
#include "sim/slot_operators.h"

namespace tidemark {
namespace {

enum class Resource : std::uint8_t { kKernels, kNetwork, kDataParallel, kCopiesOut, kCopiesIn };
constexpr int kNumResources = 5;

Resource resource_of(Stream stream) {
  switch (stream) {
    case Stream::kCompute:
    case Stream::kSharedExpert:
      return Resource::kKernels;
    case Stream::kTensorComm:
    case Stream::kContextComm:
    case Stream::kExpertComm:
      return Resource::kNetwork;
    case Stream::kDataComm:
      return Resource::kDataParallel;
    case Stream::kDeviceToHost:
      return Resource::kCopiesOut;
    case Stream::kHostToDevice:
      return Resource::kCopiesIn;
  }
  return Resource::kKernels;
}

// The next slot does not wait for the others.
bool is_work(Resource r) { return r == Resource::kKernels || r == Resource::kNetwork; }

// What the slots of a run take, on the latest lane.
class SlotTimes : public Recorder {
 public:
  explicit SlotTimes(const Schedule& schedule) : schedule_(schedule) {
    for (const std::vector<Step>& steps : schedule.stages) ends_.emplace_back(steps.size());
  }

  void on_operator(std::int32_t stage, std::int32_t step, std::int32_t op, const SlotProgram& slot,
                   std::span<const std::int64_t>, std::span<const std::int64_t> end) override {
    const Resource resource = resource_of(slot.ops[static_cast<std::size_t>(op)].stream);
    SlotTime& ends = at(stage, step);
    std::int64_t& last = is_work(resource) ? ends.work_ns : ends.copies_ns;
    last = std::max(last, *std::ranges::max_element(end));
  }
  void on_transfer(std::int32_t stage, std::int32_t step, std::span<const std::int64_t>,
                   std::span<const std::int64_t> end) override {
    at(stage, step).work_ns = *std::ranges::max_element(end);
  }

  // [step], once all have run.
  std::vector<SlotTime> of(std::size_t stage) const {
    std::vector<SlotTime> out = ends_[stage];
    std::int64_t begin = 0;
    for (std::size_t i = 0; i < out.size(); ++i) {
      const Transfer* const transfer = std::get_if<Transfer>(&schedule_.stages[stage][i]);
      const bool only_posts = transfer != nullptr && !transfer->blocking;
      const std::int64_t end = only_posts ? begin : std::max(begin, out[i].work_ns);
      out[i].work_ns = end - begin;
      if (out[i].copies_ns > 0) out[i].copies_ns -= begin;
      begin = end;
    }
    return out;
  }

 private:
  SlotTime& at(std::int32_t stage, std::int32_t step) {
    return ends_[static_cast<std::size_t>(stage)][static_cast<std::size_t>(step)];
  }

  const Schedule& schedule_;
  std::vector<std::vector<SlotTime>> ends_;  // [stage][step], from the start of the iteration
};

std::int64_t duration_ns(const Program& program, const ProgramOp& op, const LaneRows& rows,
                         std::int32_t microbatch) {
  if (!op.cost.routed()) return op.cost.at(0);
  const std::int64_t* const of_lane = rows.at(microbatch, op.moe_layer);
  const auto hottest = std::max_element(of_lane, of_lane + rows.lanes()) - of_lane;
  std::int64_t ns = op.cost.at(of_lane[hottest]);
  if (op.cost.grouped < 0) return ns;
  const GroupedCost& expert = program.grouped_costs[static_cast<std::size_t>(op.cost.grouped)];
  for (std::int64_t e = 0; e < rows.local_experts(); ++e) {
    ns += expert.at(rows.expert_at(microbatch, op.moe_layer, e)[hottest]);
  }
  return ns;
}

}  // namespace

TimePrediction::TimePrediction(const Program& plain, const LaneRows& rows) : rows_(rows) {
  SlotTimes times(plain.schedule);
  Recorder* const recorders[] = {&times};
  plain_ns_ = run_units(plain, {&rows, 1}, recorders).iteration_ns;
  for (std::size_t s = 0; s < plain.stages.size(); ++s) {
    std::vector<SlotTime>& beyond = beyond_price_.emplace_back(times.of(s));
    for (std::size_t i = 0; i < beyond.size(); ++i) {
      const Slot* const slot = std::get_if<Slot>(&plain.schedule.stages[s][i]);
      if (slot == nullptr) continue;
      const SlotTime priced = price(plain, static_cast<std::int32_t>(s), *slot, nullptr);
      beyond[i].work_ns -= priced.work_ns;
      beyond[i].copies_ns -= priced.copies_ns;
    }
  }
}

SlotTime TimePrediction::price(const Program& program, std::int32_t stage, const Slot& slot,
                               const StageDecisions* decisions) const {
  const SlotProgram& issued = program.slot_program(stage, slot);
  std::array<std::int64_t, kNumResources> free{};
  std::vector<std::int64_t> end(issued.ops.size(), 0);
  std::int64_t host = 0;
  SlotTime out;
  for (std::size_t i = 0; i < issued.ops.size(); ++i) {
    const ProgramOp& op = issued.ops[i];
    const std::int32_t microbatch = works_on(slot, op.beside).microbatch;
    const bool optional = op.action >= 0;
    if (optional && (decisions == nullptr || !decisions->takes(microbatch, op.action))) continue;
    const Resource resource = resource_of(op.stream);
    std::int64_t& done = free[static_cast<std::size_t>(resource)];
    host += program.host_issue_ns;
    done = std::max(done, host);
    for (std::int32_t d = op.dep_begin; d < op.dep_end; ++d) {
      const std::int32_t from = issued.deps[static_cast<std::size_t>(d)];
      done = std::max(done, end[static_cast<std::size_t>(from)]);
    }
    done += duration_ns(program, op, rows_, microbatch);
    end[i] = done;
    if (op.host_waits) host = std::max(host, done);
    std::int64_t& last = is_work(resource) ? out.work_ns : out.copies_ns;
    last = std::max(last, done);
  }
  return out;
}

std::int64_t TimePrediction::iteration_ns(const Program& program,
                                          const UnitDecisions* decisions) const {
  const auto slot_time = [&](std::size_t s, std::size_t step) {
    const Slot& slot = std::get<Slot>(program.schedule.stages[s][step]);
    SlotTime time = price(program, static_cast<std::int32_t>(s), slot,
                          decisions == nullptr ? nullptr : &(*decisions)[s]);
    time.work_ns += beyond_price_[s][step].work_ns;
    time.copies_ns += beyond_price_[s][step].copies_ns;
    return time;
  };
  const std::vector<std::int64_t> done =
      walk_pipeline(program.schedule, program.exchange_ns, slot_time);
  std::int64_t pipeline = 0;
  std::int64_t optimizer = 0;
  std::int64_t gather = 0;
  for (std::size_t s = 0; s < done.size(); ++s) {
    const IterationEnd& end = program.stages[s].end;
    pipeline = std::max(pipeline, done[s] + end.reduce_ns);
    optimizer = std::max(optimizer, end.optimizer_ns);
    gather = std::max(gather, end.gather_ns);
  }
  return pipeline + optimizer + gather;
}

}  // namespace tidemark
