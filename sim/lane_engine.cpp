#include "sim/lane_engine.h"

#include <algorithm>
#include <memory>
#include <stdexcept>

#include "models/large_vector.h"
#include "sim/lane_loops.h"
#include "sim/parallel.h"
#include "sim/slot_operators.h"

namespace tidemark {
namespace {

// Messages of one kind to one chunk move in the order in which both sides post them.
class Channel {
 public:
  // At most `outstanding` messages are posted by one side and not yet waited for.
  explicit Channel(std::size_t outstanding) : messages_(outstanding) {}

  // `ready`: [lane]. Returns: the message's number.
  std::size_t send(std::int32_t microbatch, const std::vector<std::int64_t>& ready) {
    return post(sent_, microbatch, ready, &Message::sender);
  }
  std::size_t receive(std::int32_t microbatch, const std::vector<std::int64_t>& ready) {
    return post(received_, microbatch, ready, &Message::receiver);
  }
  bool posted(std::size_t n) const { return n < sent_ && n < received_; }
  // When the message has arrived. Requires: posted(n).
  std::int64_t end(std::size_t n, std::size_t lane, std::int64_t duration) const {
    const Message& m = messages_[n % messages_.size()];
    return std::max(m.sender.ready[lane], m.receiver.ready[lane]) + duration;
  }

 private:
  struct Side {
    std::int32_t microbatch = 0;
    std::vector<std::int64_t> ready;
  };
  struct Message {
    Side sender;
    Side receiver;
  };

  std::size_t post(std::size_t& count, std::int32_t microbatch,
                   const std::vector<std::int64_t>& ready, Side Message::*side) {
    const std::size_t number = count++;
    Message& message = messages_[number % messages_.size()];
    (message.*side).microbatch = microbatch;
    (message.*side).ready.assign(ready.begin(), ready.end());
    if (posted(number) && message.sender.microbatch != message.receiver.microbatch) {
      throw std::logic_error("neighbouring stages disagree about a transfer");
    }
    return number;
  }

  std::vector<Message> messages_;
  std::size_t sent_ = 0;
  std::size_t received_ = 0;
};

// By the chunk that receives: [stage][chunk].
struct Channels {
  std::vector<Channel> activations;
  std::vector<Channel> gradients;
};

// What a slot or a transfer computes in, shared by the stages of a unit: one runs at a time.
struct Scratch {
  Scratch(const Program& program, std::size_t lanes) : start(lanes), duration(lanes) {
    std::int32_t awaited = 0;
    for (const StageProgram& stage : program.stages) {
      for_each_slot_program(
          stage, [&](const SlotProgram& slot) { awaited = std::max(awaited, slot.awaited); });
    }
    end.resize(static_cast<std::size_t>(awaited) * lanes);
  }
  LargeVector<std::int64_t> end;       // [awaited operator of the slot][lane]
  std::vector<std::int64_t> start;     // [lane]
  std::vector<std::int64_t> duration;  // [lane]
};

class StageRun {
 public:
  StageRun(const Program& program, const LaneRows& rows, std::int32_t stage, Channels& channels,
           Scratch& scratch, Recorder* recorder, const StageDecisions* decisions)
      : program_(program),
        decisions_(decisions),
        steps_(program.schedule.stages[static_cast<std::size_t>(stage)]),
        rows_(rows),
        channels_(channels),
        recorder_(recorder != nullptr && recorder->watches(stage) ? recorder : nullptr),
        index_(stage),
        lanes_(static_cast<std::size_t>(rows.lanes())),
        free_(kNumStreams * lanes_, 0),
        host_(lanes_, 0),
        end_(scratch.end),
        start_(scratch.start),
        duration_(scratch.duration) {
    times_.group_wait_ns.assign(lanes_, 0);
  }

  bool finished() const { return finished_; }

  // Goes on until the end, until a neighbour has to post something first, or until the reductions
  // that the host waits for have met those of the other units. Returns: whether it got anywhere.
  bool advance() {
    bool moved = false;
    while (step_ < steps_.size() || !awaited_.empty()) {
      if (!awaited_.empty()) {
        if (!arrived()) return moved;
        go_on();
      } else if (const Slot* slot = std::get_if<Slot>(&steps_[step_])) {
        run_slot(program_.slot_program(index_, *slot), *slot);
        ++step_;
      } else if (const Transfer* transfer = std::get_if<Transfer>(&steps_[step_])) {
        if (transfer->blocking && !reductions_.empty()) return moved;
        post(*transfer);
      } else {
        await(std::get<Wait>(steps_[step_]));
      }
      moved = true;
    }
    if (!reductions_.empty()) return moved;
    settle();
    finished_ = true;
    return true;
  }

