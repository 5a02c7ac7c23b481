#include "sim/fused_slot.h"

#include <algorithm>
#include <cstddef>
#include <utility>

namespace tidemark {
namespace {

constexpr std::int32_t kNowhere = -1;

class Fuser {
 public:
  // A program whose operators move into the fused one.
  struct Source {
    Source(const SlotProgram& slot, bool runs_beside)
        : program(slot), beside(runs_beside), moved_to(slot.ops.size(), kNowhere) {
      std::int32_t last = 0;
      for (const ProgramOp& op : slot.ops) last = std::max(last, op.operator_index);
      position.assign(static_cast<std::size_t>(last) + 1, kNowhere);
      for (std::size_t i = 0; i < slot.ops.size(); ++i) {
        const std::int32_t index = slot.ops[i].operator_index;
        if (index >= 0) position[static_cast<std::size_t>(index)] = static_cast<std::int32_t>(i);
      }
    }

    const SlotProgram& program;
    bool beside = false;
    std::vector<std::int32_t> position;  // [operator of the graph]
    std::vector<std::int32_t> moved_to;  // [position]
    std::size_t first_left = 0;
    std::int32_t last_compute = kNowhere;  // where it has moved
  };

  void move(Source& from, std::int32_t operator_index) {
    move_at(from,
            static_cast<std::size_t>(from.position[static_cast<std::size_t>(operator_index)]));
    move_data_parallel(from);
  }

  // Those with nothing left before them.
  void move_data_parallel(Source& from) {
    const std::vector<ProgramOp>& ops = from.program.ops;
    for (; from.first_left < ops.size(); ++from.first_left) {
      if (from.moved_to[from.first_left] != kNowhere) continue;
      if (ops[from.first_left].operator_index >= 0) return;
      move_at(from, from.first_left);
    }
  }

  SlotProgram take() && { return std::move(fused_); }

 private:
  void move_at(Source& from, std::size_t at) {
    ProgramOp op = from.program.ops[at];
    const std::int32_t begin = op.dep_begin;
    op.beside = from.beside;
    op.dep_begin = static_cast<std::int32_t>(fused_.deps.size());
    for (std::int32_t d = begin; d < op.dep_end; ++d) {
      const auto on = static_cast<std::size_t>(from.program.deps[static_cast<std::size_t>(d)]);
      const bool of_all = from.moved_to[on] == kNowhere || op.reduces != DataGroup::kNone;
      fused_.deps.push_back(of_all ? from.last_compute : from.moved_to[on]);
    }
    op.dep_end = static_cast<std::int32_t>(fused_.deps.size());
    from.moved_to[at] = static_cast<std::int32_t>(fused_.ops.size());
    if (op.stream == Stream::kCompute && op.action < 0) from.last_compute = from.moved_to[at];
    fused_.ops.push_back(op);
  }

  SlotProgram fused_;
};

}  // namespace

SlotProgram fuse_slots(const SlotProgram& forward, const SlotProgram& backward,
                       const std::vector<IssuedOperator>& order) {
  Fuser fuser;
  Fuser::Source sources[] = {{forward, false}, {backward, true}};
  for (Fuser::Source& source : sources) fuser.move_data_parallel(source);
  for (const IssuedOperator& op : order) fuser.move(sources[op.beside ? 1 : 0], op.index);
  return std::move(fuser).take();
}

}  // namespace tidemark
