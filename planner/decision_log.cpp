#include "planner/decision_log.h"

#include <algorithm>
#include <cstdlib>
#include <map>
#include <tuple>
#include <utility>

#include <nlohmann/json.hpp>

#include "planner/adaptive_plan.h"

namespace tidemark {

DecisionLog::DecisionLog(std::vector<std::vector<NamedAction>> actions)
    : actions_(std::move(actions)) {
  std::map<std::tuple<std::size_t, std::string, ActionKind>, std::size_t> known;
  for (std::size_t s = 0; s < actions_.size(); ++s) {
    taken_.emplace_back(actions_[s].size(), 0);
    for (std::size_t a = 0; a < actions_[s].size(); ++a) {
      const NamedAction& action = actions_[s][a];
      const auto [it, is_new] =
          known.try_emplace({s, action.operator_name, action.kind}, groups_.size());
      if (is_new) groups_.push_back({static_cast<std::int32_t>(s), {}});
      groups_[it->second].actions.push_back(a);
    }
  }
}

void DecisionLog::add(const IterationRecord& record, const std::vector<UnitDecisions>& decisions) {
  std::vector<std::vector<std::int64_t>> now;
  std::vector<std::int64_t> microbatches(actions_.size(), 0);  // of all units
  for (std::size_t s = 0; s < actions_.size(); ++s) {
    std::vector<std::int64_t>& of_stage = now.emplace_back(actions_[s].size(), 0);
    for (const UnitDecisions& unit : decisions) {
      const std::vector<std::uint8_t>& taken = unit[s].taken;
      for (std::size_t i = 0; i < taken.size(); ++i) of_stage[i % of_stage.size()] += taken[i];
      if (!of_stage.empty()) {
        microbatches[s] += std::ssize(taken) / std::ssize(of_stage);
      }
    }
  }
  std::vector<std::pair<std::int64_t, std::size_t>> changes;  // less how much, group
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    const auto s = static_cast<std::size_t>(groups_[g].stage);
    std::int64_t change = 0;
    for (const std::size_t a : groups_[g].actions) change += std::abs(now[s][a] - taken_[s][a]);
    if (change > 0) changes.emplace_back(-change, g);
  }
  changed_iterations_ += !changes.empty();
  if (!changes.empty() && std::ssize(iterations_) < kMostIterations) {
    std::ranges::sort(changes);
    Iteration& out = iterations_.emplace_back(
        Iteration{record.iteration, record.attempt, std::ssize(changes), {}});
    changes.resize(std::min(changes.size(), static_cast<std::size_t>(kMostGroups)));
    for (const auto& [change, g] : changes) {
      const Members& members = groups_[g];
      const auto s = static_cast<std::size_t>(members.stage);
      const NamedAction& first = actions_[s][members.actions.front()];
      Group& group = out.groups.emplace_back(
          Group{members.stage, first.operator_name, first.kind, {}, 0, 0, -change, 0});
      for (const std::size_t a : members.actions) {
        if (now[s][a] > 0) group.layers.push_back(actions_[s][a].layer);
        group.taken += now[s][a];
        group.before += taken_[s][a];
        group.of += microbatches[s];
      }
    }
  }
  taken_ = std::move(now);
}

nlohmann::ordered_json to_json(const DecisionLog& log) {
  nlohmann::ordered_json out = {{"changed_iterations", log.changed_iterations()},
                                {"iterations", nlohmann::ordered_json::array()}};
  for (const DecisionLog::Iteration& iteration : log.iterations()) {
    nlohmann::ordered_json& to = out["iterations"].emplace_back();
    to = {{"iteration", iteration.iteration},
          {"attempt", iteration.attempt},
          {"changed_groups", iteration.changed_groups}};
    for (const DecisionLog::Group& group : iteration.groups) {
      to["groups"].push_back({{"stage", group.stage},
                              {"operator", group.operator_name},
                              {"action", action_name(group.kind)},
                              {"layers", group.layers},
                              {"taken", group.taken},
                              {"before", group.before},
                              {"changed", group.changed},
                              {"of", group.of}});
    }
  }
  return out;
}

}  // namespace tidemark
