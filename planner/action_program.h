// A job's program in which everything that its layers keep may be given up by one kind of action:
// what baselines that know only that action decide about.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "hw_profiles/hardware_profile.h"
#include "models/job.h"
#include "planner/action_catalogue.h"
#include "sim/decisions.h"
#include "sim/policy.h"
#include "sim/program.h"

namespace tidemark {

struct ActionProgram {
  struct Stage {
    ActionCatalogue catalogue;            // entries with `save` and, where legal, the action
    std::vector<std::int32_t> action_of;  // [entry]: of StageDecisions; -1: always saved
    std::vector<std::int32_t> chunk_of;   // [entry]
    std::vector<NamedAction> names;       // [action of StageDecisions]
    std::int32_t optional_actions = 0;
    std::int32_t in_flight = 0;  // microbatches of all chunks, at most

    // By the action of an entry; nothing where it has none.
    Size freed(std::size_t entry) const {
      return action_of[entry] < 0 ? Size{} : catalogue.entries[entry].actions[1].freed;
    }
  };
  Job job;  // as on_platform gives it
  Program program;
  std::vector<Stage> stages;

  // Every microbatch gives up the same. `given_up`: [stage][entry], only where it may be.
  UnitDecisions constant(const std::vector<std::vector<bool>>& given_up) const;
  // All that can be.
  UnitDecisions everything() const;
  // [stage][action of StageDecisions]
  std::vector<std::vector<NamedAction>> names() const;
};

ActionProgram build_action_program(const Job& job, const HardwareProfile& profile,
                                   ActionKind action);

// Decides the same in every iteration.
class ConstantPolicy : public Policy {
 public:
  explicit ConstantPolicy(UnitDecisions decisions) : decisions_(std::move(decisions)) {}
  StageDecisions decide(std::int32_t stage, const LaneRows&) const override {
    return decisions_[static_cast<std::size_t>(stage)];
  }

 private:
  UnitDecisions decisions_;
};

}  // namespace tidemark
