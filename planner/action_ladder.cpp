#include "planner/action_ladder.h"

#include <algorithm>
#include <limits>

#include "planner/greedy_ladder.h"
#include "planner/provision.h"

namespace tidemark {
namespace {

// Of a class: what its storages hold at most and at least, at so many rows.
struct Extent {
  std::int64_t most = 0;
  std::int64_t least = 0;
};

Extent extent(const std::vector<StorageClass>& classes, std::int64_t rows) {
  Extent sum;
  for (const StorageClass& c : classes) {
    std::int64_t least = std::numeric_limits<std::int64_t>::max();
    for (const StorageAction& a : c.actions) least = std::min(least, a.held[0].at(rows));
    sum.most += c.count * c.actions[0].held[0].at(rows);
    sum.least += c.count * least;
  }
  return sum;
}

// Of a class's storages the first of the forward give up most: their copies have the rest of the
// forward to leave in, and come back last. What is saved is saved at the end.
std::vector<std::int32_t> choice_of(const CatalogueClasses& classes,
                                    std::span<const std::int32_t> counts) {
  std::vector<std::vector<std::int32_t>> left;  // [class][action]
  std::size_t next = 0;
  for (const StorageClass& c : classes.classes) {
    left.emplace_back(counts.begin() + static_cast<std::ptrdiff_t>(next),
                      counts.begin() + static_cast<std::ptrdiff_t>(next + c.actions.size()));
    next += c.actions.size();
  }
  std::vector<std::int32_t> choice;
  for (const std::int32_t c : classes.class_of) {
    std::vector<std::int32_t>& of_class = left[static_cast<std::size_t>(c)];
    auto action = std::ssize(of_class) - 1;
    while (of_class[static_cast<std::size_t>(action)] == 0) --action;
    --of_class[static_cast<std::size_t>(action)];
    choice.push_back(static_cast<std::int32_t>(action));
  }
  return choice;
}

}  // namespace

Size held(const CatalogueEntry& entry, std::int32_t action) {
  return entry.kept.bytes + -1 * entry.actions[static_cast<std::size_t>(action)].freed;
}

std::int64_t held_by(const LadderRung& rung, const ActionCatalogue& catalogue, std::int64_t rows) {
  std::int64_t bytes = 0;
  for (std::size_t e = 0; e < catalogue.entries.size(); ++e) {
    bytes += held(catalogue.entries[e], rung.choice[e]).at(rows);
  }
  return bytes;
}

std::vector<LadderRung> build_ladder(const ActionCatalogue& catalogue,
                                     const LadderOptions& options) {
  const CatalogueClasses classes = storage_classes(catalogue, 1);
  ProvisionProblem problem;
  problem.classes = classes.classes;
  problem.floor = {Size{}};
  for (StorageClass& c : problem.classes) {
    for (StorageAction& a : c.actions) {
      a.exposed_ps = exposed_in_fill(a.compute_ps, options);
      a.compute_ps = a.compute_ps + -1 * a.exposed_ps;
    }
  }
  problem.compute_slack_ps = slack_in_steady_state(options);
  problem.out_capacity_ps = {options.period_ns * kPsPerNs};
  problem.in_capacity_ps = problem.out_capacity_ps;
  problem.lanes.resize(1);
  problem.lanes[0].rows = options.balanced_rows;
  problem.lanes[0].host_budget = options.host_bytes;
  const Extent all = extent(classes.classes, options.balanced_rows);
  const std::vector<LadderRung> greedy = build_greedy_ladder(catalogue, options);
  ProvisionWorkspace workspace;
  std::vector<LadderRung> rungs;
  LadderRung everything;
  everything.choice.assign(catalogue.entries.size(), 0);
  rungs.push_back(std::move(everything));
  for (std::int64_t r = 1; r < options.rungs; ++r) {
    problem.lanes[0].budget[0] = all.most - (all.most - all.least) * r / (options.rungs - 1);
    // The cheapest plan of a larger budget, where it fits.
    if (held_by(rungs.back(), catalogue, options.balanced_rows) <= problem.lanes[0].budget[0]) {
      continue;
    }
    const SolveResult result = provision(problem, WorkLimit{}, workspace);
    if (!result.has_plan()) continue;
    LadderRung rung{choice_of(classes, result.counts_of(0, num_actions(problem))),
                    result.objective_ns};
    if (result.status != SolveStatus::kOptimal) {
      const std::int64_t budget = problem.lanes[0].budget[0];
      const auto other = std::ranges::find_if(greedy, [&](const LadderRung& g) {
        return held_by(g, catalogue, options.balanced_rows) <= budget;
      });
      if (other != greedy.end() && other->exposed_ns < rung.exposed_ns) rung = *other;
    }
    rungs.push_back(std::move(rung));
  }
  return rungs;
}

}  // namespace tidemark
