#include "planner/pipeline_walk.h"

#include <algorithm>
#include <optional>
#include <stdexcept>
#include <variant>

namespace tidemark {
namespace {

class PipelineWalk {
 public:
  PipelineWalk(const Schedule& schedule, std::int64_t exchange_ns,
               const std::function<SlotTime(std::size_t, std::size_t)>& slot_time)
      : schedule_(schedule),
        exchange_ns_(exchange_ns),
        slot_time_(slot_time),
        stages_(schedule.stages.size()),
        messages_(2 * stages_.size() *
                  static_cast<std::size_t>(schedule.chunks * schedule.microbatches)) {}

  std::vector<std::int64_t> run() {
    for (bool progress = true; progress;) {
      progress = false;
      for (std::size_t s = 0; s < stages_.size(); ++s) {
        while (!finished(s) && go_on(s)) progress = true;
      }
    }
    std::vector<std::int64_t> out;
    for (std::size_t s = 0; s < stages_.size(); ++s) {
      if (!finished(s)) throw std::logic_error("the schedule deadlocks");
      out.push_back(std::max(stages_[s].now_ns, stages_[s].copies_ns));
    }
    return out;
  }

 private:
  struct Stage {
    std::size_t step = 0;
    std::int64_t now_ns = 0;
    std::int64_t copies_ns = 0;  // when all so far are done
  };
  // When each side is ready; nothing until it has come there.
  struct Message {
    std::optional<std::int64_t> sender_ns;
    std::optional<std::int64_t> receiver_ns;
  };

  bool finished(std::size_t s) const { return stages_[s].step == schedule_.stages[s].size(); }

  Message& message(bool gradient, ChunkPlace receiver, std::int32_t microbatch) {
    const std::int64_t chunk = receiver.stage * schedule_.chunks + receiver.chunk;
    const std::int64_t of_chunk = chunk * schedule_.microbatches + microbatch;
    return messages_[static_cast<std::size_t>(2 * of_chunk + (gradient ? 1 : 0))];
  }
  std::optional<std::int64_t> arrival(const Message& m) const {
    if (!m.sender_ns || !m.receiver_ns) return std::nullopt;
    return std::max(*m.sender_ns, *m.receiver_ns) + exchange_ns_;
  }

  // Posts the stage's sides. Returns: when the last message comes, or `ready` if there is none;
  // nothing while a neighbour has not come there.
  std::optional<std::int64_t> exchange(std::int32_t stage, const Transfer& t, std::int64_t ready) {
    std::optional<std::int64_t> last = ready;
    const auto post = [&](Message& m, std::optional<std::int64_t> Message::*side) {
      m.*side = ready;
      const std::optional<std::int64_t> arrived = arrival(m);
      last = last && arrived ? std::optional(std::max(*last, *arrived)) : std::nullopt;
    };
    if (const ChunkTensor a = t.send_activation; a.valid()) {
      post(message(false, schedule_.next(stage, a.chunk), a.microbatch), &Message::sender_ns);
    }
    if (const ChunkTensor g = t.send_gradient; g.valid()) {
      post(message(true, schedule_.previous(stage, g.chunk), g.microbatch), &Message::sender_ns);
    }
    if (const ChunkTensor a = t.receive_activation; a.valid()) {
      post(message(false, {stage, a.chunk}, a.microbatch), &Message::receiver_ns);
    }
    if (const ChunkTensor g = t.receive_gradient; g.valid()) {
      post(message(true, {stage, g.chunk}, g.microbatch), &Message::receiver_ns);
    }
    return last;
  }

  // Returns: whether the stage got past its step.
  bool go_on(std::size_t s) {
    Stage& stage = stages_[s];
    const auto index = static_cast<std::int32_t>(s);
    const Step& step = schedule_.stages[s][stage.step];
    if (std::holds_alternative<Slot>(step)) {
      const SlotTime time = slot_time_(s, stage.step);
      stage.copies_ns = std::max(stage.copies_ns, stage.now_ns + time.copies_ns);
      stage.now_ns += time.work_ns;
    } else if (const Transfer* const t = std::get_if<Transfer>(&step)) {
      const std::int64_t ready =
          t->blocking ? std::max(stage.now_ns, stage.copies_ns) : stage.now_ns;
      const std::optional<std::int64_t> last = exchange(index, *t, ready);
      if (t->blocking) {
        if (!last) return false;
        stage.now_ns = *last;
      }
    } else {
      const Wait& wait = std::get<Wait>(step);
      const std::optional<std::int64_t> arrived =
          arrival(message(wait.gradient, {index, wait.tensor.chunk}, wait.tensor.microbatch));
      if (!arrived) return false;
      stage.now_ns = std::max(stage.now_ns, *arrived);
    }
    ++stage.step;
    return true;
  }

  const Schedule& schedule_;
  const std::int64_t exchange_ns_;
  const std::function<SlotTime(std::size_t, std::size_t)>& slot_time_;
  std::vector<Stage> stages_;
  std::vector<Message> messages_;  // [receiving stage][chunk][microbatch][gradient]
};

}  // namespace

std::vector<std::int64_t> walk_pipeline(
    const Schedule& schedule, std::int64_t exchange_ns,
    const std::function<SlotTime(std::size_t stage, std::size_t step)>& slot_time) {
  return PipelineWalk(schedule, exchange_ns, slot_time).run();
}

}  // namespace tidemark
