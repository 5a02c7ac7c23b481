#include "sim/lane_engine.h"

#include <algorithm>
#include <stdexcept>

namespace tidemark {
namespace {

class StageRun {
 public:
  StageRun(const Program& program, const LaneRows& rows, std::int32_t stage, Recorder* recorder)
      : program_(program),
        stage_(program.stages[static_cast<std::size_t>(stage)]),
        steps_(program.schedule.stages[static_cast<std::size_t>(stage)]),
        rows_(rows),
        recorder_(recorder),
        index_(stage),
        lanes_(static_cast<std::size_t>(program.lanes)),
        free_(kNumStreams * lanes_, 0),
        host_(lanes_, 0),
        start_(lanes_),
        duration_(lanes_) {
    std::size_t ops = 0;
    for (const SlotProgram* slot :
         {&stage_.forward, &stage_.backward, &stage_.first_forward, &stage_.last_backward}) {
      ops = std::max(ops, slot->ops.size());
    }
    end_.resize(ops * lanes_);
  }

  bool finished() const { return step_ == steps_.size(); }

  // Runs slots until the next exchange or the end.
  void run_slots() {
    for (; step_ < steps_.size(); ++step_) {
      const Slot* slot = std::get_if<Slot>(&steps_[step_]);
      if (slot == nullptr) break;
      const bool forward = slot->kind == SlotKind::kForward;
      const bool first = slot->microbatch == 0;
      const bool last = slot->microbatch == program_.schedule.microbatches - 1;
      const SlotProgram& normal = forward ? stage_.forward : stage_.backward;
      const SlotProgram& at_border = forward ? stage_.first_forward : stage_.last_backward;
      run_slot((forward ? first : last) ? at_border : normal, slot->microbatch);
    }
    if (step_ < steps_.size() || finished()) settle();
  }

  const Exchange* pending() const {
    return finished() ? nullptr : std::get_if<Exchange>(&steps_[step_]);
  }

  // Both sides of an exchange: starts when both are ready, and both hosts wait for its end.
  static void exchange(StageRun& a, StageRun& b, std::int64_t duration) {
    for (std::size_t l = 0; l < a.lanes_; ++l) {
      const std::int64_t start = std::max(a.host_[l], b.host_[l]);
      a.start_[l] = b.start_[l] = start;
      a.host_[l] = b.host_[l] = start + duration;
    }
    for (StageRun* side : {&a, &b}) {
      for (int s = 0; s < kNumStreams; ++s) {
        std::copy(side->host_.begin(), side->host_.end(), side->stream(s));
      }
      if (side->recorder_ != nullptr) {
        side->recorder_->on_exchange(side->index_, static_cast<std::int32_t>(side->step_),
                                     side->start_, side->host_);
      }
      ++side->step_;
    }
  }

  StageTimes take_times() {
    times_.finish_ns = host_;
    return std::move(times_);
  }

 private:
  std::int64_t* stream(int s) { return free_.data() + static_cast<std::size_t>(s) * lanes_; }

  // The host waits for everything it has issued (torch.cuda.synchronize around each exchange).
  void settle() {
    for (int s = 0; s < kNumStreams; ++s) {
      const std::int64_t* free = stream(s);
      for (std::size_t l = 0; l < lanes_; ++l) host_[l] = std::max(host_[l], free[l]);
    }
  }

  void run_slot(const SlotProgram& slot, std::int32_t microbatch) {
    const std::int64_t begin = std::max(host_[0], stream(0)[0]);
    std::int64_t finish = begin;
    for (std::size_t i = 0; i < slot.ops.size(); ++i) {
      const ProgramOp& op = slot.ops[i];
      std::int64_t* const free = stream(static_cast<int>(op.stream));
      std::int64_t* const end = end_.data() + i * lanes_;
      for (std::size_t l = 0; l < lanes_; ++l) {
        host_[l] += program_.host_issue_ns;
        start_[l] = std::max(free[l], host_[l]);
      }
      for (std::int32_t d = op.dep_begin; d < op.dep_end; ++d) {
        const auto from = static_cast<std::size_t>(slot.deps[static_cast<std::size_t>(d)]);
        const std::int64_t* const done = end_.data() + from * lanes_;
        for (std::size_t l = 0; l < lanes_; ++l) start_[l] = std::max(start_[l], done[l]);
      }
      durations(op.cost, op.moe_layer, microbatch);
      if (op.group != Group::kNone) join(program_.groups[static_cast<int>(op.group)]);
      for (std::size_t l = 0; l < lanes_; ++l) free[l] = end[l] = start_[l] + duration_[l];
      if (op.host_waits) {
        for (std::size_t l = 0; l < lanes_; ++l) host_[l] = std::max(host_[l], end[l]);
      }
      account(op, duration_[0]);
      finish = std::max(finish, op.stream == Stream::kDataComm ? finish : end[0]);
      if (recorder_ != nullptr) {
        recorder_->on_operator(index_, static_cast<std::int32_t>(step_),
                               static_cast<std::int32_t>(i), slot, start_, {end, lanes_});
      }
    }
    times_.slots_ns += finish - begin;
  }

