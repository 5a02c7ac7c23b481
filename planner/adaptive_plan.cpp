#include "planner/adaptive_plan.h"

#include <algorithm>
#include <map>
#include <set>
#include <stdexcept>
#include <utility>

#include <nlohmann/json.hpp>

#include "models/input_error.h"
#include "models/json_reader.h"

namespace tidemark {
namespace {

constexpr ActionKind kKinds[] = {ActionKind::kSave, ActionKind::kRecompute, ActionKind::kOffload,
                                 ActionKind::kQuantize};

// Layers that do the same with an operator of one name, in the order of the forward.
using Grouped = std::vector<std::pair<AdaptivePlan::Action, std::vector<std::int32_t>>>;

Grouped grouped(const AdaptivePlan::Rung& rung) {
  Grouped out;
  for (const AdaptivePlan::Action& a : rung.actions) {
    const auto same = std::ranges::find_if(out, [&](const auto& group) {
      return group.first.operator_name == a.operator_name && group.first.kind == a.kind;
    });
    (same == out.end() ? out.emplace_back(a, std::vector<std::int32_t>{}) : *same)
        .second.push_back(a.layer);
  }
  return out;
}

std::vector<AdaptivePlan::Action> read_actions(JsonReader& in) {
  std::vector<AdaptivePlan::Action> out;
  in.objects("actions", [&](JsonReader& action) {
    AdaptivePlan::Action a;
    a.operator_name = action.string("operator");
    const std::string kind = action.choice("action", {"recompute", "offload", "quantize"});
    for (const ActionKind k : kKinds) {
      if (kind == action_name(k)) a.kind = k;
    }
    const nlohmann::json& layers = action.raw("layers");
    if (!layers.is_array()) {
      action.violate("layers", layers.dump(), "an array of layers");
      return;
    }
    for (const nlohmann::json& layer : layers) {
      if (!layer.is_number_integer()) {
        action.violate("layers", layer.dump(), "a layer's number");
        continue;
      }
      a.layer = layer.get<std::int32_t>();
      out.push_back(a);
    }
  });
  return out;
}

AdaptivePlan::Stage read_stage(JsonReader& in) {
  AdaptivePlan::Stage stage;
  stage.headroom_bytes = in.integer("headroom_bytes", {.low = 0});
  stage.run_ahead_bytes = in.integer("run_ahead_bytes", {0, stage.headroom_bytes});
  in.objects("rungs", [&](JsonReader& rung) {
    AdaptivePlan::Rung& r = stage.rungs.emplace_back();
    r.held_bytes = rung.integer("held_bytes", {.low = 0});
    r.exposed_ns = rung.integer("exposed_ns", {.low = 0});
    r.actions = read_actions(rung);
  });
  if (stage.rungs.empty()) in.violate("rungs", "[]", "one rung or more");
  return stage;
}

}  // namespace

const char* action_name(ActionKind kind) {
  switch (kind) {
    case ActionKind::kSave:
      return "save";
    case ActionKind::kRecompute:
      return "recompute";
    case ActionKind::kOffload:
      return "offload";
    case ActionKind::kQuantize:
      return "quantize";
  }
  throw std::logic_error("an action without a name");
}

std::int64_t AdaptivePlan::tightest_stage() const {
  return std::ranges::min_element(stages, {}, &Stage::headroom_bytes) - stages.begin();
}

std::int64_t AdaptivePlan::least_headroom_bytes() const {
  return stages[static_cast<std::size_t>(tightest_stage())].headroom_bytes;
}

AdaptivePlan::Rung named_rung(const ActionCatalogue& catalogue, const LadderRung& rung,
                              std::int64_t balanced_rows) {
  AdaptivePlan::Rung out;
  out.held_bytes = held_by(rung, catalogue, balanced_rows);
  out.exposed_ns = rung.exposed_ns;
  for (std::size_t e = 0; e < catalogue.entries.size(); ++e) {
    const CatalogueEntry& entry = catalogue.entries[e];
    if (rung.choice[e] == 0) continue;
    out.actions.push_back(
        {entry.name, entry.layer, entry.actions[static_cast<std::size_t>(rung.choice[e])].kind});
  }
  return out;
}

std::vector<LadderRung> ladder_of(const AdaptivePlan& plan, std::size_t stage,
                                  const ActionCatalogue& catalogue) {
  std::map<std::pair<std::string, std::int32_t>, std::size_t> entries;
  std::set<std::string> names;
  for (std::size_t e = 0; e < catalogue.entries.size(); ++e) {
    entries.emplace(std::pair(catalogue.entries[e].name, catalogue.entries[e].layer), e);
    names.insert(catalogue.entries[e].name);
  }
  std::vector<Violation> violations;
  std::vector<LadderRung> out;
  for (const AdaptivePlan::Rung& rung : plan.stages[stage].rungs) {
    const std::string place = "/policy/stages/" + std::to_string(stage) + "/rungs/" +
                              std::to_string(&rung - plan.stages[stage].rungs.data());
    LadderRung& resolved = out.emplace_back();
    resolved.exposed_ns = rung.exposed_ns;
    resolved.choice.assign(catalogue.entries.size(), 0);
    for (const AdaptivePlan::Action& a : rung.actions) {
      const std::string found = a.operator_name + " of layer " + std::to_string(a.layer);
      const auto it = entries.find({a.operator_name, a.layer});
      if (it == entries.end()) {
        const std::string close = nearest(a.operator_name, {names.begin(), names.end()});
        violations.push_back(
            {plan.file, place, found,
             "an operator of this stage" + (close.empty() || close == a.operator_name
                                                ? std::string()
                                                : ", such as " + close)});
        continue;
      }
      const std::vector<CataloguedAction>& actions = catalogue.entries[it->second].actions;
      const auto action = std::ranges::find(actions, a.kind, &CataloguedAction::kind);
      if (action == actions.end()) {
        violations.push_back({plan.file, place, std::string(action_name(a.kind)) + " of " + found,
                              "an action that is legal there"});
        continue;
      }
      resolved.choice[it->second] = static_cast<std::int32_t>(action - actions.begin());
    }
  }
  throw_if_any(violations);
  return out;
}

nlohmann::ordered_json to_json(const AdaptivePlan& plan) {
  nlohmann::ordered_json out = {{"kind", "adaptive"}, {"rows_bound", plan.rows_bound}};
  for (const AdaptivePlan::Stage& stage : plan.stages) {
    nlohmann::ordered_json& to = out["stages"].emplace_back();
    to["headroom_bytes"] = stage.headroom_bytes;
    to["run_ahead_bytes"] = stage.run_ahead_bytes;
    for (const AdaptivePlan::Rung& rung : stage.rungs) {
      nlohmann::ordered_json actions = nlohmann::ordered_json::array();
      for (const auto& [action, layers] : grouped(rung)) {
        actions.push_back({{"operator", action.operator_name},
                           {"action", action_name(action.kind)},
                           {"layers", layers}});
      }
      to["rungs"].push_back({{"held_bytes", rung.held_bytes},
                             {"exposed_ns", rung.exposed_ns},
                             {"actions", std::move(actions)}});
    }
  }
  return out;
}

AdaptivePlan read_adaptive_plan(const std::filesystem::path& path) {
  const nlohmann::json json = load_json(path);
  std::vector<Violation> violations;
  AdaptivePlan plan;
  plan.file = path.string();
  JsonReader in(json, plan.file, "", violations);
  in.integer("schema_version", {.low = 1, .high = 1});
  in.object("policy", [&](JsonReader& policy) {
    policy.choice("kind", {"adaptive"});
    plan.rows_bound = policy.number("rows_bound", {.low = 1});
    policy.objects("stages", [&](JsonReader& stage) { plan.stages.push_back(read_stage(stage)); });
  });
  // The rest of the file is for people: what was predicted, and on what routing it was tried.
  throw_if_any(violations);
  return plan;
}

}  // namespace tidemark
