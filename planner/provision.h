// The cheapest actions that keep every lane of a group within its memory: one decision.
//
// Storages of one kind and size form a class; each storage of a class takes one of its actions.
//
//   card memory   for every lane and moment:  floor + sum of held        <= budget
//   host memory   for every lane:                     sum of host bytes  <= host budget
//   rules         for every lane:             storages with these actions <= at most
//   collectives   actions that a group runs together are taken equally often on every lane
//   exposed       what is exposed in any case
//                 + max(0, compute - slack)
//                 + max over deadlines (0, copies out due by then - capacity until then)
//                 + the same for copies in
//
// and the objective is the exposed time of the slowest lane, since the lanes wait for each other.
// Copies of one direction share a first-in first-out stream: what one deadline is missed by delays
// all later ones, so the largest miss counts, once. Compute that is exposed gives copies no extra
// time here.
//
// A moment is a time at which memory is tight: the forward peak, a backward peak. What an action
// takes back (a re-run's output, a reload) is held at the moment it takes it. Amounts are linear
// in a lane's rows. Times are in picoseconds, so that times per row are whole numbers; a lane's
// sums stay below 2^53.
//
// Solved by branch and bound on one lane at a time (lane_solver.h): the hottest lane, alone, bounds
// the group, and if the others can do what it does, that is the optimum. Otherwise the ways to
// take the collective actions are enumerated.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "models/operator_graph.h"
#include "planner/solve_status.h"

namespace tidemark {

enum class ActionKind : std::uint8_t { kSave, kRecompute, kOffload, kQuantize };

constexpr int kMaxMoments = 4;

// What one storage may do.
struct StorageAction {
  ActionKind kind = ActionKind::kSave;
  Size held[kMaxMoments];  // bytes on the card at each moment
  Size exposed_ps;         // in any case
  Size compute_ps;         // kernels that it adds, beyond that
  Size out_ps;             // on the device-to-host stream, due by deadline `out_deadline`
  Size in_ps;              // on the host-to-device stream, due by deadline `in_deadline`
  std::int32_t out_deadline = 0;
  std::int32_t in_deadline = 0;
  Size host_bytes;
  bool collective = false;  // crosses a collective: all lanes or none
};

struct StorageClass {
  std::string name;
  std::int64_t count = 1;
  std::vector<StorageAction> actions;
};

struct ActionRef {
  std::int32_t storage_class = 0;
  std::int32_t action = 0;
};

// Provenance: at most `count` storages together take one of these actions. A conflict of two
// classes of n storages that belong together pairwise is {a, b} at most n; that `a` needs `b` is
// {a, everything of b's class but b} at most n.
struct Rule {
  std::vector<ActionRef> actions;
  std::int64_t count = 0;
};

struct ProvisionLane {
  std::int64_t rows = 0;
  std::int64_t budget[kMaxMoments] = {};  // bytes
  std::int64_t host_budget = 0;           // bytes
};

struct ProvisionProblem {
  std::vector<StorageClass> classes;
  std::vector<Rule> rules;
  std::vector<Size> floor;  // [moment], at most kMaxMoments: what no action can free
  std::vector<ProvisionLane> lanes;
  std::int64_t compute_slack_ps = 0;
  std::vector<std::int64_t> out_capacity_ps;  // [deadline], cumulative, ascending
  std::vector<std::int64_t> in_capacity_ps;   // [deadline], cumulative, ascending
};

// Of branch and bound, over all lanes together.
struct WorkLimit {
  std::int64_t nodes = 20'000;
};

// Why there is no plan.
struct Shortage {
  std::int32_t lane = -1;
  // -1: every moment can be met alone, but not all together with host memory and rules; the bytes
  // are then what all budgets of the lane lack, -1 if bytes do not help.
  std::int32_t moment = -1;
  std::int64_t bytes_short = 0;
  std::int64_t floor_bytes = 0;  // of that moment, unmitigable: floor and least held
};

// Spans live in the workspace until its next use.
struct SolveResult {
  SolveStatus status = SolveStatus::kLimit;
  // How many storages take each action, classes one after the other.
  std::span<const std::int32_t> counts;  // [choice * num_actions + action]
  std::span<const std::int32_t> choice;  // [lane]; 0 is the hottest lane's
  std::int64_t objective_ns = 0;         // rounded up
  std::int64_t bound_ns = 0;             // no plan is better
  std::int64_t nodes = 0;
  Shortage shortage;

  bool has_plan() const {
    return status == SolveStatus::kOptimal || status == SolveStatus::kFeasible;
  }
  // Of the objective, 0 when optimal. Requires: a plan.
  double gap() const {
    return objective_ns == 0
               ? 0
               : static_cast<double>(objective_ns - bound_ns) / static_cast<double>(objective_ns);
  }
  std::span<const std::int32_t> counts_of(std::size_t lane, std::size_t num_actions) const {
    return counts.subspan(static_cast<std::size_t>(choice[lane]) * num_actions, num_actions);
  }
};

std::size_t num_actions(const ProvisionProblem& problem);

// Buffers that grow to the largest problem seen: a call that needs no more allocates nothing.
// Results do not depend on earlier calls.
class ProvisionWorkspace {
 public:
  ProvisionWorkspace();
  ~ProvisionWorkspace();
  ProvisionWorkspace(ProvisionWorkspace&&) noexcept;
  ProvisionWorkspace& operator=(ProvisionWorkspace&&) noexcept;

 private:
  friend SolveResult provision(const ProvisionProblem&, WorkLimit, ProvisionWorkspace&);
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Requires: a lane, a moment, every class with an action, deadlines in range.
SolveResult provision(const ProvisionProblem& problem, WorkLimit limit,
                      ProvisionWorkspace& workspace);

}  // namespace tidemark