  // Gradient reductions of slots that have run, not yet joined with other units'.
  struct Reduction {
    const SlotProgram* slot = nullptr;
    std::int32_t step = 0;
    std::int32_t op = 0;
    std::vector<std::int64_t> ready;  // [lane]
  };
  const std::vector<Reduction>& reductions() const { return reductions_; }
  std::int64_t* data_stream() { return stream(static_cast<int>(Stream::kDataComm)); }
  void reductions_joined() { reductions_.clear(); }
  Recorder* recorder() const { return recorder_; }

  StageTimes take_times() {
    times_.finish_ns = host_;
    return std::move(times_);
  }

 private:
  struct Awaited {
    const Channel* channel = nullptr;
    std::size_t number = 0;
  };
  struct Received {
    Wait what;
    Awaited message;
  };

  std::int64_t* stream(int s) { return free_.data() + static_cast<std::size_t>(s) * lanes_; }

  // The host has issued operators; its clock follows.
  void bring_up_host() {
    if (issued_ns_ == 0) return;
    lane_loops::move_on(lanes_, issued_ns_, host_.data());
    issued_ns_ = 0;
  }

  // The host waits for everything it has issued (torch.cuda.synchronize around each transfer).
  void settle() {
    bring_up_host();
    for (int s = 0; s < kNumStreams; ++s) lane_loops::wait_for(lanes_, stream(s), host_.data());
  }

  Channel& channel(bool gradient, ChunkPlace receiver) {
    const auto i =
        static_cast<std::size_t>(receiver.stage * program_.schedule.chunks + receiver.chunk);
    return (gradient ? channels_.gradients : channels_.activations)[i];
  }

  void post(const Transfer& t) {
    if (t.blocking) {
      settle();
      start_ = host_;
    } else {
      bring_up_host();
      lane_loops::earliest_start(lanes_, stream(static_cast<int>(Stream::kCompute)), host_.data(),
                                 0, start_.data());
    }
    const Schedule& schedule = program_.schedule;
    if (const ChunkTensor a = t.send_activation; a.valid()) {
      Channel& to = channel(false, schedule.next(index_, a.chunk));
      sent(t, to, to.send(a.microbatch, start_), sending_activation_);
    }
    if (const ChunkTensor g = t.send_gradient; g.valid()) {
      Channel& to = channel(true, schedule.previous(index_, g.chunk));
      sent(t, to, to.send(g.microbatch, start_), sending_gradient_);
    }
    for (const bool gradient : {false, true}) {
      const ChunkTensor& tensor = gradient ? t.receive_gradient : t.receive_activation;
      if (!tensor.valid()) continue;
      Channel& from = channel(gradient, {index_, tensor.chunk});
      const Awaited message{&from, from.receive(tensor.microbatch, start_)};
      if (t.blocking) {
        awaited_.push_back(message);
      } else {
        received_.push_back({{gradient, tensor}, message});
      }
    }
    host_awaits_ = t.blocking;
    const bool nothing = awaited_.empty();
    if (recorder_ != nullptr && (nothing || !t.blocking)) {
      recorder_->on_transfer(index_, static_cast<std::int32_t>(step_), start_, start_);
    }
    if (nothing) ++step_;
  }

  // A stage lets one unfinished message go on in each direction; before another it waits.
  void sent(const Transfer& t, const Channel& to, std::size_t number, Awaited& unfinished) {
    if (t.blocking) {
      awaited_.push_back({&to, number});
      return;
    }
    if (program_.schedule.buffers_sends) return;
    if (unfinished.channel != nullptr) awaited_.push_back(unfinished);
    unfinished = {&to, number};
  }

  void await(const Wait& wait) {
    const auto it = std::find_if(received_.begin(), received_.end(),
                                 [&](const Received& r) { return r.what == wait; });
    if (it == received_.end()) throw std::logic_error("a stage waits for what it never received");
    awaited_.push_back(it->message);
    received_.erase(it);
    host_awaits_ = false;
  }

  bool arrived() const {
    return std::all_of(awaited_.begin(), awaited_.end(),
                       [](const Awaited& a) { return a.channel->posted(a.number); });
  }

