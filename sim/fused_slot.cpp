#include "sim/fused_slot.h"

#include <cstddef>
#include <utility>

namespace tidemark {
namespace {

class Fuser {
 public:
  // Moves the next operator of a program, and the data-parallel ones behind it.
  struct Source {
    const SlotProgram& program;
    bool beside = false;
    std::size_t next = 0;
    std::vector<std::int32_t> moved_to{};
  };

  void move_data_parallel(Source& from) {
    while (from.next < from.program.ops.size() && from.program.ops[from.next].operator_index < 0) {
      move(from);
    }
  }

  void move(Source& from) {
    ProgramOp op = from.program.ops[from.next++];
    const std::int32_t begin = op.dep_begin;
    op.beside = from.beside;
    op.dep_begin = static_cast<std::int32_t>(fused_.deps.size());
    for (std::int32_t d = begin; d < op.dep_end; ++d) {
      const std::int32_t on = from.program.deps[static_cast<std::size_t>(d)];
      fused_.deps.push_back(from.moved_to[static_cast<std::size_t>(on)]);
    }
    op.dep_end = static_cast<std::int32_t>(fused_.deps.size());
    from.moved_to.push_back(static_cast<std::int32_t>(fused_.ops.size()));
    fused_.ops.push_back(op);
  }

  SlotProgram take() && { return std::move(fused_); }

 private:
  SlotProgram fused_;
};

}  // namespace

SlotProgram fuse_slots(const SlotProgram& forward, const SlotProgram& backward,
                       const std::vector<IssuedOperator>& order) {
  Fuser fuser;
  Fuser::Source sources[] = {{forward, false}, {backward, true}};
  for (Fuser::Source& source : sources) fuser.move_data_parallel(source);
  for (const IssuedOperator& op : order) {
    Fuser::Source& source = sources[op.beside ? 1 : 0];
    fuser.move(source);
    fuser.move_data_parallel(source);
  }
  return std::move(fuser).take();
}

}  // namespace tidemark
