#include "tests/support/naive_engine.h"

#include <algorithm>
#include <array>
#include <deque>
#include <functional>
#include <map>
#include <queue>
#include <stdexcept>
#include <tuple>
#include <utility>

namespace tidemark {
namespace {

// What happens at which time; equal times in the order of scheduling.
class EventQueue {
 public:
  std::int64_t now() const { return now_; }

  void at(std::int64_t time, std::function<void()> action) {
    events_.push({time, next_++, std::move(action)});
  }

  void run() {
    while (!events_.empty()) {
      const Event event = events_.top();
      events_.pop();
      now_ = event.time;
      event.action();
    }
  }

 private:
  struct Event {
    std::int64_t time = 0;
    std::int64_t sequence = 0;
    std::function<void()> action;
    bool operator<(const Event& o) const {  // priority_queue hands out the largest
      return std::tie(time, sequence) > std::tie(o.time, o.sequence);
    }
  };
  std::priority_queue<Event> events_;
  std::int64_t now_ = 0;
  std::int64_t next_ = 0;
};

struct Card;

// Two stages' halves of one transfer of one tensor, on one lane.
struct Message {
  int sides = 0;  // that are ready
  bool done = false;
  std::int64_t end = 0;
};

// One operator on one card; or, on its compute queue, something about messages.
struct Task {
  Card* card = nullptr;
  const ProgramOp* op = nullptr;   // null: no operator
  std::vector<Message*> posts;     // this side of them is ready when the queue comes here
  const Message* needs = nullptr;  // the queue goes on when it is done
  std::size_t step = 0;
  std::size_t position = 0;  // in its slot
  std::int64_t duration = 0;
  std::vector<Task*> waits_for;
  bool silent = false;   // not worth a span of its own
  bool arrived = false;  // started, or waits for the rest of its group
  bool done = false;
};

struct Card {
  std::size_t unit = 0;
  std::size_t stage = 0;
  std::size_t lane = 0;
  std::size_t step = 0;
  std::size_t position = 0;  // of the next operator to issue in the slot
  std::vector<Task*> slot;   // operators issued in this slot
  std::array<std::deque<Task*>, kNumStreams> queues;
  const Task* host_waits_for = nullptr;
  bool host_waits_for_queues = false;
  std::vector<Message*> host_waits_for_messages;
  bool finished = false;
  Message* last_sent[2] = {nullptr, nullptr};  // without blocking: activation, gradient

  bool queues_empty() const {
    return std::all_of(queues.begin(), queues.end(), [](const auto& q) { return q.empty(); });
  }
};

std::int64_t duration_of(const Program& program, const ProgramOp& op, const LaneRows& rows,
                         std::int32_t microbatch, std::size_t lane) {
  if (!op.cost.routed()) return std::max(op.cost.floor_ns, op.cost.fixed_ns);
  // ceil(per_row * rows), per_row in 2^-20 ns.
  const std::int64_t scaled = op.cost.per_row_q20 * rows.at(microbatch, op.moe_layer)[lane];
  const std::int64_t routed = scaled / (1 << 20) + (scaled % (1 << 20) != 0 ? 1 : 0);
  std::int64_t duration = std::max(op.cost.floor_ns, op.cost.fixed_ns + routed);
  if (op.cost.grouped < 0) return duration;
  const GroupedCost& cost = program.grouped_costs.at(static_cast<std::size_t>(op.cost.grouped));
  for (std::int64_t expert = 0; expert < rows.local_experts(); ++expert) {
    duration += cost.at(rows.expert_at(microbatch, op.moe_layer, expert)[lane]);
  }
  return duration;
}

std::int32_t microbatch_of(const Slot& slot, const ProgramOp& op) {
  return op.beside ? slot.beside.microbatch : slot.microbatch;
}

class NaiveEngine {
 public:
  NaiveEngine(const Program& program, std::span<const LaneRows> rows,
              std::span<const UnitDecisions> decisions)
      : program_(program), rows_(rows), decisions_(decisions) {
    const auto lanes = static_cast<std::size_t>(program.lanes);
    for (std::size_t unit = 0; unit < rows.size(); ++unit) {
      NaiveUnit& out = run_.units.emplace_back();
      for (std::size_t stage = 0; stage < program.stages.size(); ++stage) {
        out.spans.emplace_back(program.schedule.stages[stage].size());
        out.finish_ns.emplace_back(lanes, -1);
        for (std::size_t lane = 0; lane < lanes; ++lane) {
          cards_.emplace_back();
          cards_.back().unit = unit;
          cards_.back().stage = stage;
          cards_.back().lane = lane;
        }
      }
    }
  }

