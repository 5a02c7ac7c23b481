#include "planner/lane_solver.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace tidemark {
namespace {

constexpr double kUnit = 1000;       // picoseconds of a nanosecond
constexpr double kRounding = 1e-13;  // of sums of a few hundred doubles, relative

double round_up_to_unit(double x) { return std::ceil(x / kUnit) * kUnit; }

std::int64_t to_ns(double x) { return static_cast<std::int64_t>(std::ceil(x / kUnit)); }

}  // namespace

LaneOutcome LaneSolver::solve(const LaneProblem& problem, std::int64_t cutoff_ns,
                              std::int64_t enough_ns, std::int64_t max_nodes) {
  problem_ = &problem;
  enough_ = kUnit * static_cast<double>(enough_ns);
  nodes_ = 0;
  max_nodes_ = max_nodes;
  out_of_nodes_ = false;
  found_ = false;
  best_bound_ = 0;
  prepare();
  target_ = cutoff_ns == kNoCutoff ? worst_
                                   : std::min(worst_, kUnit * static_cast<double>(cutoff_ns - 1));
  if (fits_alone()) {
    const double bound = bound_root();
    if (!prunes(best_bound_)) search(bound);
  }
  LaneOutcome out;
  out.found = found_;
  out.complete = !out_of_nodes_;
  out.nodes = nodes_;
  out.objective_ns = to_ns(best_objective_);
  // The root's bound may end a hair above the truth.
  out.bound_ns =
      found_ && out.complete ? out.objective_ns : to_ns(std::max(0.0, best_bound_ - 0.5));
  return out;
}

// In rounds, each for plans up to four times as far above the bound as the round before: the first
// plan found is then near the optimum, and with such a target a search is short.
void LaneSolver::search(double bound) {
  for (double share = 1.0 / 16;; share *= 4) {
    const double wanted = target_;
    const double tried = std::min(wanted, std::round(best_bound_ + share * (wanted - best_bound_)));
    target_ = tried;
    find_core(bound);
    const double* decided = stack_.data() + stack_.size() - num_rows_;
    if (can_finish(0, decided)) branch_class(0, decided, bound);
    if (out_of_nodes_ || target_ < tried || tried == wanted) return;
    target_ = wanted;
    best_bound_ = tried;
  }
}

