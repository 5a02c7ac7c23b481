// What a policy decided in a run, and when: how many microbatches of a stage, of all evaluated
// units, give up what an operator keeps. Layers that do the same with operators of one name are one
// group.
//
// Bounded: of the iterations whose decisions differ from the one before (the first one's from
// keeping everything) the first kMostIterations are kept, of each the kMostGroups groups that
// changed most.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "planner/action_catalogue.h"
#include "sim/decisions.h"
#include "sim/training_run.h"

namespace tidemark {

class DecisionLog {
 public:
  static constexpr std::int64_t kMostIterations = 100;
  static constexpr std::int64_t kMostGroups = 20;

  struct Group {
    std::int32_t stage = 0;
    std::string operator_name;
    ActionKind kind = ActionKind::kRecompute;
    std::vector<std::int32_t> layers;  // in which some microbatch takes it
    std::int64_t taken = 0;            // by microbatches, of all its layers
    std::int64_t before = 0;           // in the iteration before
    std::int64_t changed = 0;          // by so many, of each layer by itself
    std::int64_t of = 0;               // if all took it in every layer
  };
  struct Iteration {
    std::int64_t iteration = 0;
    std::int64_t attempt = 0;
    std::int64_t changed_groups = 0;
    std::vector<Group>
        groups;  // those that changed most first; of equal ones by stage and operator
  };

  // `actions`: [stage][action of StageDecisions].
  explicit DecisionLog(std::vector<std::vector<NamedAction>> actions);

  // `decisions`: [unit], of the same actions; called for every iteration, in the order of the run.
  void add(const IterationRecord& record, const std::vector<UnitDecisions>& decisions);

  std::int64_t changed_iterations() const { return changed_iterations_; }
  const std::vector<Iteration>& iterations() const { return iterations_; }

 private:
  struct Members {
    std::int32_t stage = 0;
    std::vector<std::size_t> actions;  // of the stage, in the order of the forward
  };
  std::vector<std::vector<NamedAction>> actions_;
  std::vector<Members> groups_;
  std::vector<std::vector<std::int64_t>> taken_;  // [stage][action], in the last iteration
  std::int64_t changed_iterations_ = 0;
  std::vector<Iteration> iterations_;
};

nlohmann::ordered_json to_json(const DecisionLog& log);

}  // namespace tidemark