  NaiveRun run() {
    for (Card& card : cards_) {
      events_.at(0, [this, &card] { host_goes_on(card); });
    }
    events_.run();
    std::int64_t reduced = 0;
    std::int64_t optimizer = 0;
    std::int64_t gather = 0;
    for (const Card& card : cards_) {
      if (!card.finished) throw std::logic_error("cards wait for each other for ever");
      const IterationEnd& end = program_.stages[card.stage].end;
      reduced =
          std::max(reduced, run_.units[card.unit].finish_ns[card.stage][card.lane] + end.reduce_ns);
      optimizer = std::max(optimizer, end.optimizer_ns);
      gather = std::max(gather, end.gather_ns);
    }
    run_.iteration_ns = reduced + optimizer + gather;
    return std::move(run_);
  }

 private:
  void host_goes_on(Card& card) {
    const std::vector<Step>& steps = program_.schedule.stages[card.stage];
    while (card.step < steps.size()) {
      const Step& step = steps[card.step];
      if (const Slot* slot = std::get_if<Slot>(&step)) {
        if (leave_out(card, *slot)) continue;
        if (card.position < program_of(card, *slot).ops.size()) {
          events_.at(events_.now() + program_.host_issue_ns, [this, &card] { issue(card); });
          return;
        }
        card.slot.clear();
      } else if (const Wait* wait = std::get_if<Wait>(&step)) {
        Task& task = queue(card, card.step);
        task.needs = &message(card, wait->gradient, virtual_stage(card, wait->tensor.chunk),
                              wait->tensor.microbatch);
        start_what_can(card);
      } else if (const auto& transfer = std::get<Transfer>(step); !transfer.blocking) {
        post_without_blocking(card, transfer);
      } else {
        break;
      }
      ++card.step;
      card.position = 0;
    }
    if (!card.queues_empty()) {
      card.host_waits_for_queues = true;
    } else if (card.step == steps.size()) {
      card.finished = true;
      run_.units[card.unit].finish_ns[card.stage][card.lane] = events_.now();
    } else {
      arrive_at_transfer(card, std::get<Transfer>(steps[card.step]));
    }
  }

  // The next operator is of an optional action that is not taken: it counts as done.
  bool leave_out(Card& card, const Slot& slot) {
    const SlotProgram& program = program_of(card, slot);
    if (card.position >= program.ops.size()) return false;
    const ProgramOp& op = program.ops[card.position];
    if (op.action < 0) return false;
    const std::int32_t microbatch = microbatch_of(slot, op);
    if (!decisions_.empty() && decisions_[card.unit][card.stage].takes(microbatch, op.action)) {
      return false;
    }
    tasks_.emplace_back();
    tasks_.back().done = true;
    card.slot.push_back(&tasks_.back());
    ++card.position;
    return true;
  }

  const SlotProgram& program_of(const Card& card, const Slot& slot) const {
    return program_.slot_program(static_cast<std::int32_t>(card.stage), slot);
  }

  std::int32_t virtual_stage(const Card& card, std::int32_t chunk) const {
    return static_cast<std::int32_t>(
        program_.schedule.virtual_stage(static_cast<std::int32_t>(card.stage), chunk));
  }

  // Of what a virtual stage receives.
  Message& message(const Card& card, bool gradient, std::int32_t receiver,
                   std::int32_t microbatch) {
    return messages_[{gradient, receiver, microbatch, card.unit, card.lane}];
  }

  struct Messages {
    std::vector<Message*> all;
    Message* sent[2] = {nullptr, nullptr};
  };
  Messages messages_of(const Card& card, const Transfer& t) {
    Messages out;
    if (t.send_activation.valid()) {
      out.sent[0] = &message(card, false, virtual_stage(card, t.send_activation.chunk) + 1,
                             t.send_activation.microbatch);
    }
    if (t.send_gradient.valid()) {
      out.sent[1] = &message(card, true, virtual_stage(card, t.send_gradient.chunk) - 1,
                             t.send_gradient.microbatch);
    }
    for (Message* m : out.sent) {
      if (m != nullptr) out.all.push_back(m);
    }
    if (t.receive_activation.valid()) {
      out.all.push_back(&message(card, false, virtual_stage(card, t.receive_activation.chunk),
                                 t.receive_activation.microbatch));
    }
    if (t.receive_gradient.valid()) {
      out.all.push_back(&message(card, true, virtual_stage(card, t.receive_gradient.chunk),
                                 t.receive_gradient.microbatch));
    }
    return out;
  }