  void go_on() {
    std::vector<std::int64_t>& end = duration_;
    std::fill(end.begin(), end.end(), 0);
    for (const Awaited& a : awaited_) {
      for (std::size_t l = 0; l < lanes_; ++l) {
        end[l] = std::max(end[l], a.channel->end(a.number, l, program_.exchange_ns));
      }
    }
    awaited_.clear();
    if (host_awaits_) {
      host_ = end;
      issued_ns_ = 0;
      for (int s = 0; s < kNumStreams; ++s) std::copy(end.begin(), end.end(), stream(s));
    } else {
      lane_loops::wait_for(lanes_, end.data(), stream(static_cast<int>(Stream::kCompute)));
    }
    const bool posts = std::holds_alternative<Transfer>(steps_[step_]);
    if (recorder_ != nullptr && (host_awaits_ || !posts)) {
      for (std::size_t l = 0; l < lanes_; ++l) start_[l] = end[l] - program_.exchange_ns;
      recorder_->on_transfer(index_, static_cast<std::int32_t>(step_), start_, end);
    }
    ++step_;
  }

  void run_slot(const SlotProgram& slot, const Slot& what) {
    const std::int64_t begin = std::max(host_[0] + issued_ns_, stream(0)[0]);
    std::int64_t finish = begin;
    for (std::size_t i = 0; i < slot.ops.size(); ++i) {
      const ProgramOp& op = slot.ops[i];
      std::int64_t* const free = stream(static_cast<int>(op.stream));
      if (op.run > 1 && recorder_ == nullptr) {
        run_together(slot, i, free);
        finish = std::max(finish, op.stream == Stream::kDataComm ? finish : free[0]);
        i += static_cast<std::size_t>(op.run) - 1;
        continue;
      }
      const std::int32_t microbatch = works_on(what, op.beside).microbatch;
      if (op.action >= 0 && (decisions_ == nullptr || !decisions_->takes(microbatch, op.action))) {
        skip(slot, i, free);
        continue;
      }
      issued_ns_ += program_.host_issue_ns;
      lane_loops::earliest_start(lanes_, free, host_.data(), issued_ns_, start_.data());
      for (std::int32_t d = op.dep_begin; d < op.dep_end; ++d) {
        const auto from = static_cast<std::size_t>(slot.deps[static_cast<std::size_t>(d)]);
        lane_loops::wait_for(lanes_, end_of(slot.ops[from]), start_.data());
      }
      if (op.reduces != DataGroup::kNone) {
        reductions_.push_back(
            {&slot, static_cast<std::int32_t>(step_), static_cast<std::int32_t>(i), start_});
        account(op, op.cost.fixed_ns);
        continue;
      }
      if (op.cost.routed()) {
        routed_durations(op, microbatch);
        if (op.group != Group::kNone) join(program_.groups[static_cast<int>(op.group)], true);
        lane_loops::finish_each(lanes_, start_.data(), duration_.data(), free);
        account(op, duration_[0]);
      } else {
        const std::int64_t duration = op.cost.at(0);
        if (op.group != Group::kNone) join(program_.groups[static_cast<int>(op.group)], false);
        lane_loops::finish(lanes_, start_.data(), duration, free);
        account(op, duration);
      }
      if (op.awaited_as >= 0) std::copy(free, free + lanes_, end_of(op));
      if (op.host_waits) {
        bring_up_host();
        lane_loops::wait_for(lanes_, free, host_.data());
      }
      finish = std::max(finish, op.stream == Stream::kDataComm ? finish : free[0]);
      if (recorder_ != nullptr) {
        recorder_->on_operator(index_, static_cast<std::int32_t>(step_),
                               static_cast<std::int32_t>(i), slot, start_, {free, lanes_});
      }
    }
    times_.slots_ns += finish - begin;
  }

  // Of an action that is not taken.
  void skip(const SlotProgram& slot, std::size_t i, const std::int64_t* free) {
    const ProgramOp& op = slot.ops[i];
    if (op.awaited_as >= 0) std::fill_n(end_of(op), lanes_, 0);
    if (recorder_ == nullptr) return;
    recorder_->on_operator(index_, static_cast<std::int32_t>(step_), static_cast<std::int32_t>(i),
                           slot, {free, lanes_}, {free, lanes_});
  }

  void run_together(const SlotProgram& slot, std::size_t begin, std::int64_t* free) {
    const ProgramOp& first = slot.ops[begin];
    for (std::int32_t d = first.dep_begin; d < first.dep_end; ++d) {
      const auto from = static_cast<std::size_t>(slot.deps[static_cast<std::size_t>(d)]);
      lane_loops::wait_for(lanes_, end_of(slot.ops[from]), free);
    }
    lane_loops::finish_run(lanes_, free, first.run_ns, host_.data(),
                           issued_ns_ + first.run_from_host_ns, free);
    issued_ns_ += first.run * program_.host_issue_ns;
    for (std::int32_t n = 0; n < first.run; ++n) {
      const ProgramOp& op = slot.ops[begin + static_cast<std::size_t>(n)];
      account(op, op.cost.at(0));
    }
    const ProgramOp& last = slot.ops[begin + static_cast<std::size_t>(first.run) - 1];
    if (last.awaited_as >= 0) std::copy(free, free + lanes_, end_of(last));
    if (last.host_waits) {
      bring_up_host();
      lane_loops::wait_for(lanes_, free, host_.data());
    }
  }

