// What a combined slot's length is made of: the chain of operators, each of which waited for the
// one before it, from the slot's beginning to its end.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "planner/slot_interleaving.h"
#include "sim/program.h"

namespace tidemark {

struct PathOperator {
  // What it began right after.
  enum class After {
    kStream,      // the operator before it on its stream
    kDependency,  // one that it needs
    kHost,        // the host's issuing it, which may have waited at a gate
  };
  std::int32_t op = 0;  // of the slot
  After after = After::kHost;
};

// In order. `run`: the slot's own, by itself.
std::vector<PathOperator> critical_path(const SlotProgram& slot, const SlotRun& run);

// The first of a stage's combined slots that neither begins nor ends an iteration, by itself under
// the balanced load.
struct ExplainedSlot {
  const SlotProgram* slot = nullptr;
  SlotRun run;
  std::vector<PathOperator> path;
};
// `slot` is null where the stage has none.
ExplainedSlot explain_slot(const Program& program, std::size_t stage, const LaneRows& rows);

std::string slot_text(const Program& program, std::size_t stage, const ExplainedSlot& slot);
nlohmann::ordered_json slot_json(const Program& program, std::size_t stage,
                                 const ExplainedSlot& slot);

}  // namespace tidemark