// Drops rows that cannot bind whatever is chosen.
void LaneSolver::prepare() {
  const LaneProblem& p = *problem_;
  const auto rows = static_cast<std::size_t>(p.num_rows);
  const auto num_actions = static_cast<std::size_t>(p.num_actions());
  // Most and least that the classes can use of each row.
  stack_.assign(2 * rows, 0);
  double* most = stack_.data();
  double* least = stack_.data() + rows;
  for (std::size_t r = 0; r < rows; ++r) most[r] = least[r] = p.base[r];
  for (std::int32_t c = 0; c < p.num_classes(); ++c) {
    const auto first = static_cast<std::size_t>(p.first_action[static_cast<std::size_t>(c)]);
    const auto last = static_cast<std::size_t>(p.first_action[static_cast<std::size_t>(c) + 1]);
    const double n = p.count[static_cast<std::size_t>(c)];
    for (std::size_t r = 0; r < rows; ++r) {
      double low = p.usage[first * rows + r];
      double high = low;
      for (std::size_t a = first + 1; a < last; ++a) {
        low = std::min(low, p.usage[a * rows + r]);
        high = std::max(high, p.usage[a * rows + r]);
      }
      most[r] += n * high;
      least[r] += n * low;
    }
  }
  base_.clear();
  limit_.clear();
  scale_.clear();
  worst_ = 0;
  num_rows_ = 0;
  pick_.clear();  // rows kept, until the classes are evaluated
  std::int32_t r = 0;
  for (int g = -1; g < kNumCostGroups; ++g) {
    if (g >= 0) group_begin_[g] = num_rows_;
    const std::int32_t end = p.group_begin[g + 1];
    double worst = 0;
    for (; r < end; ++r) {
      const auto i = static_cast<std::size_t>(r);
      if (most[i] <= p.limit[i]) continue;
      worst = std::max(worst, most[i] - p.limit[i]);
      base_.push_back(p.base[i]);
      limit_.push_back(p.limit[i]);
      scale_.push_back(std::max(1.0, most[i] - least[i]));
      pick_.push_back(r);
      ++num_rows_;
    }
    if (g >= 0) worst_ += worst;
  }
  group_begin_[kNumCostGroups] = num_rows_;
  const auto kept = static_cast<std::size_t>(num_rows_);
  usage_.resize(num_actions * kept);
  for (std::size_t a = 0; a < num_actions; ++a) {
    for (std::size_t k = 0; k < kept; ++k) {
      usage_[a * kept + k] = p.usage[a * rows + static_cast<std::size_t>(pick_[k])];
    }
  }
  // A resource's multiplier is in units of cost over resource.
  for (std::size_t k = 0; k < kept; ++k) {
    const bool resource = static_cast<std::int32_t>(k) < group_begin_[0];
    scale_[k] = resource ? std::max(1.0, worst_) / scale_[k] : 1;
  }
  y_.assign(kept, 0);
  const double unit = std::max(1.0, worst_);
  scaled_.resize(num_actions * kept);
  for (std::size_t a = 0; a < num_actions; ++a) {
    for (std::size_t k = 0; k < kept; ++k) {
      scaled_[a * kept + k] = usage_[a * kept + k] * scale_[k] / unit;
    }
  }
  used_.assign(kept, 0);
  reduced_.assign(num_actions, 0);
  change_.resize(num_actions);
  next_.resize(p.count.size());
  next_at_.resize(p.count.size());
  counts_.assign(num_actions, 0);
  best_.assign(num_actions, 0);
  pick_.assign(p.count.size(), 0);
}

// Infinite if a resource is short.
double LaneSolver::cost(const double* used) const {
  for (std::int32_t r = 0; r < group_begin_[0]; ++r) {
    if (used[r] > limit_[static_cast<std::size_t>(r)]) return kInfinity;
  }
  double sum = 0;
  std::int32_t r = group_begin_[0];
  for (int g = 1; g <= kNumCostGroups; ++g) {
    double worst = 0;
    for (; r < group_begin_[g]; ++r) {
      worst = std::max(worst, used[r] - limit_[static_cast<std::size_t>(r)]);
    }
    sum += worst;
  }
  return sum;
}

// Every resource can be met on its own.
bool LaneSolver::fits_alone() const {
  const LaneProblem& p = *problem_;
  for (std::int32_t r = 0; r < group_begin_[0]; ++r) {
    double least = base_[static_cast<std::size_t>(r)];
    for (std::size_t c = 0; c < p.count.size(); ++c) {
      double low = row_of(p.first_action[c])[r];
      for (std::int32_t a = p.first_action[c] + 1; a < p.first_action[c + 1]; ++a) {
        low = std::min(low, row_of(a)[r]);
      }
      least += p.count[c] * low;
    }
    if (least > limit_[static_cast<std::size_t>(r)]) return false;
  }
  return true;
}

// The bound at multipliers y_: sets reduced_ (y * usage), pick_ and used_.
double LaneSolver::evaluate() {
  const LaneProblem& p = *problem_;
  const auto rows = static_cast<std::size_t>(num_rows_);
  double bound = 0;
  double magnitude = 0;
  for (std::size_t r = 0; r < rows; ++r) {
    bound += y_[r] * (base_[r] - limit_[r]);
    magnitude += y_[r] * (std::abs(base_[r]) + std::abs(limit_[r]));
    used_[r] = base_[r];
  }
  for (std::size_t c = 0; c < p.count.size(); ++c) {
    double least = kInfinity;
    std::int32_t pick = 0;
    for (std::int32_t a = p.first_action[c]; a < p.first_action[c + 1]; ++a) {
      const double* row = row_of(a);
      double cost = 0;
      for (std::size_t r = 0; r < rows; ++r) cost += y_[r] * row[r];
      reduced_[static_cast<std::size_t>(a)] = cost;
      if (cost < least) {
        least = cost;
        pick = a;
      }
    }
    pick_[c] = pick;
    const double n = p.count[c];
    bound += n * least;
    magnitude += n * std::abs(least);
    const double* row = row_of(pick);
    for (std::size_t r = 0; r < rows; ++r) used_[r] += n * row[r];
  }
  rounding_ = kRounding * magnitude;
  return bound - rounding_;
}

