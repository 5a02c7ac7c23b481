#include "planner/check_plan.h"

#include <algorithm>

namespace tidemark {
namespace {

// Sums the amounts of a lane's actions.
template <class Amount>
std::int64_t sum(const ProvisionProblem& problem, std::span<const std::int32_t> counts,
                 Amount amount) {
  std::int64_t total = 0;
  std::size_t i = 0;
  for (const StorageClass& c : problem.classes) {
    for (const StorageAction& action : c.actions) total += counts[i++] * amount(action);
  }
  return total;
}

std::string number(std::int64_t n) { return std::to_string(n); }

// How late the copies of one direction are at worst.
template <class Amount, class Deadline>
std::int64_t lateness(const ProvisionProblem& problem, std::span<const std::int32_t> counts,
                      const std::vector<std::int64_t>& capacity, Amount amount, Deadline deadline) {
  std::int64_t late = 0;
  for (std::size_t d = 0; d < capacity.size(); ++d) {
    const std::int64_t due = sum(problem, counts, [&](const StorageAction& a) {
      return deadline(a) <= static_cast<std::int32_t>(d) ? amount(a) : 0;
    });
    late = std::max(late, due - capacity[d]);
  }
  return late;
}

std::int64_t exposed_ps(const ProvisionProblem& problem, std::int64_t rows,
                        std::span<const std::int32_t> counts) {
  const std::int64_t compute =
      sum(problem, counts, [&](const StorageAction& a) { return a.compute_ps.at(rows); });
  const std::int64_t exposed =
      sum(problem, counts, [&](const StorageAction& a) { return a.exposed_ps.at(rows); });
  return exposed + std::max<std::int64_t>(0, compute - problem.compute_slack_ps) +
         lateness(
             problem, counts, problem.out_capacity_ps,
             [&](const StorageAction& a) { return a.out_ps.at(rows); },
             [](const StorageAction& a) { return a.out_deadline; }) +
         lateness(
             problem, counts, problem.in_capacity_ps,
             [&](const StorageAction& a) { return a.in_ps.at(rows); },
             [](const StorageAction& a) { return a.in_deadline; });
}

}  // namespace

std::vector<std::string> check_plan(const ProvisionProblem& problem, const SolveResult& result) {
  std::vector<std::string> wrong;
  const std::size_t actions = num_actions(problem);
  if (result.choice.size() != problem.lanes.size()) {
    return {number(std::ssize(result.choice)) + " choices for " +
            number(std::ssize(problem.lanes)) + " lanes"};
  }
  std::int64_t slowest_ps = 0;
  for (std::size_t l = 0; l < problem.lanes.size(); ++l) {
    const ProvisionLane& lane = problem.lanes[l];
    const std::string where = "lane " + number(static_cast<std::int64_t>(l)) + ": ";
    const auto end = (static_cast<std::size_t>(result.choice[l]) + 1) * actions;
    if (result.choice[l] < 0 || end > result.counts.size()) {
      wrong.push_back(where + "no choice");
      continue;
    }
    const std::span<const std::int32_t> counts = result.counts_of(l, actions);
    std::size_t i = 0;
    std::vector<std::size_t> first;
    for (const StorageClass& c : problem.classes) {
      first.push_back(i);
      std::int64_t taken = 0;
      for (const StorageAction& action : c.actions) {
        if (counts[i] < 0) wrong.push_back(where + c.name + " takes an action a negative number");
        if (action.collective && counts[i] != result.counts_of(0, actions)[i]) {
          wrong.push_back(where + c.name + " takes a collective action " + number(counts[i]) +
                          " times, lane 0 " + number(result.counts_of(0, actions)[i]) + " times");
        }
        taken += counts[i++];
      }
      if (taken != c.count) {
        wrong.push_back(where + number(taken) + " actions for " + number(c.count) +
                        " storages of " + c.name);
      }
    }
    for (std::size_t t = 0; t < problem.floor.size(); ++t) {
      const std::int64_t held =
          problem.floor[t].at(lane.rows) +
          sum(problem, counts, [&](const StorageAction& a) { return a.held[t].at(lane.rows); });
      if (held > lane.budget[t]) {
        wrong.push_back(where + number(held - lane.budget[t]) +
                        " bytes over the budget at moment " + number(static_cast<std::int64_t>(t)));
      }
    }
    const std::int64_t host =
        sum(problem, counts, [&](const StorageAction& a) { return a.host_bytes.at(lane.rows); });
    if (host > lane.host_budget) {
      wrong.push_back(where + number(host - lane.host_budget) + " bytes over the host's");
    }
    for (std::size_t k = 0; k < problem.rules.size(); ++k) {
      std::int64_t taken = 0;
      for (const ActionRef& ref : problem.rules[k].actions) {
        taken += counts[first[static_cast<std::size_t>(ref.storage_class)] +
                        static_cast<std::size_t>(ref.action)];
      }
      if (taken > problem.rules[k].count) {
        wrong.push_back(where + "rule " + number(static_cast<std::int64_t>(k)) + " allows " +
                        number(problem.rules[k].count) + ", not " + number(taken));
      }
    }
    slowest_ps = std::max(slowest_ps, exposed_ps(problem, lane.rows, counts));
  }
  const std::int64_t slowest_ns = slowest_ps / 1000 + (slowest_ps % 1000 != 0 ? 1 : 0);
  if (slowest_ns != result.objective_ns) {
    wrong.push_back("the objective is " + number(slowest_ns) + " ns, not " +
                    number(result.objective_ns));
  }
  if (result.bound_ns > result.objective_ns) {
    wrong.push_back("the bound " + number(result.bound_ns) + " ns is above the objective");
  }
  if (result.status == SolveStatus::kOptimal && result.bound_ns != result.objective_ns) {
    wrong.push_back("optimal, but the bound is " + number(result.bound_ns) + " ns");
  }
  return wrong;
}

}  // namespace tidemark