  void durations(const OpCost& cost, std::int32_t moe_layer, std::int32_t microbatch) {
    if (cost.per_row_q20 == 0) {
      const std::int64_t same = cost.at(0);
      std::fill(duration_.begin(), duration_.end(), same);
      return;
    }
    const std::int64_t* const rows = rows_.at(microbatch, moe_layer);
    for (std::size_t l = 0; l < lanes_; ++l) duration_[l] = cost.at(rows[l]);
  }

  // Members start together, when the last one may, and take as long as the largest.
  void join(const LaneGroup& group) {
    if (group.size == 1) return;
    const auto size = static_cast<std::size_t>(group.size);
    const auto stride = static_cast<std::size_t>(group.stride);
    for (std::size_t block = 0; block < lanes_; block += size * stride) {
      for (std::size_t offset = 0; offset < stride; ++offset) {
        std::int64_t start = 0;
        std::int64_t duration = 0;
        for (std::size_t m = 0; m < size; ++m) {
          start = std::max(start, start_[block + offset + m * stride]);
          duration = std::max(duration, duration_[block + offset + m * stride]);
        }
        for (std::size_t m = 0; m < size; ++m) {
          start_[block + offset + m * stride] = start;
          duration_[block + offset + m * stride] = duration;
        }
      }
    }
  }

  void account(const ProgramOp& op, std::int64_t duration) {
    times_.busy_ns[static_cast<std::size_t>(op.time_class)] += duration;
    if (op.stream == Stream::kCompute || op.stream == Stream::kSharedExpert) {
      times_.compute_by_kind_ns[static_cast<std::size_t>(op.cost.kind)] += duration;
    }
  }

  const Program& program_;
  const StageProgram& stage_;
  const std::vector<Step>& steps_;
  const LaneRows& rows_;
  Recorder* recorder_;
  std::int32_t index_;
  std::size_t lanes_;
  std::size_t step_ = 0;
  std::vector<std::int64_t> free_;      // [stream][lane]
  std::vector<std::int64_t> host_;      // [lane]
  std::vector<std::int64_t> end_;       // [op of the slot][lane]
  std::vector<std::int64_t> start_;     // [lane]
  std::vector<std::int64_t> duration_;  // [lane]
  StageTimes times_;
};

}  // namespace

UnitTimes run_unit(const Program& program, const LaneRows& rows, Recorder* recorder) {
  const auto stages = static_cast<std::int32_t>(program.stages.size());
  std::vector<StageRun> runs;
  runs.reserve(static_cast<std::size_t>(stages));
  for (std::int32_t r = 0; r < stages; ++r) runs.emplace_back(program, rows, r, recorder);
  for (StageRun& run : runs) run.run_slots();

  bool progress = true;
  while (progress) {
    progress = false;
    for (std::int32_t r = 0; r + 1 < stages; ++r) {
      StageRun& a = runs[static_cast<std::size_t>(r)];
      StageRun& b = runs[static_cast<std::size_t>(r) + 1];
      const Exchange* from = a.pending();
      const Exchange* to = b.pending();
      if (from == nullptr || to == nullptr || from->peer != r + 1 || to->peer != r) continue;
      if (from->send_microbatch != to->receive_microbatch ||
          from->receive_microbatch != to->send_microbatch) {
        throw std::logic_error("neighbouring stages disagree about an exchange");
      }
      StageRun::exchange(a, b, program.exchange_ns);
      a.run_slots();
      b.run_slots();
      progress = true;
    }
  }

  UnitTimes times;
  std::int64_t optimizer = 0;
  std::int64_t gather = 0;
  for (std::int32_t r = 0; r < stages; ++r) {
    StageRun& run = runs[static_cast<std::size_t>(r)];
    if (!run.finished()) throw std::logic_error("the schedule deadlocks");
    const IterationEnd& end = program.stages[static_cast<std::size_t>(r)].end;
    times.stages.push_back(run.take_times());
    for (std::int64_t finish : times.stages.back().finish_ns) {
      times.pipeline_ns = std::max(times.pipeline_ns, finish + end.reduce_ns);
    }
    optimizer = std::max(optimizer, end.optimizer_ns);
    gather = std::max(gather, end.gather_ns);
  }
  times.iteration_ns = times.pipeline_ns + optimizer + gather;
  return times;
}

}  // namespace tidemark