// counts_ with used_ is a plan that is wanted.
void LaneSolver::accept() {
  found_ = true;
  best_objective_ = cost(used_.data());
  best_ = counts_;
  target_ = best_objective_ <= enough_ ? -2 * kUnit : round_up_to_unit(best_objective_) - kUnit;
}

// Multipliers y_ and the bound they give, whose greatest is kept; and the linear relaxation's
// optimum, rounded and repaired, as a first plan.
//
// If the relaxation costs nothing, its multipliers are zero and tell no action from another. Then
// they come from the one that minimizes the greatest excess of a cost row, here negative. If its
// rounding cannot be repaired, that of the one which leaves the most of the resources may be.
double LaneSolver::bound_root() {
  ascend(Relaxation::kCost);
  round_relaxation();
  relaxed_ = counts_;
  set_multipliers();
  double bound = evaluate();
  best_bound_ = std::max(0.0, bound);
  if (prunes(best_bound_)) return bound;
  repair();
  if (group_begin_[0] < num_rows_ && !prunes(best_bound_) &&
      std::all_of(y_.begin() + group_begin_[0], y_.end(), [](double y) { return y < kFree; })) {
    ascend(Relaxation::kExcess);
    round_relaxation();
    relaxed_ = counts_;
    set_multipliers();
    bound = evaluate();
    repair();
  }
  if (!found_ && group_begin_[0] > 0) {
    ascend(Relaxation::kRoom);
    round_relaxation();
    evaluate();
    repair();
  }
  return bound;
}

void LaneSolver::move(std::int32_t from, std::int32_t to, std::int32_t count) {
  counts_[static_cast<std::size_t>(from)] -= count;
  counts_[static_cast<std::size_t>(to)] += count;
  for (std::int32_t r = 0; r < num_rows_; ++r) {
    used_[static_cast<std::size_t>(r)] += count * (row_of(to)[r] - row_of(from)[r]);
  }
}

// From counts_ to a plan: while a resource is short, the move that costs least for
// what it gives back.
void LaneSolver::repair() {
  const LaneProblem& p = *problem_;
  std::copy(base_.begin(), base_.end(), used_.begin());
  for (std::size_t a = 0; a < counts_.size(); ++a) {
    if (counts_[a] == 0) continue;
    const double* row = row_of(static_cast<std::int32_t>(a));
    for (std::size_t r = 0; r < used_.size(); ++r) used_[r] += counts_[a] * row[r];
  }
  for (std::int32_t moves = 0; moves < 4 * p.num_classes(); ++moves) {
    std::int32_t shortest = -1;
    double violation = 0;
    for (std::int32_t r = 0; r < group_begin_[0]; ++r) {
      const auto i = static_cast<std::size_t>(r);
      const double v = (used_[i] - limit_[i]) * scale_[i];
      if (v > violation) {
        violation = v;
        shortest = r;
      }
    }
    if (shortest < 0) break;
    double least = kInfinity;
    std::int32_t from = -1;
    std::int32_t to = -1;
    for (std::size_t c = 0; c < p.count.size(); ++c) {
      for (std::int32_t a = p.first_action[c]; a < p.first_action[c + 1]; ++a) {
        if (counts_[static_cast<std::size_t>(a)] == 0) continue;
        for (std::int32_t b = p.first_action[c]; b < p.first_action[c + 1]; ++b) {
          const double freed = row_of(a)[shortest] - row_of(b)[shortest];
          if (freed <= 0) continue;
          const double price =
              (reduced_[static_cast<std::size_t>(b)] - reduced_[static_cast<std::size_t>(a)]) /
              freed;
          if (price < least) {
            least = price;
            from = a;
            to = b;
          }
        }
      }
    }
    if (from < 0) return;
    const double freed = row_of(from)[shortest] - row_of(to)[shortest];
    const auto s = static_cast<std::size_t>(shortest);
    const double needed = std::ceil((used_[s] - limit_[s]) / freed);
    move(from, to,
         static_cast<std::int32_t>(
             std::min<double>(needed, counts_[static_cast<std::size_t>(from)])));
  }
  improve();
  if (cost(used_.data()) <= target_) accept();
}