  Task& queue(Card& card, std::size_t step) {
    tasks_.emplace_back();
    Task& task = tasks_.back();
    task.card = &card;
    task.step = step;
    card.queues[static_cast<std::size_t>(Stream::kCompute)].push_back(&task);
    return task;
  }

  void post_without_blocking(Card& card, const Transfer& transfer) {
    const Messages m = messages_of(card, transfer);
    queue(card, card.step).posts = m.all;
    for (int kind = 0; kind < 2; ++kind) {
      if (m.sent[kind] == nullptr || program_.schedule.buffers_sends) continue;
      Message* before = std::exchange(card.last_sent[kind], m.sent[kind]);
      if (before != nullptr) {
        Task& task = queue(card, card.step);
        task.needs = before;
        task.silent = true;
      }
    }
    start_what_can(card);
  }

  void issue(Card& card) {
    const Slot& slot = std::get<Slot>(program_.schedule.stages[card.stage][card.step]);
    const SlotProgram& program = program_of(card, slot);
    const ProgramOp& op = program.ops[card.position];
    tasks_.emplace_back();
    Task& task = tasks_.back();
    task.card = &card;
    task.op = &op;
    task.step = card.step;
    task.position = card.position;
    task.duration = duration_of(program_, op, rows_[card.unit], microbatch_of(slot, op), card.lane);
    for (std::int32_t d = op.dep_begin; d < op.dep_end; ++d) {
      const std::int32_t position = program.deps[static_cast<std::size_t>(d)];
      task.waits_for.push_back(card.slot.at(static_cast<std::size_t>(position)));
    }
    card.slot.push_back(&task);
    card.queues[static_cast<std::size_t>(op.stream)].push_back(&task);
    ++card.position;
    start_what_can(card);
    if (op.host_waits) {
      card.host_waits_for = &task;
    } else {
      host_goes_on(card);
    }
  }

  void start_what_can(Card& card) {
    for (std::deque<Task*>& queue : card.queues) {
      if (queue.empty() || queue.front()->arrived) continue;
      Task& task = *queue.front();
      if (task.op == nullptr) {
        if (about_messages(card, task)) return;  // which has looked at all queues anew
        continue;
      }
      const bool ready = std::all_of(task.waits_for.begin(), task.waits_for.end(),
                                     [](const Task* other) { return other->done; });
      if (!ready) continue;
      task.arrived = true;
      meet_group(task);
    }
  }

  // A group is {first, first + stride, ...}: lanes that differ in one digit only. Gradients of
  // dense layers are added up by all cards, of all units, with the same tensor-parallel rank, those
  // of experts by all with the same expert rank.
  void meet_group(Task& task) {
    const auto lane = static_cast<std::int64_t>(task.card->lane);
    const auto units = static_cast<std::int64_t>(rows_.size());
    if (task.op->reduces != DataGroup::kNone) {
      const LaneGroup tensor = program_.groups[static_cast<std::size_t>(Group::kTensor)];
      const LaneGroup expert = program_.groups[static_cast<std::size_t>(Group::kExpert)];
      const std::int64_t ranks =
          task.op->reduces == DataGroup::kDense ? tensor.size : expert.size * expert.stride;
      meet(task, kAllUnits, lane % ranks, units * program_.lanes / ranks);
      return;
    }
    const LaneGroup group = program_.groups[static_cast<std::size_t>(task.op->group)];
    if (task.op->group == Group::kNone || group.size == 1) {
      start(task, task.duration);
      return;
    }
    const std::int64_t digit = lane / group.stride % group.size;
    meet(task, task.card->unit, lane - digit * group.stride, group.size);
  }

  static constexpr std::size_t kAllUnits = static_cast<std::size_t>(-1);

