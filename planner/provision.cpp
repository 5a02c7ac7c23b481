#include "planner/provision.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <limits>
#include <utility>

#include "planner/lane_solver.h"

namespace tidemark {
namespace {

constexpr int kRounds = 4;

// A choice for each lane of the group.
struct GroupPlan {
  std::vector<std::int32_t> counts;  // [choice * num_actions + action]
  std::vector<std::int32_t> choice;  // [lane]
  std::int64_t objective_ns = 0;
};

}  // namespace

std::size_t num_actions(const ProvisionProblem& problem) {
  std::size_t sum = 0;
  for (const StorageClass& c : problem.classes) sum += c.actions.size();
  return sum;
}

// Everything as rows, see lane_solver.h: moments, host memory, rules; compute; deadlines out;
// deadlines in.
struct ProvisionWorkspace::Impl {
  SolveResult solve(const ProvisionProblem& problem, WorkLimit limit);

  void lay_out();
  bool fill(std::size_t lane, bool fixed);
  LaneOutcome solve_lane(std::size_t lane, bool fixed, std::int64_t cutoff_ns,
                         std::int64_t enough_ns = 0);
  void read_counts(std::int32_t* out) const;
  void add_up(const std::int32_t* counts);
  std::int64_t limit_of(std::size_t lane, std::size_t row) const;
  bool allows(std::size_t lane, std::int64_t objective_ns) const;
  std::size_t hottest_lane();
  SolveStatus solve_group();
  void share(const std::int32_t* counts);
  bool complete_group(std::int64_t hottest_ns, std::int64_t cutoff_ns);
  void keep();
  bool next_shared();
  Shortage find_shortage();

  const ProvisionProblem* problem = nullptr;
  std::size_t actions = 0;
  std::size_t rows = 0;
  std::size_t moments = 0;
  std::size_t resources = 0;
  // Rows of what is exposed in any case, compute, copies out and copies in.
  std::array<std::size_t, kNumCostGroups + 1> group_begin{};
  std::vector<Size> usage;                  // [action * rows + row]
  std::vector<std::int64_t> shared_limits;  // [row - moments - 1]: of every lane
  std::vector<std::int32_t> class_of;       // [action]
  std::vector<std::int32_t> collectives;    // actions
  std::vector<std::int32_t> shared;         // [action]: how many take it on all lanes; collectives
  std::vector<Size> totals;                 // [row]: of one choice

  LaneProblem lane_problem;
  std::vector<std::int32_t> global_action;  // [action of lane_problem]
  LaneSolver solver;
  bool fixed_shared = false;