// Whether taking `to` instead of `from` uses less of any cost row.
bool LaneSolver::saves_cost(std::int32_t from, std::int32_t to) const {
  for (std::int32_t r = group_begin_[0]; r < num_rows_; ++r) {
    if (row_of(to)[r] < row_of(from)[r]) return true;
  }
  return false;
}

// Moves of one storage that keep the plan one and make it cheaper, in order, until none is left or
// a pass's worth has been made.
void LaneSolver::improve() {
  const LaneProblem& p = *problem_;
  double current = cost(used_.data());
  bool better = current < kInfinity;
  for (int pass = 0; pass < 3 && better; ++pass) {
    better = false;
    for (std::size_t c = 0; c < p.count.size() && current > best_bound_ + kUnit; ++c) {
      for (std::int32_t a = p.first_action[c]; a < p.first_action[c + 1]; ++a) {
        for (std::int32_t b = p.first_action[c]; b < p.first_action[c + 1]; ++b) {
          if (counts_[static_cast<std::size_t>(a)] == 0) break;
          if (!saves_cost(a, b)) continue;
          while (counts_[static_cast<std::size_t>(a)] > 0) {
            move(a, b, 1);
            const double changed = cost(used_.data());
            if (changed < current) {
              current = changed;
              better = true;
              continue;
            }
            move(b, a, 1);
            break;
          }
        }
      }
    }
  }
}

// What is left to decide, given the root's bound: of a class, the actions that a wanted plan may
// take, the cheapest first; of the classes, those with several such actions, first those whose two
// cheapest differ most, so that small ones fill up at the end. The others take their cheapest.
void LaneSolver::find_core(double bound) {
  const LaneProblem& p = *problem_;
  const auto rows = static_cast<std::size_t>(num_rows_);
  const auto cost = [&](std::int32_t a) { return reduced_[static_cast<std::size_t>(a)]; };
  std::fill(counts_.begin(), counts_.end(), 0);
  std::copy(base_.begin(), base_.end(), used_.begin());
  action_order_.resize(static_cast<std::size_t>(p.num_actions()));
  std::iota(action_order_.begin(), action_order_.end(), 0);
  num_left_.resize(p.count.size());
  spread_.assign(p.count.size(), 0);
  class_order_.clear();
  for (std::size_t c = 0; c < p.count.size(); ++c) {
    const auto first = action_order_.begin() + p.first_action[c];
    const auto last = action_order_.begin() + p.first_action[c + 1];
    std::sort(first, last, [&](std::int32_t x, std::int32_t y) {
      return cost(x) != cost(y) ? cost(x) < cost(y) : x < y;
    });
    const auto left = std::find_if(
        first + 1, last, [&](std::int32_t a) { return prunes(bound + cost(a) - cost(*first)); });
    num_left_[c] = static_cast<std::int32_t>(left - first);
    if (num_left_[c] == 1) {
      counts_[static_cast<std::size_t>(*first)] = p.count[c];
      for (std::size_t r = 0; r < rows; ++r) used_[r] += p.count[c] * row_of(*first)[r];
      continue;
    }
    class_order_.push_back(static_cast<std::int32_t>(c));
    for (std::size_t r = 0; r < rows; ++r) {
      spread_[c] += y_[r] * std::abs(row_of(first[1])[r] - row_of(first[0])[r]);
    }
  }
  std::sort(class_order_.begin(), class_order_.end(), [&](std::int32_t a, std::int32_t b) {
    const double x = spread_[static_cast<std::size_t>(a)];
    const double y = spread_[static_cast<std::size_t>(b)];
    return x != y ? x > y : a < b;
  });
  num_dearer_.assign(action_order_.size(), 0);
  for (const std::int32_t c : class_order_) {
    const std::int32_t first = p.first_action[static_cast<std::size_t>(c)];
    std::int32_t sum = 0;
    for (std::int32_t i = first + num_left_[static_cast<std::size_t>(c)] - 1; i >= first; --i) {
      const auto place = static_cast<std::size_t>(i);
      num_dearer_[place] = sum;
      sum += relaxed_[static_cast<std::size_t>(action_order_[place])];
    }
  }
  const std::size_t n = class_order_.size();
  least_.assign((n + 1) * rows, 0);
  for (std::size_t d = n; d-- > 0;) {
    const auto c = static_cast<std::size_t>(class_order_[d]);
    const auto first = action_order_.begin() + p.first_action[c];
    for (std::size_t r = 0; r < rows; ++r) {
      double low = kInfinity;
      std::for_each(first, first + num_left_[c],
                    [&](std::int32_t a) { low = std::min(low, row_of(a)[r]); });
      least_[d * rows + r] = least_[(d + 1) * rows + r] + p.count[c] * low;
    }
  }
  stack_.resize((action_order_.size() + 1) * rows);
  std::copy(used_.begin(), used_.end(), stack_.end() - num_rows_);
}