  std::int64_t* end_of(const ProgramOp& op) {
    return end_.data() + static_cast<std::size_t>(op.awaited_as) * lanes_;
  }

  void routed_durations(const ProgramOp& op, std::int32_t microbatch) {
    const OpCost& cost = op.cost;
    lane_loops::linear_cost(lanes_, rows_.at(microbatch, op.moe_layer), cost.fixed_ns,
                            cost.per_row_q20, cost.floor_ns, duration_.data());
    if (cost.grouped < 0) return;
    const GroupedCost& expert = program_.grouped_costs[static_cast<std::size_t>(cost.grouped)];
    for (std::int64_t e = 0; e < rows_.local_experts(); ++e) {
      expert.add({rows_.expert_at(microbatch, op.moe_layer, e), lanes_}, duration_.data());
    }
  }

  // Members start together, when the last one may, and take as long as the largest.
  void join(const LaneGroup& group, bool durations_differ) {
    if (group.size == 1 || lanes_ == 1) return;
    const auto size = static_cast<std::size_t>(group.size);
    const auto stride = static_cast<std::size_t>(group.stride);
    lane_loops::join(lanes_, size, stride, start_.data(), times_.group_wait_ns.data());
    if (durations_differ) lane_loops::join(lanes_, size, stride, duration_.data(), nullptr);
  }

  void account(const ProgramOp& op, std::int64_t duration) {
    times_.busy_ns[static_cast<std::size_t>(op.time_class)] += duration;
    if (op.stream == Stream::kCompute || op.stream == Stream::kSharedExpert) {
      times_.compute_by_kind_ns[static_cast<std::size_t>(op.cost.kind)] += duration;
    }
  }

  const Program& program_;
  const StageDecisions* decisions_;
  const std::vector<Step>& steps_;
  const LaneRows& rows_;
  Channels& channels_;
  Recorder* recorder_;
  std::int32_t index_;
  std::size_t lanes_;
  std::size_t step_ = 0;
  bool finished_ = false;
  std::vector<Reduction> reductions_;
  std::vector<Awaited> awaited_;  // by the step at hand
  bool host_awaits_ = false;
  std::vector<Received> received_;  // posted, and waited for by a later step
  Awaited sending_activation_;
  Awaited sending_gradient_;
  std::vector<std::int64_t> free_;  // [stream][lane]
  std::vector<std::int64_t> host_;  // [lane]: when the host last waited
  std::int64_t issued_ns_ = 0;      // it has issued operators for since then
  LargeVector<std::int64_t>& end_;  // as in Scratch
  std::vector<std::int64_t>& start_;
  std::vector<std::int64_t>& duration_;
  StageTimes times_;
};

// Of one channel: a stage runs no further ahead than it has microbatches in flight.
std::size_t outstanding_messages(const Schedule& schedule) {
  std::int32_t most = schedule.microbatches_in_a_row;
  for (std::int32_t r = 0; schedule.buffers_sends && r < std::ssize(schedule.stages); ++r) {
    most = std::max(most, peak_in_flight(schedule, r));
  }
  return static_cast<std::size_t>(most) + 4;
}

class UnitRun {
 public:
  UnitRun(const Program& program, const LaneRows& rows, Recorder* recorder,
          const UnitDecisions* decisions)
      : scratch_(program, static_cast<std::size_t>(rows.lanes())) {
    channels_.activations.assign(
        program.stages.size() * static_cast<std::size_t>(program.schedule.chunks),
        Channel(outstanding_messages(program.schedule)));
    channels_.gradients = channels_.activations;
    stages_.reserve(program.stages.size());
    for (std::int32_t r = 0; r < std::ssize(program.stages); ++r) {
      stages_.emplace_back(
          program, rows, r, channels_, scratch_, recorder,
          decisions == nullptr ? nullptr : &(*decisions)[static_cast<std::size_t>(r)]);
    }
  }
  UnitRun(const UnitRun&) = delete;
  UnitRun& operator=(const UnitRun&) = delete;

