#include "sim/lane_engine.h"

#include <algorithm>
#include <stdexcept>

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

class StageRun {
 public:
  StageRun(const Program& program, const LaneRows& rows, std::int32_t stage, Channels& channels,
           Recorder* recorder)
      : program_(program),
        steps_(program.schedule.stages[static_cast<std::size_t>(stage)]),
        rows_(rows),
        channels_(channels),
        recorder_(recorder),
        index_(stage),
        lanes_(static_cast<std::size_t>(program.lanes)),
        free_(kNumStreams * lanes_, 0),
        host_(lanes_, 0),
        start_(lanes_),
        duration_(lanes_) {
    std::size_t ops = 0;
    for_each_slot_program(program.stages[static_cast<std::size_t>(stage)],
                          [&](const SlotProgram& slot) { ops = std::max(ops, slot.ops.size()); });
    end_.resize(ops * lanes_);
  }

  bool finished() const { return step_ == steps_.size() && awaited_.empty(); }

  // Goes on until the end, or until a neighbour has to post something first. Returns: whether it
  // got anywhere.
  bool advance() {
    bool moved = false;
    while (!finished()) {
      if (!awaited_.empty()) {
        if (!arrived()) return moved;
        go_on();
      } else if (const Slot* slot = std::get_if<Slot>(&steps_[step_])) {
        run_slot(program_.slot_program(index_, *slot), *slot);
        ++step_;
      } else if (const Transfer* transfer = std::get_if<Transfer>(&steps_[step_])) {
        post(*transfer);
      } else {
        await(std::get<Wait>(steps_[step_]));
      }
      moved = true;
    }
    settle();
    return moved;
  }

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

  // The host waits for everything it has issued (torch.cuda.synchronize around each transfer).
  void settle() {
    for (int s = 0; s < kNumStreams; ++s) {
      const std::int64_t* free = stream(s);
      for (std::size_t l = 0; l < lanes_; ++l) host_[l] = std::max(host_[l], free[l]);
    }
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
      const std::int64_t* compute = stream(static_cast<int>(Stream::kCompute));
      for (std::size_t l = 0; l < lanes_; ++l) start_[l] = std::max(host_[l], compute[l]);
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
      for (int s = 0; s < kNumStreams; ++s) std::copy(end.begin(), end.end(), stream(s));
    } else {
      std::int64_t* compute = stream(static_cast<int>(Stream::kCompute));
      for (std::size_t l = 0; l < lanes_; ++l) compute[l] = std::max(compute[l], end[l]);
    }
    const bool posts = std::holds_alternative<Transfer>(steps_[step_]);
    if (recorder_ != nullptr && (host_awaits_ || !posts)) {
      for (std::size_t l = 0; l < lanes_; ++l) start_[l] = end[l] - program_.exchange_ns;
      recorder_->on_transfer(index_, static_cast<std::int32_t>(step_), start_, end);
    }
    ++step_;
  }

  void run_slot(const SlotProgram& slot, const Slot& what) {
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
      durations(op.cost, op.moe_layer, op.beside ? what.beside.microbatch : what.microbatch);
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
  const std::vector<Step>& steps_;
  const LaneRows& rows_;
  Channels& channels_;
  Recorder* recorder_;
  std::int32_t index_;
  std::size_t lanes_;
  std::size_t step_ = 0;
  std::vector<Awaited> awaited_;  // by the step at hand
  bool host_awaits_ = false;
  std::vector<Received> received_;  // posted, and waited for by a later step
  Awaited sending_activation_;
  Awaited sending_gradient_;
  std::vector<std::int64_t> free_;      // [stream][lane]
  std::vector<std::int64_t> host_;      // [lane]
  std::vector<std::int64_t> end_;       // [op of the slot][lane]
  std::vector<std::int64_t> start_;     // [lane]
  std::vector<std::int64_t> duration_;  // [lane]
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

}  // namespace

UnitTimes run_unit(const Program& program, const LaneRows& rows, Recorder* recorder) {
  const auto stages = static_cast<std::int32_t>(program.stages.size());
  Channels channels;
  channels.activations.assign(
      program.stages.size() * static_cast<std::size_t>(program.schedule.chunks),
      Channel(outstanding_messages(program.schedule)));
  channels.gradients = channels.activations;
  std::vector<StageRun> runs;
  runs.reserve(program.stages.size());
  for (std::int32_t r = 0; r < stages; ++r) runs.emplace_back(program, rows, r, channels, recorder);
  for (bool progress = true; progress;) {
    progress = false;
    for (StageRun& run : runs) progress |= !run.finished() && run.advance();
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
