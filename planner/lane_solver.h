// Exact branch and bound for one lane of a provisioning problem: a multiple-choice knapsack over
// classes with multiplicity, several resources, and costs that count beyond a free amount.
//
//   minimize  sum over cost groups of max(0, max over the group's rows of (used - limit))
//   subject to  used <= limit  for every resource row,   used = base + sum of count * usage
//
// Lower bounds are Lagrangian: a multiplier for each row, at most one in sum over a cost group,
// makes classes independent,
//
//   bound = sum of y * (base - limit) + sum over classes of n * min over actions of y * usage
//
// and leaves each action with a reduced cost above its class's cheapest. The multipliers are
// optimized once, which solves the linear relaxation (lane_relaxation.cpp); in the search a node's
// bound is the root's plus the reduced costs of what is decided. An action whose reduced cost alone
// takes the bound past the target is out, and a class left with one action is decided: the rest is
// the core (Balas and Zemel 1980; Pisinger 1995 for multiple choice).
//
// All amounts are whole numbers below 2^53, so that sums in double are exact; the objective is
// compared in units of 1,000 (nanoseconds of picoseconds).
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

namespace tidemark {

constexpr int kNumCostGroups = 4;

// Rows are resources, then the cost groups one after the other.
struct LaneProblem {
  std::int32_t num_rows = 0;
  std::int32_t group_begin[kNumCostGroups + 1] = {};  // rows; the first group follows the resources
  std::vector<double> usage;                          // [action * num_rows + row]
  std::vector<double> base;                           // [row]
  std::vector<double> limit;                          // [row]
  std::vector<std::int32_t> first_action;             // [class + 1]
  std::vector<std::int32_t> count;                    // [class]

  std::int32_t num_classes() const { return static_cast<std::int32_t>(count.size()); }
  std::int32_t num_actions() const { return first_action.back(); }
  std::int32_t num_resources() const { return group_begin[0]; }
};

struct LaneOutcome {
  bool found = false;     // a plan below the cutoff
  bool complete = false;  // nothing better exists (below the cutoff, if none was found)
  std::int64_t objective_ns = 0;
  std::int64_t bound_ns = 0;  // of all plans of the lane, whatever the cutoff
  std::int64_t nodes = 0;
};

class LaneSolver {
 public:
  static constexpr std::int64_t kNoCutoff = std::numeric_limits<std::int64_t>::max();

  // Looks for the cheapest plan with an objective below `cutoff_ns`; one of at most `enough_ns`
  // ends the search as if nothing were better.
  LaneOutcome solve(const LaneProblem& problem, std::int64_t cutoff_ns, std::int64_t enough_ns,
                    std::int64_t max_nodes);
  // [action]: how many storages take it. Of the last plan found.
  std::span<const std::int32_t> counts() const { return best_; }

 private:
  static constexpr double kInfinity = std::numeric_limits<double>::infinity();
  static constexpr double kFree =
      1e-6;  // cost multipliers below come from the ascent's tiny prices

  void prepare();
  bool fits_alone() const;
  double evaluate();
  // A hyperplane of the space of multipliers.
  struct Plane {
    enum Kind : std::uint8_t {
      kZero,   // multiplier `index` is 0
      kWhole,  // those of cost group `index` sum to 1
      kKept,   // of the relaxation: never left
      kTie,    // actions `cheap` and `dear` of class `index` cost the same
    } kind;
    std::int32_t index, cheap, dear;
  };

  // What the linear relaxation minimizes.
  enum class Relaxation : std::uint8_t {
    kCost,    // the objective
    kExcess,  // the greatest excess of a cost row: their multipliers sum to 1
    kRoom,    // the greatest excess of a resource, as a part of its range; costs do not count
  };

  void search(double bound);
  double bound_root();
  void ascend(Relaxation relaxation);
  void set_multipliers();
  bool follow_edge();
  bool in_basis(Plane::Kind kind, std::size_t index) const;
  void find_next(std::size_t storage_class);
  bool prunes(double bound) const { return bound > target_ + 0.5 + rounding_; }
  double cost(const double* used) const;
  void round_relaxation();
  void accept();
  void move(std::int32_t from, std::int32_t to, std::int32_t count);
  void repair();
  bool saves_cost(std::int32_t from, std::int32_t to) const;
  void improve();
  void find_core(double bound);
  void branch_class(std::size_t depth, const double* used, double bound);
  void branch_action(std::size_t depth, std::int32_t rank, std::int32_t left, const double* used,
                     double bound);
  bool can_finish(std::size_t depth, const double* used);

  const double* row_of(std::int32_t action) const {
    return usage_.data() + static_cast<std::size_t>(action * num_rows_);
  }

  const LaneProblem* problem_ = nullptr;
  double target_ = 0;  // a plan is wanted if its objective is at most this
  double enough_ = 0;  // such a plan ends the search
  double worst_ = 0;   // no plan costs more
  bool found_ = false;
  double best_objective_ = 0;
  double best_bound_ = 0;
  double rounding_ = 0;  // of bounds
  std::int64_t nodes_ = 0;
  std::int64_t max_nodes_ = 0;
  bool out_of_nodes_ = false;

  // Rows that can bind, renumbered.
  std::int32_t num_rows_ = 0;
  std::int32_t group_begin_[kNumCostGroups + 1] = {};
  std::vector<double> usage_, base_, limit_, scale_;
  std::vector<double> y_, used_;
  // The ascent: rows and costs in units that make them about one.
  std::vector<Plane> planes_;       // that meet in z_
  std::vector<double> edges_;       // [plane * num_rows + row]: leave one plane, keep the others
  std::vector<double> z_;           // [row]: multipliers
  std::vector<double> scaled_;      // [action * num_rows + row]
  std::vector<double> slope_;       // [row]: used - limit
  std::vector<double> change_;      // [action]: of its cost, along an edge
  std::vector<double> normal_;      // [row]
  std::vector<double> next_at_;     // [class]
  std::vector<std::int32_t> next_;  // [class]
  std::vector<double> reduced_;     // [action]
  std::vector<std::int32_t> pick_;  // [class]: cheapest action
  std::vector<std::int32_t> counts_, best_;  // [action]
  std::vector<std::int32_t> relaxed_;        // [action]: counts of the relaxation, rounded
  std::vector<std::int32_t> class_order_;    // [depth]
  std::vector<std::int32_t> action_order_;   // [action]: of a class, by reduced cost
  std::vector<std::int32_t> num_dearer_;     // [place in action_order_]: relaxed, after the action
  std::vector<std::int32_t> num_left_;       // [class]: actions in the core
  std::vector<double> least_;                // [depth * num_rows + row]: of what is left
  std::vector<double> stack_;                // [depth * num_rows + row]: used so far
  std::vector<double> spread_;               // [class]
};

}  // namespace tidemark