void LaneSolver::branch_class(std::size_t depth, const double* used, double bound) {
  if (depth == class_order_.size()) {
    std::copy(used, used + num_rows_, used_.begin());
    accept();
    return;
  }
  const auto c = static_cast<std::size_t>(class_order_[depth]);
  branch_action(depth, 0, problem_->count[c], used, bound);
}

// `left` storages of the class take its action at `rank` or dearer ones: first as many take dearer
// ones as in the relaxation, then more, then fewer. Requires: the bound counts all of them with the
// action at `rank`.
void LaneSolver::branch_action(std::size_t depth, std::int32_t rank, std::int32_t left,
                               const double* used, double bound) {
  if (++nodes_ > max_nodes_) {
    out_of_nodes_ = true;
    return;
  }
  const auto rows = static_cast<std::size_t>(num_rows_);
  const auto c = static_cast<std::size_t>(class_order_[depth]);
  const auto place = static_cast<std::size_t>(problem_->first_action[c] + rank);
  const auto action = static_cast<std::size_t>(action_order_[place]);
  const bool dearest = rank + 1 == num_left_[c];
  const double step =
      dearest ? 0 : reduced_[static_cast<std::size_t>(action_order_[place + 1])] - reduced_[action];
  const double* row = row_of(action_order_[place]);
  double* with = stack_.data() + place * rows;
  const auto visit = [&](std::int32_t dearer) {
    counts_[action] = left - dearer;
    const double times = left - dearer;
    for (std::size_t r = 0; r < rows; ++r) with[r] = used[r] + times * row[r];
    if (dearer > 0) {
      branch_action(depth, rank + 1, dearer, with, bound + dearer * step);
    } else if (can_finish(depth + 1, with)) {
      branch_class(depth + 1, with, bound);
    }
  };
  const std::int32_t most = dearest ? 0 : left;
  const std::int32_t first = std::min(most, num_dearer_[place]);
  const auto open = [&](std::int32_t n) { return !out_of_nodes_ && !prunes(bound + n * step); };
  for (std::int32_t n = first; n <= most && open(n); ++n) visit(n);
  for (std::int32_t n = first - 1; n >= 0; --n) {
    if (open(n)) visit(n);
  }
  counts_[action] = 0;
}

// Whether the classes from `depth` on could make a wanted plan, each row taken alone.
bool LaneSolver::can_finish(std::size_t depth, const double* used) {
  const auto rows = static_cast<std::size_t>(num_rows_);
  const double* least = least_.data() + depth * rows;
  for (std::size_t r = 0; r < rows; ++r) used_[r] = used[r] + least[r];
  return cost(used_.data()) <= target_;
}

}  // namespace tidemark
