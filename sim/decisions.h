// Which optional actions of a program are taken: decided by policies, executed by engines and
// memory models. Actions are those of a stage's graph (models/operator_graph.h); all lanes of a
// unit's stage take the same.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace tidemark {

struct StageDecisions {
  std::int32_t actions = 0;
  std::vector<std::uint8_t> taken;  // [microbatch][action]; empty: none

  StageDecisions() = default;
  StageDecisions(std::int32_t microbatches, std::int32_t number_of_actions)
      : actions(number_of_actions),
        taken(static_cast<std::size_t>(microbatches) * static_cast<std::size_t>(actions), 0) {}

  std::uint8_t& at(std::int32_t microbatch, std::int32_t action) {
    return taken[static_cast<std::size_t>(microbatch) * static_cast<std::size_t>(actions) +
                 static_cast<std::size_t>(action)];
  }
  bool takes(std::int32_t microbatch, std::int32_t action) const {
    return !taken.empty() &&
           taken[static_cast<std::size_t>(microbatch) * static_cast<std::size_t>(actions) +
                 static_cast<std::size_t>(action)] != 0;
  }
};

using UnitDecisions = std::vector<StageDecisions>;  // [stage]

}  // namespace tidemark
