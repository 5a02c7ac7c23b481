// What the adaptive policy chooses from, prepared before the job runs: a ladder of plans a stage
// and the memory that its decisions share. `tidemark plan` writes it, `--policy plan:FILE` runs it.
//
// Operators have names and layers, so a file means the same whatever version built its graph, or is
// refused.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "planner/action_catalogue.h"
#include "planner/action_ladder.h"

namespace tidemark {

struct AdaptivePlan {
  using Action = NamedAction;
  // From everything kept to the least.
  struct Rung {
    std::int64_t held_bytes = 0;  // of one microbatch, balanced
    std::int64_t exposed_ns = 0;  // of a forward and its backward
    std::vector<Action> actions;  // what is not kept
  };
  struct Stage {
    std::int64_t headroom_bytes = 0;   // under the most frugal rung and the bound; negative: none
    std::int64_t run_ahead_bytes = 0;  // of it, what decisions leave to a CPU ahead of its device
    std::vector<Rung> rungs;

    std::int64_t shared() const { return headroom_bytes - run_ahead_bytes; }
  };

  std::string file;       // that it was read from
  double rows_bound = 1;  // rows of a card over the balanced load that it is safe for
  std::vector<Stage> stages;

  std::int64_t least_headroom_bytes() const;
  std::int64_t tightest_stage() const;
};

const char* action_name(ActionKind kind);

AdaptivePlan::Rung named_rung(const ActionCatalogue& catalogue, const LadderRung& rung,
                              std::int64_t balanced_rows);
// The ladder of a stage in its catalogue. Throws: InputError for an operator that the stage lacks,
// or an action that is not legal there.
std::vector<LadderRung> ladder_of(const AdaptivePlan& plan, std::size_t stage,
                                  const ActionCatalogue& catalogue);

nlohmann::ordered_json to_json(const AdaptivePlan& plan);
// From the file that `tidemark plan -o` wrote. Throws: InputError.
AdaptivePlan read_adaptive_plan(const std::filesystem::path& path);

}  // namespace tidemark
