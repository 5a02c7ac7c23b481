#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "planner/check_order.h"
#include "planner/interleaver.h"
#include "tools/claims/claim_cases.h"
#include "tools/claims/claim_kinds.h"
#include "tools/claims/claim_lines.h"
#include "tools/quantity_text.h"

namespace tidemark::claims {

// An order of a slot's operators, layer after layer, replayed from their times; beside it the order
// that the interleaver chooses.
ClaimCheck slot_order(JsonReader& claim, const fs::path&) {
  struct Case {
    std::string what;
    std::int64_t measured_ns = 1;
    SlotProblem problem;
    std::vector<std::int32_t> order;
  };
  struct LayerOperator {
    std::string name;
    SlotOperator work;
    std::string chain;  // "": floating
    std::string after, after_previous, before;
  };
  double tolerance = 0;
  claim.object("tolerance",
               [&](JsonReader& in) { tolerance = in.number("max_percent", kPercent); });
  auto cases = read_cases<Case>(claim, [&](JsonReader& in) {
    Case c;
    c.what = in.string("what");
    c.measured_ns = in.integer("measured_ns", {1, std::int64_t{1} << 50});
    const auto layers = static_cast<std::int32_t>(in.integer("layers", {1, 64}));
    std::vector<LayerOperator> operators;
    in.objects("operators", [&](JsonReader& op) {
      operators.push_back({op.string("name"),
                           {static_cast<std::int32_t>(op.integer("stream", {0, 63})),
                            op.integer("duration_ns", {0, std::int64_t{1} << 50})},
                           op.optional_string("chain").value_or(""),
                           op.optional_string("after").value_or(""),
                           op.optional_string("after_previous").value_or(""),
                           op.optional_string("before").value_or("")});
    });
    // Where each operator of a layer is: its chain and place in the layer, or its place there among
    // the floating ones.
    std::map<std::string, ChainPoint> place;
    std::vector<std::int32_t> length;  // [chain]: operators a layer
    std::int32_t num_floating = 0;
    for (const LayerOperator& op : operators) {
      auto chain = std::find_if(c.problem.chains.begin(), c.problem.chains.end(),
                                [&](const Chain& other) { return other.name == op.chain; });
      if (op.chain.empty()) {
        place[op.name] = {-1, num_floating++};
        continue;
      }
      if (chain == c.problem.chains.end()) {
        c.problem.chains.push_back({op.chain, {}});
        length.push_back(0);
        chain = c.problem.chains.end() - 1;
      }
      const auto number = chain - c.problem.chains.begin();
      place[op.name] = {static_cast<std::int32_t>(number),
                        length[static_cast<std::size_t>(number)]++};
    }
    std::vector<std::string> layer_order;
    for (const nlohmann::json& name : in.raw("order")) {
      if (name.is_string()) layer_order.push_back(name.get<std::string>());
    }
    bool known = true;
    const auto check = [&](const char* key, const std::string& name) {
      if (name.empty() || place.contains(name)) return;
      in.violate(key, "\"" + name + "\"", "the name of an operator");
      known = false;
    };
    for (const std::string& name : layer_order) check("order", name);
    for (const LayerOperator& op : operators) {
      for (const std::string& name : {op.after, op.after_previous, op.before}) {
        check("operators", name);
      }
    }
    if (!known) return c;
    const auto point = [&](const std::string& name, std::int32_t layer) {
      ChainPoint p = name.empty() || layer < 0 ? ChainPoint{} : place[name];
      if (p.exists()) p.position += layer * length[static_cast<std::size_t>(p.chain)];
      return p;
    };
    for (std::int32_t layer = 0; layer < layers; ++layer) {
      for (const LayerOperator& op : operators) {
        if (const ChainPoint p = place[op.name]; p.exists()) {
          c.problem.chains[static_cast<std::size_t>(p.chain)].operators.push_back(op.work);
          continue;
        }
        c.problem.floating.push_back(
            {op.work,
             op.after.empty() ? point(op.after_previous, layer - 1) : point(op.after, layer),
             point(op.before, layer)});
      }
    }
    SlotGraph graph;
    graph.assign(c.problem);
    for (std::int32_t layer = 0; layer < layers; ++layer) {
      for (const std::string& name : layer_order) {
        const ChainPoint p = place[name];
        c.order.push_back(p.exists()
                              ? graph.at(point(name, layer))
                              : graph.chain_begin.back() + layer * num_floating + p.position);
      }
    }
    return c;
  });
  return [=, cases = std::move(cases)] {
    std::vector<ClaimLine> lines;
    for (const Case& c : cases) {
      const std::int64_t theirs = order_makespan(c.problem, c.order);
      lines.push_back(percent_line(
          c.what + ": their order", c.measured_ns, theirs,
          percent_off(static_cast<double>(theirs), static_cast<double>(c.measured_ns)), tolerance));
      StreamOrder replayed{c.order, theirs, 0, SolveStatus::kFeasible, 0};
      const std::vector<std::string> wrong = check_order(c.problem, replayed);
      lines.push_back({"  is legal", "yes", wrong.empty() ? "yes" : wrong.front(), std::nullopt,
                       wrong.empty()});
      const StreamOrder ours = interleave(c.problem, {});
      lines.push_back({"  our order", ">= " + grouped_text(ours.bound_ns), ours.makespan_ns,
                       std::nullopt,
                       ours.makespan_ns <= theirs && check_order(c.problem, ours).empty()});
    }
    return lines;
  };
}

}  // namespace tidemark::claims