  std::size_t hottest = 0;
  std::size_t failed = 0;         // the lane that could not follow the hottest
  std::vector<std::int32_t> own;  // [action]: what it would do alone
  std::int64_t extra = 0;         // bytes added to every budget
  std::int64_t nodes = 0;
  std::int64_t max_nodes = 0;
  bool complete = true;
  std::int64_t bound_ns = 0;
  GroupPlan trial, best;
};

void ProvisionWorkspace::Impl::lay_out() {
  moments = problem->floor.size();
  assert(!problem->lanes.empty() && moments > 0 && moments <= kMaxMoments);
  const std::size_t outs = problem->out_capacity_ps.size();
  const std::size_t ins = problem->in_capacity_ps.size();
  resources = moments + 1 + problem->rules.size();
  rows = resources + 2 + outs + ins;
  group_begin = {resources, resources + 1, resources + 2, resources + 2 + outs, rows};
  actions = num_actions(*problem);
  usage.assign(actions * rows, {});
  class_of.clear();
  collectives.clear();
  Size* row = usage.data();
  for (std::size_t c = 0; c < problem->classes.size(); ++c) {
    for (const StorageAction& action : problem->classes[c].actions) {
      if (action.collective) collectives.push_back(static_cast<std::int32_t>(class_of.size()));
      class_of.push_back(static_cast<std::int32_t>(c));
      std::copy(action.held, action.held + moments, row);
      row[moments] = action.host_bytes;
      row[resources] = action.exposed_ps;
      row[resources + 1] = action.compute_ps;
      for (auto d = static_cast<std::size_t>(action.out_deadline); d < outs; ++d) {
        row[resources + 2 + d] = action.out_ps;
      }
      for (auto d = static_cast<std::size_t>(action.in_deadline); d < ins; ++d) {
        row[resources + 2 + outs + d] = action.in_ps;
      }
      row += rows;
    }
  }
  for (std::size_t k = 0; k < problem->rules.size(); ++k) {
    for (const ActionRef& ref : problem->rules[k].actions) {
      const auto first = std::lower_bound(class_of.begin(), class_of.end(), ref.storage_class);
      const auto action = first - class_of.begin() + ref.action;
      usage[static_cast<std::size_t>(action) * rows + moments + 1 + k].fixed += 1;
    }
  }
  shared_limits.clear();
  for (const Rule& rule : problem->rules) shared_limits.push_back(rule.count);
  shared_limits.push_back(0);
  shared_limits.push_back(problem->compute_slack_ps);
  shared_limits.insert(shared_limits.end(), problem->out_capacity_ps.begin(),
                       problem->out_capacity_ps.end());
  shared_limits.insert(shared_limits.end(), problem->in_capacity_ps.begin(),
                       problem->in_capacity_ps.end());
  shared.assign(actions, 0);
  own.assign(actions, 0);
  totals.assign(rows, {});
}

std::int64_t ProvisionWorkspace::Impl::limit_of(std::size_t lane, std::size_t row) const {
  const ProvisionLane& l = problem->lanes[lane];
  if (row < moments) return l.budget[row] + extra - problem->floor[row].at(l.rows);
  return row == moments ? l.host_budget : shared_limits[row - moments - 1];
}

// The problem of one lane; `fixed`: with collective actions taken as `shared` says. Returns: false
// if that leaves storages without an action.
bool ProvisionWorkspace::Impl::fill(std::size_t lane, bool fixed) {
  LaneProblem& p = lane_problem;
  const std::int64_t tokens = problem->lanes[lane].rows;
  p.num_rows = static_cast<std::int32_t>(rows);
  std::ranges::transform(group_begin, p.group_begin,
                         [](std::size_t r) { return static_cast<std::int32_t>(r); });
  p.base.assign(rows, 0);
  p.limit.resize(rows);
  for (std::size_t r = 0; r < rows; ++r) p.limit[r] = static_cast<double>(limit_of(lane, r));
  p.usage.clear();
  p.count.clear();
  p.first_action.assign(1, 0);
  global_action.clear();
  for (std::size_t a = 0; a < actions; ++a) {
    const auto c = static_cast<std::size_t>(class_of[a]);
    if (a == 0 || class_of[a - 1] != class_of[a]) {
      p.count.push_back(static_cast<std::int32_t>(problem->classes[c].count));
      p.first_action.push_back(p.first_action.back());
    }
    const Size* row = usage.data() + a * rows;
    if (fixed &&
        std::binary_search(collectives.begin(), collectives.end(), static_cast<std::int32_t>(a))) {
      p.count.back() -= shared[a];
      for (std::size_t r = 0; r < rows; ++r) {
        p.base[r] += static_cast<double>(shared[a] * row[r].at(tokens));
      }
      continue;
    }
    ++p.first_action.back();
    global_action.push_back(static_cast<std::int32_t>(a));
    for (std::size_t r = 0; r < rows; ++r)
      p.usage.push_back(static_cast<double>(row[r].at(tokens)));
  }
  // Classes whose actions are all collective.
  for (std::size_t c = p.count.size(); c-- > 0;) {
    if (p.first_action[c] != p.first_action[c + 1]) continue;
    if (p.count[c] > 0) return false;
    p.count.erase(p.count.begin() + static_cast<std::ptrdiff_t>(c));
    p.first_action.erase(p.first_action.begin() + static_cast<std::ptrdiff_t>(c));
  }
  return true;
}

LaneOutcome ProvisionWorkspace::Impl::solve_lane(std::size_t lane, bool fixed,
                                                 std::int64_t cutoff_ns, std::int64_t enough_ns) {
  fixed_shared = fixed;
  if (!fill(lane, fixed)) {
    ++nodes;
    return {.complete = true};
  }
  // One lane may not use up what others need.
  const std::int64_t left = max_nodes - nodes;
  const LaneOutcome out = solver.solve(lane_problem, cutoff_ns, enough_ns,
                                       problem->lanes.size() == 1 ? left : left / 4);
  // The relaxation costs about as much as a node for each action.
  nodes += out.nodes + static_cast<std::int64_t>(actions);
  complete &= out.complete;
  return out;
}

// Of the lane just solved, by the problem's actions.
void ProvisionWorkspace::Impl::read_counts(std::int32_t* out) const {
  std::fill(out, out + actions, 0);
  if (fixed_shared) {
    for (std::int32_t a : collectives) out[a] = shared[static_cast<std::size_t>(a)];
  }
  const std::span<const std::int32_t> counts = solver.counts();
  for (std::size_t i = 0; i < global_action.size(); ++i) out[global_action[i]] = counts[i];
}

void ProvisionWorkspace::Impl::add_up(const std::int32_t* counts) {
  std::fill(totals.begin(), totals.end(), Size{});
  for (std::size_t a = 0; a < actions; ++a) {
    if (counts[a] == 0) continue;
    const Size* row = usage.data() + a * rows;
    for (std::size_t r = 0; r < rows; ++r) totals[r] = totals[r] + counts[a] * row[r];
  }
}

// Whether a lane may do what is added up in `totals` within the objective.
bool ProvisionWorkspace::Impl::allows(std::size_t lane, std::int64_t objective_ns) const {
  const std::int64_t tokens = problem->lanes[lane].rows;
  const auto excess = [&](std::size_t r) { return totals[r].at(tokens) - limit_of(lane, r); };
  for (std::size_t r = 0; r < resources; ++r) {
    if (excess(r) > 0) return false;
  }
  std::int64_t exposed = 0;
  for (std::size_t g = 0; g < kNumCostGroups; ++g) {
    std::int64_t most = 0;
    for (std::size_t r = group_begin[g]; r < group_begin[g + 1]; ++r) {
      most = std::max(most, excess(r));
    }
    exposed += most;
  }
  return exposed <= 1000 * objective_ns;
}

// The one that is shortest of memory if every storage takes its class's first action.
std::size_t ProvisionWorkspace::Impl::hottest_lane() {
  std::fill(totals.begin(), totals.end(), Size{});
  for (std::size_t a = 0; a < actions; ++a) {
    if (a > 0 && class_of[a - 1] == class_of[a]) continue;
    const std::int64_t n = problem->classes[static_cast<std::size_t>(class_of[a])].count;
    for (std::size_t t = 0; t < moments; ++t) totals[t] = totals[t] + n * usage[a * rows + t];
  }
  std::size_t out = 0;
  std::int64_t shortest = std::numeric_limits<std::int64_t>::min();
  for (std::size_t lane = 0; lane < problem->lanes.size(); ++lane) {
    for (std::size_t t = 0; t < moments; ++t) {
      const std::int64_t lacks = totals[t].at(problem->lanes[lane].rows) - limit_of(lane, t);
      if (lacks > shortest) {
        shortest = lacks;
        out = lane;
      }
    }
  }
  return out;
}

// Takes the collective actions as often as `counts` does.
void ProvisionWorkspace::Impl::share(const std::int32_t* counts) {
  for (std::int32_t a : collectives) shared[static_cast<std::size_t>(a)] = counts[a];
}

// Choices of the other lanes beside the hottest's, which is trial's choice 0 and costs
// `hottest_ns`. Returns: whether there is a plan below the cutoff.
bool ProvisionWorkspace::Impl::complete_group(std::int64_t hottest_ns, std::int64_t cutoff_ns) {
  trial.objective_ns = hottest_ns;
  trial.choice.assign(problem->lanes.size(), 0);
  add_up(trial.counts.data());
  for (std::size_t lane = 0; lane < problem->lanes.size(); ++lane) {
    if (lane == hottest) continue;
    if (allows(lane, trial.objective_ns)) continue;
    const LaneOutcome outcome = solve_lane(lane, true, cutoff_ns, trial.objective_ns);
    if (!outcome.found) {
      failed = lane;
      return false;
    }
    trial.objective_ns = std::max(trial.objective_ns, outcome.objective_ns);
    trial.choice[lane] = static_cast<std::int32_t>(trial.counts.size() / actions);
    trial.counts.resize(trial.counts.size() + actions);
    read_counts(trial.counts.data() + trial.counts.size() - actions);
  }
  return true;
}

void ProvisionWorkspace::Impl::keep() { std::swap(trial, best); }

// The next way to take the collective actions. Returns: false after the last.
bool ProvisionWorkspace::Impl::next_shared() {
  for (std::int32_t a : collectives) {
    const auto i = static_cast<std::size_t>(a);
    const auto c = static_cast<std::size_t>(class_of[i]);
    std::int64_t taken = 0;
    for (std::size_t b = 0; b < actions; ++b) {
      if (class_of[b] == class_of[i]) taken += shared[b];
    }
    if (taken < problem->classes[c].count) {
      ++shared[i];
      return true;
    }
    shared[i] = 0;
  }
  return false;
}

SolveStatus ProvisionWorkspace::Impl::solve_group() {
  nodes = 0;
  complete = true;
  bound_ns = 0;
  hottest = hottest_lane();
  const LaneOutcome alone = solve_lane(hottest, false, LaneSolver::kNoCutoff);
  bound_ns = alone.bound_ns;
  if (!alone.found) return alone.complete ? SolveStatus::kInfeasible : SolveStatus::kLimit;
  trial.counts.resize(actions);
  read_counts(trial.counts.data());
  share(trial.counts.data());
  bool found = complete_group(alone.objective_ns, LaneSolver::kNoCutoff);
  // What the lane wants that cannot follow.
  for (int round = 0; !found && round < kRounds; ++round) {
    if (!solve_lane(failed, false, LaneSolver::kNoCutoff).found) break;
    read_counts(own.data());
    share(own.data());
    const LaneOutcome hot = solve_lane(hottest, true, LaneSolver::kNoCutoff);
    if (!hot.found) break;
    trial.counts.resize(actions);
    read_counts(trial.counts.data());
    found = complete_group(hot.objective_ns, LaneSolver::kNoCutoff);
  }
  if (found) keep();
  if (!found || best.objective_ns > alone.objective_ns) {
    std::fill(shared.begin(), shared.end(), 0);
    do {
      const std::int64_t cutoff = found ? best.objective_ns : LaneSolver::kNoCutoff;
      const LaneOutcome hot = solve_lane(hottest, true, cutoff);
      if (hot.found) {
        trial.counts.resize(actions);
        read_counts(trial.counts.data());
        if (complete_group(hot.objective_ns, cutoff)) {
          keep();
          found = true;
        }
      }
      if (nodes >= max_nodes) complete = false;
    } while (nodes < max_nodes && !(found && best.objective_ns <= bound_ns) && next_shared());
  }
  if (!found) return complete ? SolveStatus::kInfeasible : SolveStatus::kLimit;
  if (complete || best.objective_ns <= bound_ns) {
    bound_ns = best.objective_ns;
    return SolveStatus::kOptimal;
  }
  return SolveStatus::kFeasible;
}

Shortage ProvisionWorkspace::Impl::find_shortage() {
  Shortage out;
  for (std::size_t lane = 0; lane < problem->lanes.size(); ++lane) {
    const std::int64_t tokens = problem->lanes[lane].rows;
    for (std::size_t t = 0; t < moments; ++t) {
      std::int64_t least = problem->floor[t].at(tokens);
      for (const StorageClass& c : problem->classes) {
        std::int64_t low = std::numeric_limits<std::int64_t>::max();
        for (const StorageAction& a : c.actions) low = std::min(low, a.held[t].at(tokens));
        least += c.count * low;
      }
      const std::int64_t lacks = least - problem->lanes[lane].budget[t];
      if (lacks > out.bytes_short) {
        out = {static_cast<std::int32_t>(lane), static_cast<std::int32_t>(t), lacks, least};
      }
    }
  }
  if (out.bytes_short > 0) return out;
  // Each alone can be met. The least that all budgets lack, by bisection.
  out.lane = static_cast<std::int32_t>(hottest);
  const auto enough = [&](std::int64_t bytes) {
    extra = bytes;
    const SolveStatus status = solve_group();
    return status == SolveStatus::kOptimal || status == SolveStatus::kFeasible;
  };
  std::int64_t low = 0;
  std::int64_t high = 1;
  while (high < (std::int64_t{1} << 44) && !enough(high)) {
    low = high;
    high *= 2;
  }
  if (!enough(high)) {
    out.bytes_short = -1;
  } else {
    while (high - low > 1) {
      const std::int64_t middle = low + (high - low) / 2;
      (enough(middle) ? high : low) = middle;
    }
    out.bytes_short = high;
  }
  extra = 0;
  return out;
}

SolveResult ProvisionWorkspace::Impl::solve(const ProvisionProblem& p, WorkLimit limit) {
  problem = &p;
  max_nodes = limit.nodes;
  extra = 0;
  lay_out();
  SolveResult out;
  out.status = solve_group();
  out.nodes = nodes;
  out.bound_ns = bound_ns;
  if (out.has_plan()) {
    out.counts = best.counts;
    out.choice = best.choice;
    out.objective_ns = best.objective_ns;
  } else if (out.status == SolveStatus::kInfeasible) {
    out.shortage = find_shortage();
  }
  return out;
}

ProvisionWorkspace::ProvisionWorkspace() : impl_(std::make_unique<Impl>()) {}
ProvisionWorkspace::~ProvisionWorkspace() = default;
ProvisionWorkspace::ProvisionWorkspace(ProvisionWorkspace&&) noexcept = default;
ProvisionWorkspace& ProvisionWorkspace::operator=(ProvisionWorkspace&&) noexcept = default;

SolveResult provision(const ProvisionProblem& problem, WorkLimit limit,
                      ProvisionWorkspace& workspace) {
  return workspace.impl_->solve(problem, limit);
}

}  // namespace tidemark
