#include "planner/lane_solver.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <numeric>

namespace tidemark {
namespace {

constexpr double kUnit = 1000;  // picoseconds of a nanosecond
constexpr int kSecantSteps = 12;
constexpr int kSubgradientSteps = 24;

double round_up_to_unit(double x) { return std::ceil(x / kUnit) * kUnit; }

std::int64_t to_ns(double x) { return static_cast<std::int64_t>(std::ceil(x / kUnit)); }

}  // namespace

LaneOutcome LaneSolver::solve(const LaneProblem& problem, std::int64_t cutoff_ns,
                              std::int64_t max_nodes) {
  problem_ = &problem;
  nodes_ = 0;
  max_nodes_ = max_nodes;
  out_of_nodes_ = false;
  found_ = false;
  best_bound_ = 0;
  prepare();
  target_ = cutoff_ns == kNoCutoff ? worst_
                                   : std::min(worst_, kUnit * static_cast<double>(cutoff_ns - 1));
  if (fits_alone()) {
    ascend();
    if (!prunes(best_bound_)) {
      order_classes();
      branch_class(0, best_bound_);
    }
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
  best_y_.assign(kept, 0);
  used_.assign(kept, 0);
  reduced_.assign(num_actions, 0);
  counts_.assign(num_actions, 0);
  best_.assign(num_actions, 0);
  pick_.assign(p.count.size(), 0);
}

bool LaneSolver::feasible(const double* used) const {
  for (std::int32_t r = 0; r < group_begin_[0]; ++r) {
    if (used[r] > limit_[static_cast<std::size_t>(r)]) return false;
  }
  return true;
}

double LaneSolver::objective(const double* used) const {
  double sum = 0;
  for (int g = 0; g < kNumCostGroups; ++g) {
    double worst = 0;
    for (std::int32_t r = group_begin_[g]; r < group_begin_[g + 1]; ++r) {
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
  for (std::size_t r = 0; r < rows; ++r) {
    bound += y_[r] * (base_[r] - limit_[r]);
    used_[r] = base_[r];
  }
  for (std::size_t c = 0; c < p.count.size(); ++c) {
    double least = std::numeric_limits<double>::infinity();
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
    const double* row = row_of(pick);
    for (std::size_t r = 0; r < rows; ++r) used_[r] += n * row[r];
  }
  return bound;
}

void LaneSolver::consider(double bound) {
  if (bound > best_bound_) {
    best_bound_ = bound;
    best_y_ = y_;
  }
  if (feasible(used_.data()) && objective(used_.data()) <= target_) accept_picks();
}

void LaneSolver::accept_picks() {
  std::fill(counts_.begin(), counts_.end(), 0);
  for (std::size_t c = 0; c < pick_.size(); ++c) {
    counts_[static_cast<std::size_t>(pick_[c])] = problem_->count[c];
  }
  accept();
}

// counts_ with used_ is a plan that is wanted.
void LaneSolver::accept() {
  found_ = true;
  best_objective_ = objective(used_.data());
  best_ = counts_;
  target_ = round_up_to_unit(best_objective_) - kUnit;
}

void LaneSolver::ascend() {
  const std::int32_t resources = group_begin_[0];
  // Costs at their full price: exact if everything is beyond the free amount.
  for (int g = 0; g < kNumCostGroups; ++g) {
    if (group_begin_[g] == group_begin_[g + 1]) continue;
    y_[static_cast<std::size_t>(group_begin_[g + 1]) - 1] = 1;
  }
  // The bound along the price of the tightest resource is concave and piecewise linear: its top is
  // between a price at which the resource is short and one at which it is not.
  double bound = evaluate();
  consider(bound);
  std::int32_t tightest = -1;
  double violation = 0;
  for (std::int32_t r = 0; r < resources; ++r) {
    const auto i = static_cast<std::size_t>(r);
    const double v = (used_[i] - limit_[i]) * scale_[i];
    if (v > violation) {
      violation = v;
      tightest = r;
    }
  }
  if (tightest >= 0) {
    const auto t = static_cast<std::size_t>(tightest);
    struct Line {
      double at_zero, slope;
    };
    Line low{bound, used_[t] - limit_[t]};
    Line high{};
    bool has_high = false;
    double price = scale_[t];
    for (int step = 0; step < kSecantSteps && !prunes(best_bound_); ++step) {
      y_[t] = price;
      bound = evaluate();
      consider(bound);
      const double slope = used_[t] - limit_[t];
      const Line here{bound - price * slope, slope};
      if (slope > 0) {
        low = here;
      } else {
        high = here;
        has_high = true;
      }
      if (slope == 0) break;
      if (!has_high) {
        price *= 16;
        continue;
      }
      const double next = (high.at_zero - low.at_zero) / (low.slope - high.slope);
      const double top = low.at_zero + next * low.slope;
      if (top <= best_bound_ + 1) break;
      price = next;
    }
    y_ = best_y_;
    evaluate();
    repair();
  }
  // All multipliers together.
  double step_size = 1;
  int since_better = 0;
  y_ = best_y_;
  for (int step = 0; step < kSubgradientSteps && !prunes(best_bound_); ++step) {
    bound = evaluate();
    const double before = best_bound_;
    consider(bound);
    if (best_bound_ > before) {
      since_better = 0;
    } else if (++since_better == 3) {
      since_better = 0;
      step_size /= 2;
      y_ = best_y_;
      bound = evaluate();
    }
    double norm = 0;
    const auto direction = [&](std::size_t r) {
      const double d = (used_[r] - limit_[r]) * scale_[r];
      return d < 0 && y_[r] <= 0 ? 0 : d;
    };
    for (std::size_t r = 0; r < y_.size(); ++r) norm += direction(r) * direction(r);
    if (norm <= 0) break;
    const double aim = found_ ? target_ + kUnit : std::min(worst_, 2 * best_bound_ + kUnit);
    const double length = step_size * std::max(aim - bound, kUnit) / norm;
    for (std::size_t r = 0; r < y_.size(); ++r) {
      y_[r] = std::max(0.0, y_[r] + length * direction(r) * scale_[r]);
    }
    for (int g = 0; g < kNumCostGroups; ++g) {
      double sum = 0;
      for (std::int32_t r = group_begin_[g]; r < group_begin_[g + 1]; ++r) {
        sum += y_[static_cast<std::size_t>(r)];
      }
      for (std::int32_t r = group_begin_[g]; sum > 1 && r < group_begin_[g + 1]; ++r) {
        y_[static_cast<std::size_t>(r)] /= sum;
      }
    }
  }
  y_ = best_y_;
  evaluate();
  if (!prunes(best_bound_)) repair();
}

void LaneSolver::move(std::int32_t from, std::int32_t to, std::int32_t count) {
  counts_[static_cast<std::size_t>(from)] -= count;
  counts_[static_cast<std::size_t>(to)] += count;
  for (std::int32_t r = 0; r < num_rows_; ++r) {
    used_[static_cast<std::size_t>(r)] += count * (row_of(to)[r] - row_of(from)[r]);
  }
}

// From the cheapest actions to a plan: while a resource is short, the move that costs least for
// what it gives back.
void LaneSolver::repair() {
  const LaneProblem& p = *problem_;
  std::fill(counts_.begin(), counts_.end(), 0);
  for (std::size_t c = 0; c < pick_.size(); ++c) {
    counts_[static_cast<std::size_t>(pick_[c])] = p.count[c];
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
    double least = std::numeric_limits<double>::infinity();
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
  if (!feasible(used_.data())) return;
  improve();
  if (objective(used_.data()) <= target_) accept();
}

// Moves of one storage that keep the plan one and make it cheaper, in order, until none is left or
// a pass's worth has been made.
void LaneSolver::improve() {
  const LaneProblem& p = *problem_;
  double current = objective(used_.data());
  bool better = true;
  for (int pass = 0; pass < 3 && better; ++pass) {
    better = false;
    for (std::size_t c = 0; c < p.count.size(); ++c) {
      for (std::int32_t a = p.first_action[c]; a < p.first_action[c + 1]; ++a) {
        for (std::int32_t b = p.first_action[c]; b < p.first_action[c + 1]; ++b) {
          while (a != b && counts_[static_cast<std::size_t>(a)] > 0) {
            move(a, b, 1);
            const double changed = objective(used_.data());
            if (feasible(used_.data()) && changed < current) {
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

// Classes that move most first, so that small ones fill up at the end; of a class, the cheapest
// action first. Requires: reduced_ of the best multipliers.
void LaneSolver::order_classes() {
  const LaneProblem& p = *problem_;
  const auto rows = static_cast<std::size_t>(num_rows_);
  const std::size_t n = p.count.size();
  action_order_.resize(static_cast<std::size_t>(p.num_actions()));
  std::iota(action_order_.begin(), action_order_.end(), 0);
  spread_.assign(n, 0);
  for (std::size_t c = 0; c < n; ++c) {
    std::sort(action_order_.begin() + p.first_action[c],
              action_order_.begin() + p.first_action[c + 1], [&](std::int32_t a, std::int32_t b) {
                const double x = reduced_[static_cast<std::size_t>(a)];
                const double y = reduced_[static_cast<std::size_t>(b)];
                return x != y ? x < y : a < b;
              });
    for (std::size_t r = 0; r < rows; ++r) {
      double low = row_of(p.first_action[c])[r];
      double high = low;
      for (std::int32_t a = p.first_action[c] + 1; a < p.first_action[c + 1]; ++a) {
        low = std::min(low, row_of(a)[r]);
        high = std::max(high, row_of(a)[r]);
      }
      spread_[c] += best_y_[r] * (high - low);
    }
  }
  class_order_.resize(n);
  std::iota(class_order_.begin(), class_order_.end(), 0);
  std::sort(class_order_.begin(), class_order_.end(), [&](std::int32_t a, std::int32_t b) {
    const double x = spread_[static_cast<std::size_t>(a)];
    const double y = spread_[static_cast<std::size_t>(b)];
    return x != y ? x > y : a < b;
  });
  least_.assign((n + 1) * rows, 0);
  for (std::size_t d = n; d-- > 0;) {
    const auto c = static_cast<std::size_t>(class_order_[d]);
    for (std::size_t r = 0; r < rows; ++r) {
      double low = std::numeric_limits<double>::infinity();
      for (std::int32_t a = p.first_action[c]; a < p.first_action[c + 1]; ++a) {
        low = std::min(low, row_of(a)[r]);
      }
      least_[d * rows + r] = least_[(d + 1) * rows + r] + p.count[c] * low;
    }
  }
  stack_.assign((n + 1) * rows, 0);
  std::copy(base_.begin(), base_.end(), stack_.begin());
  std::fill(counts_.begin(), counts_.end(), 0);
}

void LaneSolver::branch_class(std::int32_t depth, double bound) {
  const LaneProblem& p = *problem_;
  if (depth == p.num_classes()) {
    const double* used = stack_.data() + static_cast<std::size_t>(depth * num_rows_);
    std::copy(used, used + num_rows_, used_.begin());
    accept();
    return;
  }
  const auto c = static_cast<std::size_t>(class_order_[static_cast<std::size_t>(depth)]);
  branch_action(depth, p.first_action[c + 1] - p.first_action[c] - 1, p.count[c], bound);
}

// Decides how many of the `left` storages of the class take its action at `rank`: from the dearest
// to the cheapest, which takes the rest.
void LaneSolver::branch_action(std::int32_t depth, std::int32_t rank, std::int32_t left,
                               double bound) {
  const auto c = static_cast<std::size_t>(class_order_[static_cast<std::size_t>(depth)]);
  const auto first = static_cast<std::size_t>(problem_->first_action[c]);
  const auto action =
      static_cast<std::size_t>(action_order_[first + static_cast<std::size_t>(rank)]);
  if (++nodes_ > max_nodes_) {
    out_of_nodes_ = true;
    return;
  }
  if (rank == 0) {
    counts_[action] = left;
    if (can_finish(depth)) branch_class(depth + 1, bound);
    return;
  }
  const double gap = reduced_[action] - reduced_[static_cast<std::size_t>(action_order_[first])];
  for (std::int32_t n = 0; n <= left; ++n) {
    if (prunes(bound + n * gap) || out_of_nodes_) return;
    counts_[action] = n;
    branch_action(depth, rank - 1, left - n, bound + n * gap);
  }
}

// Adds up the class at `depth`. Returns: whether the classes after it could make a wanted plan,
// each row taken alone.
bool LaneSolver::can_finish(std::int32_t depth) {
  const auto rows = static_cast<std::size_t>(num_rows_);
  const auto d = static_cast<std::size_t>(depth);
  const auto c = static_cast<std::size_t>(class_order_[d]);
  const double* before = stack_.data() + d * rows;
  double* after = stack_.data() + (d + 1) * rows;
  std::copy(before, before + rows, after);
  for (std::int32_t a = problem_->first_action[c]; a < problem_->first_action[c + 1]; ++a) {
    const std::int32_t n = counts_[static_cast<std::size_t>(a)];
    if (n == 0) continue;
    const double* row = row_of(a);
    for (std::size_t r = 0; r < rows; ++r) after[r] += n * row[r];
  }
  for (std::size_t r = 0; r < rows; ++r) used_[r] = after[r] + least_[(d + 1) * rows + r];
  return feasible(used_.data()) && objective(used_.data()) <= target_;
}

}  // namespace tidemark
