#include "planner/plan_summary.h"

#include <algorithm>
#include <cstddef>

namespace tidemark {
namespace {

// [entry]: the number of its operator's name, by first appearance.
std::vector<std::size_t> numbers_of_names(const ActionCatalogue& catalogue) {
  std::vector<std::string> names;
  std::vector<std::size_t> out;
  for (const CatalogueEntry& entry : catalogue.entries) {
    const auto it = std::ranges::find(names, entry.name);
    out.push_back(static_cast<std::size_t>(it - names.begin()));
    if (it == names.end()) names.push_back(entry.name);
  }
  return out;
}

}  // namespace

std::vector<OperatorSummary> summarize_operators(const AdaptiveRun::Stage& stage,
                                                 std::int64_t balanced_rows) {
  const std::vector<std::size_t> number = numbers_of_names(stage.catalogue);
  std::vector<OperatorSummary> out;
  for (std::size_t e = 0; e < number.size(); ++e) {
    const CatalogueEntry& entry = stage.catalogue.entries[e];
    if (number[e] == out.size()) out.emplace_back().name = entry.name;
    OperatorSummary& summary = out[number[e]];
    ++summary.layers;
    summary.bytes += entry.kept.bytes.at(balanced_rows);
    for (const CataloguedAction& action : entry.actions) {
      if (action.kind == ActionKind::kRecompute) {
        summary.recompute_ns += action.compute_ps.at(balanced_rows) / kPsPerNs;
      }
      if (action.kind == ActionKind::kOffload) {
        summary.copy_ns += action.out_ps.at(balanced_rows) / kPsPerNs;
      }
    }
    for (const Refusal& refusal : entry.refused) {
      const bool known = std::ranges::any_of(summary.refused, [&](const Refusal& r) {
        return r.kind == refusal.kind && r.reason == refusal.reason;
      });
      if (!known) summary.refused.push_back(refusal);
    }
  }
  return out;
}

std::vector<std::vector<double>> action_shares(const AdaptiveRun::Stage& stage,
                                               const StageDecisions& decisions,
                                               std::int32_t microbatches) {
  const std::vector<std::size_t> number = numbers_of_names(stage.catalogue);
  const std::size_t operators =
      number.empty() ? 0 : *std::max_element(number.begin(), number.end()) + 1;
  std::vector<std::vector<double>> shares(operators, std::vector<double>(kNumActionKinds, 0));
  std::vector<double> layers(operators, 0);
  for (const std::size_t n : number) ++layers[n];
  for (std::size_t a = 0; a < stage.actions.size(); ++a) {
    const OptionalAction& action = stage.actions[a];
    const auto entry = static_cast<std::size_t>(action.entry);
    const ActionKind kind =
        stage.catalogue.entries[entry].actions[static_cast<std::size_t>(action.action)].kind;
    double& share = shares[number[entry]][static_cast<std::size_t>(kind)];
    for (std::int32_t mb = 0; mb < microbatches; ++mb) {
      if (decisions.takes(mb, static_cast<std::int32_t>(a))) {
        share += 1 / (layers[number[entry]] * static_cast<double>(microbatches));
      }
    }
  }
  for (std::vector<double>& of : shares) {
    of[static_cast<std::size_t>(ActionKind::kSave)] = 1 - (of[1] + of[2] + of[3]);
  }
  return shares;
}

std::int64_t pinned_host_bytes(const AdaptiveRun::Stage& stage, const StageDecisions& decisions,
                               std::int32_t microbatches, std::int32_t in_flight,
                               std::int64_t rows) {
  std::int64_t most = 0;
  for (std::int32_t mb = 0; mb < microbatches; ++mb) {
    std::int64_t bytes = 0;
    for (std::size_t a = 0; a < stage.actions.size(); ++a) {
      if (!decisions.takes(mb, static_cast<std::int32_t>(a))) continue;
      const OptionalAction& action = stage.actions[a];
      bytes += stage.catalogue.entries[static_cast<std::size_t>(action.entry)]
                   .actions[static_cast<std::size_t>(action.action)]
                   .host_bytes.at(rows);
    }
    most = std::max(most, bytes);
  }
  return most * in_flight;
}

}  // namespace tidemark