  void advance() {
    for (bool progress = true; progress;) {
      progress = false;
      for (StageRun& stage : stages_) progress |= !stage.finished() && stage.advance();
    }
  }
  StageRun& stage(std::size_t r) { return stages_[r]; }
  const StageRun& stage(std::size_t r) const { return stages_[r]; }

 private:
  Channels channels_;  // the stages refer to these
  Scratch scratch_;
  std::vector<StageRun> stages_;
};

// All units have come to the reductions of stage `r` that its host waits for. Returns: whether
// there were any.
bool join_reductions(const Program& program, std::size_t lanes, std::size_t r,
                     std::span<UnitRun* const> units) {
  const std::size_t count = units[0]->stage(r).reductions().size();
  const bool all = count > 0 && std::ranges::all_of(units, [&](const UnitRun* unit) {
                     return unit->stage(r).reductions().size() == count;
                   });
  if (!all) return false;
  const LaneGroup& expert = program.groups[static_cast<int>(Group::kExpert)];
  const LaneGroup& tensor = program.groups[static_cast<int>(Group::kTensor)];
  std::vector<std::int64_t> start;
  for (std::size_t n = 0; n < count; ++n) {
    const StageRun::Reduction& first = units[0]->stage(r).reductions()[n];
    const ProgramOp& op = first.slot->ops[static_cast<std::size_t>(first.op)];
    // Members are the lanes that agree modulo `period`.
    const auto period = static_cast<std::size_t>(
        op.reduces == DataGroup::kExpert ? expert.size * expert.stride : tensor.size);
    start.assign(period, 0);
    for (UnitRun* unit : units) {
      const std::vector<std::int64_t>& ready = unit->stage(r).reductions()[n].ready;
      const std::int64_t* const free = unit->stage(r).data_stream();
      for (std::size_t l = 0; l < lanes; ++l) {
        start[l % period] = std::max({start[l % period], free[l], ready[l]});
      }
    }
    for (UnitRun* unit : units) {
      std::int64_t* const free = unit->stage(r).data_stream();
      for (std::size_t l = 0; l < lanes; ++l) free[l] = start[l % period] + op.cost.fixed_ns;
    }
    for (UnitRun* unit : units) {
      Recorder* const recorder = unit->stage(r).recorder();
      if (recorder == nullptr) continue;
      std::vector<std::int64_t> each(lanes);
      for (std::size_t l = 0; l < lanes; ++l) each[l] = start[l % period];
      recorder->on_operator(static_cast<std::int32_t>(r), first.step, first.op, *first.slot, each,
                            {unit->stage(r).data_stream(), lanes});
    }
  }
  for (UnitRun* unit : units) unit->stage(r).reductions_joined();
  return true;
}

}  // namespace

IterationTimes run_units(const Program& program, std::span<const LaneRows> rows,
                         std::span<Recorder* const> recorders,
                         std::span<const UnitDecisions> decisions) {
  std::vector<std::unique_ptr<UnitRun>> runs(rows.size());
  std::vector<UnitRun*> units(rows.size());
  parallel_for(rows.size(), [&](std::size_t u) {
    runs[u] =
        std::make_unique<UnitRun>(program, rows[u], recorders.empty() ? nullptr : recorders[u],
                                  decisions.empty() ? nullptr : &decisions[u]);
    units[u] = runs[u].get();
  });
  for (bool progress = true; progress;) {
    parallel_for(units.size(), [&](std::size_t u) { units[u]->advance(); });
    progress = false;
    for (std::size_t r = 0; r < program.stages.size(); ++r) {
      progress |= join_reductions(program, static_cast<std::size_t>(rows[0].lanes()), r, units);
    }
  }

  IterationTimes out;
  out.units.resize(units.size());
  std::int64_t optimizer = 0;
  std::int64_t gather = 0;
  for (std::size_t r = 0; r < program.stages.size(); ++r) {
    const IterationEnd& end = program.stages[r].end;
    for (std::size_t u = 0; u < units.size(); ++u) {
      if (!units[u]->stage(r).finished()) throw std::logic_error("the schedule deadlocks");
      StageTimes times = units[u]->stage(r).take_times();
      out.pipeline_ns =
          std::max(out.pipeline_ns, *std::ranges::max_element(times.finish_ns) + end.reduce_ns);
      out.units[u].stages.push_back(std::move(times));
    }
    optimizer = std::max(optimizer, end.optimizer_ns);
    gather = std::max(gather, end.gather_ns);
  }
  out.iteration_ns = out.pipeline_ns + optimizer + gather;
  return out;
}

}  // namespace tidemark