  void meet(Task& task, std::size_t unit, std::int64_t first, std::int64_t size) {
    const Meeting key{unit, task.card->stage, task.step, task.position, first};
    std::vector<Task*>& members = groups_[key];
    members.push_back(&task);
    if (static_cast<std::int64_t>(members.size()) < size) return;
    std::int64_t longest = 0;
    for (const Task* member : members) longest = std::max(longest, member->duration);
    for (Task* member : members) start(*member, longest);
    groups_.erase(key);
  }

  void start(Task& task, std::int64_t duration) {
    span(*task.card, task.step, task.position) = {events_.now(), events_.now() + duration};
    events_.at(events_.now() + duration, [this, &task] { finish(task); });
  }

  void finish(Task& task) {
    Card& card = *task.card;
    task.done = true;
    card.queues[static_cast<std::size_t>(task.op->stream)].pop_front();
    start_what_can(card);
    if (card.host_waits_for == &task) {
      card.host_waits_for = nullptr;
      host_goes_on(card);
    } else if (card.host_waits_for_queues && card.queues_empty()) {
      card.host_waits_for_queues = false;
      host_goes_on(card);
    }
  }

  // Returns: whether the queue goes on.
  bool about_messages(Card& card, Task& task) {
    if (task.needs != nullptr) {
      if (!task.needs->done) return false;
      if (!task.silent) {
        span(card, task.step, 0) = {task.needs->end - program_.exchange_ns, task.needs->end};
      }
    } else {
      span(card, task.step, 0) = {events_.now(), events_.now()};
      for (Message* m : task.posts) ready(*m);
    }
    card.queues[static_cast<std::size_t>(Stream::kCompute)].pop_front();
    look_again(card);
    return true;
  }

  // After something has left a queue.
  void look_again(Card& card) {
    start_what_can(card);
    if (card.host_waits_for_queues && card.queues_empty()) {
      card.host_waits_for_queues = false;
      host_goes_on(card);
    }
  }

  void ready(Message& message) {
    if (++message.sides < 2) return;
    message.end = events_.now() + program_.exchange_ns;
    events_.at(message.end, [this, &message] {
      message.done = true;
      for (Card& card : cards_) {
        auto& awaited = card.host_waits_for_messages;
        const auto it = std::find(awaited.begin(), awaited.end(), &message);
        if (it != awaited.end()) {
          awaited.erase(it);
          if (awaited.empty()) leave_transfer(card);
        } else {
          start_what_can(card);
        }
      }
    });
  }

  void arrive_at_transfer(Card& card, const Transfer& transfer) {
    const Messages m = messages_of(card, transfer);
    if (m.all.empty()) {
      span(card, card.step, 0) = {events_.now(), events_.now()};
      ++card.step;
      host_goes_on(card);
      return;
    }
    card.host_waits_for_messages = m.all;
    for (Message* each : m.all) ready(*each);
  }

  void leave_transfer(Card& card) {
    span(card, card.step, 0) = {events_.now() - program_.exchange_ns, events_.now()};
    ++card.step;
    host_goes_on(card);
  }

  Span& span(const Card& card, std::size_t step, std::size_t position) {
    auto& operators = run_.units[card.unit].spans[card.stage][step];
    if (operators.size() <= position) operators.resize(position + 1);
    auto& lanes = operators[position];
    lanes.resize(static_cast<std::size_t>(program_.lanes));
    return lanes[card.lane];
  }

  const Program& program_;
  std::span<const LaneRows> rows_;            // [unit]
  std::span<const UnitDecisions> decisions_;  // [unit]; none: no optional action is taken
  EventQueue events_;
  std::deque<Card> cards_;  // deques: their elements stay where they are
  std::deque<Task> tasks_;
  // Unit, stage, step, position in the slot, first lane.
  using Meeting = std::tuple<std::size_t, std::size_t, std::size_t, std::size_t, std::int64_t>;
  std::map<Meeting, std::vector<Task*>> groups_;
  // By kind, receiving virtual stage, microbatch, unit and lane.
  std::map<std::tuple<bool, std::int32_t, std::int32_t, std::size_t, std::size_t>, Message>
      messages_;
  NaiveRun run_;
};

}  // namespace

NaiveRun run_naively(const Program& program, std::span<const LaneRows> rows,
                     std::span<const UnitDecisions> decisions) {
  return NaiveEngine(program, rows, decisions).run();
}

}  // namespace tidemark
