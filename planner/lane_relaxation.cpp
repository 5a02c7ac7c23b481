// The linear relaxation of a lane's problem, by its dual.
#include <algorithm>
#include <cmath>

#include "planner/lane_solver.h"

namespace tidemark {
namespace {

constexpr int kDualSteps = 60;
constexpr double kFlat = 1e-9;

}  // namespace

// Dual simplex with steps through all breakpoints, which is ascent along the edges of the concave
// piecewise linear bound. At a vertex as many hyperplanes meet as there are rows: a multiplier is
// zero, a cost group's multipliers sum to one, or two actions of a class cost the same. An edge
// leaves one of them; along it the bound rises until enough classes have changed their cheapest
// action, and the hyperplane there replaces the one left. No rising edge: the top. Relaxations that
// keep some multipliers at zero or at a sum of one never leave those hyperplanes.
void LaneSolver::ascend(Relaxation relaxation) {
  const LaneProblem& p = *problem_;
  const auto rows = static_cast<std::size_t>(num_rows_);
  const auto actions = static_cast<std::size_t>(p.num_actions());
  const auto first_cost = static_cast<std::size_t>(group_begin_[0]);
  planes_.resize(rows);
  edges_.assign(rows * rows, 0);
  z_.assign(rows, 0);
  for (std::size_t r = 0; r < rows; ++r) {
    planes_[r] = {Plane::kZero, static_cast<std::int32_t>(r), 0, 0};
    edges_[r * rows + r] = 1;
  }
  std::size_t normed = rows;
  if (relaxation == Relaxation::kExcess) normed = first_cost;
  if (relaxation == Relaxation::kRoom) {
    normed = 0;
    for (std::size_t r = first_cost; r < rows; ++r) planes_[r].kind = Plane::kKept;
  }
  if (normed < rows) {
    const std::size_t end = normed < first_cost ? first_cost : rows;
    for (std::size_t r = normed + 1; r < end; ++r) edges_[r * rows + normed] = -1;
    planes_[normed].kind = Plane::kKept;
    z_[normed] = 1;
  }
  for (std::size_t a = 0; a < actions; ++a) {
    const double* row = scaled_.data() + a * rows;
    double price = 0;
    for (std::size_t r = first_cost; r < rows; ++r) price += row[r];
    // At zero all actions cost the same: a vertex of too many hyperplanes. Tiny prices part them.
    const double golden = 0.618 * static_cast<double>(a);
    reduced_[a] = 1e-7 * (price + 1e-3 * (golden - std::floor(golden)));
    if (normed < rows) reduced_[a] += row[normed];
  }
  slope_.resize(rows);
  const double unit = std::max(1.0, worst_);
  for (std::size_t r = 0; r < rows; ++r) slope_[r] = (base_[r] - limit_[r]) * scale_[r] / unit;
  for (std::size_t c = 0; c < p.count.size(); ++c) {
    std::int32_t pick = p.first_action[c];
    for (std::int32_t a = pick + 1; a < p.first_action[c + 1]; ++a) {
      if (reduced_[static_cast<std::size_t>(a)] < reduced_[static_cast<std::size_t>(pick)])
        pick = a;
    }
    pick_[c] = pick;
    const double* row = scaled_.data() + static_cast<std::size_t>(pick) * rows;
    for (std::size_t r = 0; r < rows; ++r) slope_[r] += p.count[c] * row[r];
  }
  for (int step = 0; step < kDualSteps; ++step) {
    if (!follow_edge()) break;
  }
}

// y_ of z_, scaled so that a cost group's sum to one at most, for which the bound holds, and where
// costs count one group's do.
void LaneSolver::set_multipliers() {
  double most = 0;
  for (int g = 0; g < kNumCostGroups; ++g) {
    double sum = 0;
    for (std::int32_t r = group_begin_[g]; r < group_begin_[g + 1]; ++r) {
      sum += std::max(0.0, z_[static_cast<std::size_t>(r)]);
    }
    most = std::max(most, sum);
  }
  if (most < kFree) most = 1;
  for (std::size_t r = 0; r < y_.size(); ++r) y_[r] = std::max(0.0, z_[r]) * scale_[r] / most;
}

// counts_ of the linear relaxation's optimum, rounded: at the top, the slope along an edge that
// leaves a tie says how many storages have taken the other action.
void LaneSolver::round_relaxation() {
  const LaneProblem& p = *problem_;
  const auto rows = static_cast<std::size_t>(num_rows_);
  std::fill(counts_.begin(), counts_.end(), 0);
  for (std::size_t c = 0; c < pick_.size(); ++c) {
    counts_[static_cast<std::size_t>(pick_[c])] = p.count[c];
  }
  for (std::size_t i = 0; i < rows; ++i) {
    const Plane& plane = planes_[i];
    if (plane.kind != Plane::kTie) continue;
    const std::int32_t pick = pick_[static_cast<std::size_t>(plane.index)];
    if (pick != plane.cheap && pick != plane.dear) continue;
    double rise = 0;
    for (std::size_t r = 0; r < rows; ++r) rise += slope_[r] * edges_[i * rows + r];
    const std::int32_t other = pick == plane.cheap ? plane.dear : plane.cheap;
    const auto n = static_cast<std::int32_t>(std::lround(pick == plane.cheap ? -rise : rise));
    const std::int32_t moved = std::clamp(n, 0, counts_[static_cast<std::size_t>(pick)]);
    counts_[static_cast<std::size_t>(pick)] -= moved;
    counts_[static_cast<std::size_t>(other)] += moved;
  }
}

// Returns: false at the top.
bool LaneSolver::follow_edge() {
  const LaneProblem& p = *problem_;
  const auto rows = static_cast<std::size_t>(num_rows_);
  const auto actions = static_cast<std::size_t>(p.num_actions());
  // The steepest edge.
  std::size_t leaves = rows;
  double sign = 1;
  double steepest = kFlat;
  for (std::size_t i = 0; i < rows; ++i) {
    const Plane& plane = planes_[i];
    if (plane.kind == Plane::kKept) continue;
    const double* edge = edges_.data() + i * rows;
    double rise = 0;
    double length = 0;
    for (std::size_t r = 0; r < rows; ++r) {
      rise += slope_[r] * edge[r];
      length += edge[r] * edge[r];
    }
    length = std::sqrt(length);
    double forward = rise;
    double backward = -rise;
    if (plane.kind == Plane::kTie) {
      const std::int32_t pick = pick_[static_cast<std::size_t>(plane.index)];
      const double n = p.count[static_cast<std::size_t>(plane.index)];
      if (pick == plane.cheap) backward -= n;
      if (pick == plane.dear) forward -= n;
    } else {
      backward = 0;
    }
    if (forward / length > steepest) {
      steepest = forward / length;
      leaves = i;
      sign = 1;
    }
    if (backward / length > steepest) {
      steepest = backward / length;
      leaves = i;
      sign = -1;
    }
  }
  if (leaves == rows) return false;
  double* direction = edges_.data() + leaves * rows;
  if (sign < 0) {
    for (std::size_t r = 0; r < rows; ++r) direction[r] = -direction[r];
  }
  // How far: to the nearest border, or where the slope is used up.
  double rise = 0;
  for (std::size_t r = 0; r < rows; ++r) rise += slope_[r] * direction[r];
  double far = kInfinity;
  Plane enters{Plane::kZero, -1, 0, 0};
  for (std::size_t r = 0; r < rows; ++r) {
    if (direction[r] < -1e-12 && z_[r] / -direction[r] < far && !in_basis(Plane::kZero, r)) {
      far = std::max(0.0, z_[r] / -direction[r]);
      enters = {Plane::kZero, static_cast<std::int32_t>(r), 0, 0};
    }
  }
  for (int g = 0; g < kNumCostGroups; ++g) {
    double sum = 0;
    double grows = 0;
    for (std::int32_t r = group_begin_[g]; r < group_begin_[g + 1]; ++r) {
      sum += z_[static_cast<std::size_t>(r)];
      grows += direction[r];
    }
    if (grows > 1e-12 && (1 - sum) / grows < far &&
        !in_basis(Plane::kWhole, static_cast<std::size_t>(g))) {
      far = std::max(0.0, (1 - sum) / grows);
      enters = {Plane::kWhole, g, 0, 0};
    }
  }
  for (std::size_t a = 0; a < actions; ++a) {
    double change = 0;
    for (std::size_t r = 0; r < rows; ++r) change += direction[r] * scaled_[a * rows + r];
    change_[a] = change;
  }
  for (std::size_t c = 0; c < p.count.size(); ++c) find_next(c);
  double at = far;
  while (true) {
    std::size_t first = 0;
    for (std::size_t c = 1; c < next_at_.size(); ++c) {
      if (next_at_[c] < next_at_[first]) first = c;
    }
    if (next_at_.empty() || next_at_[first] >= far) break;
    const auto cheap = static_cast<std::size_t>(pick_[first]);
    const auto dear = static_cast<std::size_t>(next_[first]);
    const double bend = p.count[first] * (change_[dear] - change_[cheap]);
    if (rise + bend <= kFlat) {
      at = std::max(0.0, next_at_[first]);
      enters = {Plane::kTie, static_cast<std::int32_t>(first), pick_[first], next_[first]};
      break;
    }
    rise += bend;
    for (std::size_t r = 0; r < rows; ++r) {
      slope_[r] += p.count[first] * (scaled_[dear * rows + r] - scaled_[cheap * rows + r]);
    }
    pick_[first] = next_[first];
    find_next(first);
  }
  if (!std::isfinite(at)) {  // rises for ever: no plan, once the bound is above all plans' cost
    at = 4 / rise;
    for (std::size_t r = 0; r < rows; ++r) z_[r] += at * direction[r];
    return false;
  }
  for (std::size_t r = 0; r < rows; ++r) z_[r] += at * direction[r];
  for (std::size_t a = 0; a < actions; ++a) reduced_[a] += at * change_[a];
  // Replace the hyperplane: the edges stay those along which all other hyperplanes hold.
  normal_.assign(rows, 0);
  if (enters.kind == Plane::kZero) {
    normal_[static_cast<std::size_t>(enters.index)] = 1;
  } else if (enters.kind == Plane::kWhole) {
    for (std::int32_t r = group_begin_[enters.index]; r < group_begin_[enters.index + 1]; ++r) {
      normal_[static_cast<std::size_t>(r)] = -1;
    }
  } else {
    for (std::size_t r = 0; r < rows; ++r) {
      normal_[r] = scaled_[static_cast<std::size_t>(enters.dear) * rows + r] -
                   scaled_[static_cast<std::size_t>(enters.cheap) * rows + r];
    }
  }
  const auto along = [&](const double* edge) {
    double sum = 0;
    for (std::size_t r = 0; r < rows; ++r) sum += normal_[r] * edge[r];
    return sum;
  };
  const double pivot = along(direction);
  for (std::size_t r = 0; r < rows; ++r) direction[r] /= pivot;
  for (std::size_t i = 0; i < rows; ++i) {
    if (i == leaves) continue;
    double* edge = edges_.data() + i * rows;
    const double k = along(edge);
    for (std::size_t r = 0; r < rows; ++r) edge[r] -= k * direction[r];
  }
  planes_[leaves] = enters;
  return true;
}

bool LaneSolver::in_basis(Plane::Kind kind, std::size_t index) const {
  return std::any_of(planes_.begin(), planes_.end(), [&](const Plane& plane) {
    return plane.kind == kind && plane.index == static_cast<std::int32_t>(index);
  });
}

// Where along the direction another action of the class becomes the cheapest.
void LaneSolver::find_next(std::size_t c) {
  const LaneProblem& p = *problem_;
  const auto pick = static_cast<std::size_t>(pick_[c]);
  next_at_[c] = kInfinity;
  for (std::int32_t b = p.first_action[c]; b < p.first_action[c + 1]; ++b) {
    const auto a = static_cast<std::size_t>(b);
    const double gains = change_[pick] - change_[a];
    if (gains <= 1e-12) continue;
    const double at = (reduced_[a] - reduced_[pick]) / gains;
    if (at < next_at_[c]) {
      next_at_[c] = at;
      next_[c] = b;
    }
  }
}

}  // namespace tidemark
