#include "tests/support/provision_oracle.h"

#include <algorithm>
#include <map>
#include <vector>

namespace tidemark {
namespace {

// Of one lane and one choice.
struct Tally {
  std::int64_t held[kMaxMoments] = {};
  std::int64_t host = 0;
  std::int64_t exposed = 0;
  std::int64_t compute = 0;
  std::vector<std::int64_t> out;  // [deadline], of copies due exactly then
  std::vector<std::int64_t> in;
  std::vector<std::int64_t> rules;
  std::vector<std::int64_t> shared;  // counts of collective actions, in order
};

class Enumerator {
 public:
  Enumerator(const ProvisionProblem& problem, const ProvisionLane& lane)
      : problem_(problem), lane_(lane) {
    tally_.out.resize(problem.out_capacity_ps.size());
    tally_.in.resize(problem.in_capacity_ps.size());
    tally_.rules.resize(problem.rules.size());
    for (std::size_t t = 0; t < problem.floor.size(); ++t) {
      tally_.held[t] = problem.floor[t].at(lane.rows);
    }
  }

  // Cheapest legal objective (ps) by the counts of collective actions.
  std::map<std::vector<std::int64_t>, std::int64_t> run() && {
    visit(0, 0, problem_.classes[0].count);
    return std::move(cheapest_);
  }

 private:
  void visit(std::size_t c, std::size_t a, std::int64_t left) {
    const StorageClass& storages = problem_.classes[c];
    const StorageAction& action = storages.actions[a];
    const bool last = a + 1 == storages.actions.size();
    for (std::int64_t n = last ? left : 0; n <= left; ++n) {
      const Tally before = tally_;
      apply(static_cast<std::int32_t>(c), static_cast<std::int32_t>(a), action, n);
      if (!last) {
        visit(c, a + 1, left - n);
      } else if (c + 1 < problem_.classes.size()) {
        visit(c + 1, 0, problem_.classes[c + 1].count);
      } else {
        finish();
      }
      tally_ = before;
    }
  }

  void apply(std::int32_t c, std::int32_t a, const StorageAction& action, std::int64_t n) {
    for (std::size_t t = 0; t < problem_.floor.size(); ++t) {
      tally_.held[t] += n * action.held[t].at(lane_.rows);
    }
    tally_.host += n * action.host_bytes.at(lane_.rows);
    tally_.exposed += n * action.exposed_ps.at(lane_.rows);
    tally_.compute += n * action.compute_ps.at(lane_.rows);
    if (!tally_.out.empty()) {
      tally_.out[static_cast<std::size_t>(action.out_deadline)] += n * action.out_ps.at(lane_.rows);
    }
    if (!tally_.in.empty()) {
      tally_.in[static_cast<std::size_t>(action.in_deadline)] += n * action.in_ps.at(lane_.rows);
    }
    for (std::size_t k = 0; k < problem_.rules.size(); ++k) {
      for (const ActionRef& ref : problem_.rules[k].actions) {
        if (ref.storage_class == c && ref.action == a) tally_.rules[k] += n;
      }
    }
    if (action.collective) tally_.shared.push_back(n);
  }

  void finish() {
    for (std::size_t t = 0; t < problem_.floor.size(); ++t) {
      if (tally_.held[t] > lane_.budget[t]) return;
    }
    if (tally_.host > lane_.host_budget) return;
    for (std::size_t k = 0; k < problem_.rules.size(); ++k) {
      if (tally_.rules[k] > problem_.rules[k].count) return;
    }
    std::int64_t exposed = tally_.exposed;
    exposed += std::max<std::int64_t>(0, tally_.compute - problem_.compute_slack_ps);
    exposed += late(tally_.out, problem_.out_capacity_ps);
    exposed += late(tally_.in, problem_.in_capacity_ps);
    const auto [it, first] = cheapest_.try_emplace(tally_.shared, exposed);
    if (!first) it->second = std::min(it->second, exposed);
  }

  static std::int64_t late(const std::vector<std::int64_t>& due,
                           const std::vector<std::int64_t>& capacity) {
    std::int64_t worst = 0;
    std::int64_t so_far = 0;
    for (std::size_t d = 0; d < due.size(); ++d) {
      so_far += due[d];
      worst = std::max(worst, so_far - capacity[d]);
    }
    return worst;
  }

  const ProvisionProblem& problem_;
  const ProvisionLane& lane_;
  Tally tally_;
  std::map<std::vector<std::int64_t>, std::int64_t> cheapest_;
};

// Ways to give `count` storages one of `kinds` actions each.
double ways(std::int64_t count, std::size_t kinds) {
  double n = 1;
  for (std::size_t i = 1; i < kinds; ++i) {
    n *= static_cast<double>(count + static_cast<std::int64_t>(i)) / static_cast<double>(i);
  }
  return n;
}

}  // namespace

OracleAnswer solve_exhaustively(const ProvisionProblem& problem) {
  double choices = 1;
  for (const StorageClass& c : problem.classes) choices *= ways(c.count, c.actions.size());
  if (choices > (1 << 22)) return {true, std::nullopt};
  std::map<std::vector<std::int64_t>, std::int64_t> group;
  for (std::size_t l = 0; l < problem.lanes.size(); ++l) {
    auto lane = Enumerator(problem, problem.lanes[l]).run();
    if (l == 0) {
      group = std::move(lane);
      continue;
    }
    std::erase_if(group, [&](const auto& entry) { return !lane.contains(entry.first); });
    for (auto& [shared, exposed] : group) exposed = std::max(exposed, lane.at(shared));
  }
  OracleAnswer out;
  for (const auto& [shared, exposed] : group) {
    const std::int64_t ns = (exposed + 999) / 1000;
    if (!out.objective_ns || ns < *out.objective_ns) out.objective_ns = ns;
  }
  return out;
}

}  // namespace tidemark
