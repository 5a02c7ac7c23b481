// The provisioning solver against an exhaustive oracle, planted plans, and itself on changed
// problems. Every plan passes check_plan.
#include "planner/provision.h"

#include <algorithm>
#include <limits>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "planner/check_plan.h"
#include "planner/clairvoyant_bound.h"
#include "tests/support/provision_oracle.h"
#include "tests/support/random_jobs.h"
#include "tests/support/random_provision.h"

namespace tidemark::provision_test {
namespace {

using ::testing::IsEmpty;

void expect_agreement(const ProvisionProblem& problem, ProvisionWorkspace& workspace) {
  const OracleAnswer oracle = solve_exhaustively(problem);
  ASSERT_FALSE(oracle.too_big);
  const SolveResult result = provision(problem, WorkLimit{1'000'000}, workspace);
  if (!oracle.objective_ns) {
    ASSERT_EQ(result.status, SolveStatus::kInfeasible) << describe(problem);
    return;
  }
  ASSERT_EQ(result.status, SolveStatus::kOptimal) << describe(problem);
  EXPECT_EQ(result.objective_ns, *oracle.objective_ns) << describe(problem);
  EXPECT_THAT(check_plan(problem, result), IsEmpty()) << describe(problem);
}

TEST(Provision, AgreesWithTheExhaustiveOracle) {
  ProvisionWorkspace workspace;
  int infeasible = 0;
  int free_of_charge = 0;
  int several_lanes = 0;
  for (std::uint64_t seed = 0; seed < 5000; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const ProvisionProblem problem = random_small_problem(seed, 8);
    expect_agreement(problem, workspace);
    if (HasFatalFailure()) return;
    const SolveResult result = provision(problem, WorkLimit{}, workspace);
    infeasible += result.status == SolveStatus::kInfeasible;
    free_of_charge += result.has_plan() && result.objective_ns == 0;
    several_lanes +=
        result.has_plan() && *std::max_element(result.choice.begin(), result.choice.end()) > 0;
  }
  // The instances are of every kind.
  EXPECT_GT(infeasible, 500);
  EXPECT_GT(free_of_charge, 500);
  EXPECT_LT(infeasible + free_of_charge, 4000);
  EXPECT_GT(several_lanes, 50);
}

TEST(Provision, AgreesWithTheExhaustiveOracleOnTwelveClasses) {
  ProvisionWorkspace workspace;
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    expect_agreement(random_wide_problem(seed, 12), workspace);
    if (HasFatalFailure()) return;
  }
}

// Of these the relaxation decides every class, with a plan that is not one, or too dear.
TEST(Provision, ChecksWhatTheRelaxationDecides) {
  ProvisionWorkspace workspace;
  for (const std::uint64_t seed : {108029, 127625}) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    expect_agreement(random_small_problem(seed, 7), workspace);
  }
}

// What a choice costs, by the checker's own account.
std::int64_t objective_of(const ProvisionProblem& problem, std::span<const std::int32_t> counts) {
  const std::vector<std::int32_t> choice(problem.lanes.size(), 0);
  SolveResult result;
  result.status = SolveStatus::kFeasible;
  result.counts = counts;
  result.choice = choice;
  std::int64_t objective = 0;
  for (const std::string& wrong : check_plan(problem, result)) {
    const std::string prefix = "the objective is ";
    if (wrong.starts_with(prefix)) objective = std::stoll(wrong.substr(prefix.size()));
    EXPECT_TRUE(wrong.starts_with(prefix)) << wrong;
  }
  return objective;
}

TEST(Provision, IsNeverWorseThanAPlantedPlan) {
  ProvisionWorkspace workspace;
  for (std::uint64_t seed = 0; seed < 25 * 16; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const PlantedProblem planted = planted_problem(seed, 25, 1 + static_cast<int>(seed) % 4, 0.1);
    const SolveResult result = provision(planted.problem, WorkLimit{}, workspace);
    ASSERT_TRUE(result.has_plan());
    EXPECT_THAT(check_plan(planted.problem, result), IsEmpty());
    EXPECT_LE(result.objective_ns, objective_of(planted.problem, planted.counts));
  }
}

// Small enough to be solved to the end, so that objectives can be compared.
std::int64_t optimum(const ProvisionProblem& problem, ProvisionWorkspace& workspace) {
  const SolveResult result = provision(problem, WorkLimit{1'000'000}, workspace);
  if (result.status == SolveStatus::kInfeasible) return std::numeric_limits<std::int64_t>::max();
  EXPECT_EQ(result.status, SolveStatus::kOptimal);
  return result.objective_ns;
}

TEST(Provision, MoreOfAnythingIsNeverWorse) {
  ProvisionWorkspace workspace;
  for (std::uint64_t seed = 0; seed < 1000; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const ProvisionProblem problem = random_small_problem(seed, 8);
    const std::int64_t before = optimum(problem, workspace);
    ProvisionProblem budget = problem;
    budget.lanes[0].budget[0] += 1;
    EXPECT_LE(optimum(budget, workspace), before);
    ProvisionProblem host = problem;
    for (ProvisionLane& lane : host.lanes) lane.host_budget += 1;
    EXPECT_LE(optimum(host, workspace), before);
    ProvisionProblem slack = problem;
    slack.compute_slack_ps += 1000;
    EXPECT_LE(optimum(slack, workspace), before);
    ProvisionProblem bandwidth = problem;
    for (StorageClass& c : bandwidth.classes) {
      for (StorageAction& a : c.actions) {
        a.out_ps = {a.out_ps.fixed / 2, a.out_ps.per_row / 2};
        a.in_ps = {a.in_ps.fixed / 2, a.in_ps.per_row / 2};
      }
    }
    EXPECT_LE(optimum(bandwidth, workspace), before);
  }
}

TEST(Provision, DoesNotDependOnOrderOrUnits) {
  ProvisionWorkspace workspace;
  for (std::uint64_t seed = 0; seed < 1000; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const ProvisionProblem problem = random_small_problem(seed, 8);
    const std::int64_t before = optimum(problem, workspace);
    ProvisionProblem reversed = problem;
    std::reverse(reversed.classes.begin(), reversed.classes.end());
    std::reverse(reversed.lanes.begin(), reversed.lanes.end());
    for (Rule& rule : reversed.rules) {
      for (ActionRef& ref : rule.actions) {
        ref.storage_class =
            static_cast<std::int32_t>(problem.classes.size()) - 1 - ref.storage_class;
      }
    }
    EXPECT_EQ(optimum(reversed, workspace), before);
    ProvisionProblem scaled = problem;
    const std::int64_t k = 1 << 20;
    for (Size& floor : scaled.floor) floor = k * floor;
    for (ProvisionLane& lane : scaled.lanes) {
      for (std::int64_t& budget : lane.budget) budget *= k;
    }
    for (StorageClass& c : scaled.classes) {
      for (StorageAction& a : c.actions) {
        for (Size& held : a.held) held = k * held;
      }
    }
    EXPECT_EQ(optimum(scaled, workspace), before);
    // Two classes of one storage each instead of one of two, and a lane twice.
    ProvisionProblem split = problem;
    split.lanes.push_back(split.lanes.back());
    for (std::size_t c = 0; c < problem.classes.size(); ++c) {
      if (problem.classes[c].count == 1) continue;
      split.classes[c].count = 1;
      for (Rule& rule : split.rules) {
        const std::vector<ActionRef> refs = rule.actions;
        for (const ActionRef& ref : refs) {
          if (ref.storage_class != static_cast<std::int32_t>(c)) continue;
          rule.actions.push_back({static_cast<std::int32_t>(split.classes.size()), ref.action});
        }
      }
      split.classes.push_back(split.classes[c]);
    }
    EXPECT_EQ(optimum(split, workspace), before);
  }
}

TEST(Provision, IsNeverBelowTheClairvoyantBound) {
  ProvisionWorkspace workspace;
  int tight = 0;
  for (std::uint64_t seed = 0; seed < 2000; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const ProvisionProblem problem = random_small_problem(seed, 8);
    const std::optional<std::int64_t> optimal = solve_exhaustively(problem).objective_ns;
    if (!optimal) continue;
    const std::optional<std::int64_t> bound = clairvoyant_bound_ns(problem);
    ASSERT_TRUE(bound);
    EXPECT_LE(*bound, *optimal);
    tight += *bound > 0 && 2 * *bound >= *optimal;
  }
  EXPECT_GT(tight, 200);
}

TEST(Provision, NamesWhatIsMissing) {
  ProvisionWorkspace workspace;
  int together = 0;
  int alone = 0;
  for (std::uint64_t seed = 0; seed < 1500; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    ProvisionProblem problem = random_small_problem(seed, 6);
    const SolveResult result = provision(problem, WorkLimit{}, workspace);
    if (result.status != SolveStatus::kInfeasible) continue;
    const Shortage shortage = result.shortage;
    ASSERT_GE(shortage.lane, 0);
    if (shortage.moment < 0 && shortage.bytes_short < 0) continue;
    const auto add = [&](std::int64_t bytes) {
      for (ProvisionLane& lane : problem.lanes) {
        for (std::size_t t = 0; t < problem.floor.size(); ++t) lane.budget[t] += bytes;
      }
    };
    if (shortage.moment < 0) {
      ++together;
      add(shortage.bytes_short - 1);
      EXPECT_FALSE(solve_exhaustively(problem).objective_ns) << describe(problem);
      add(1);
      EXPECT_TRUE(solve_exhaustively(problem).objective_ns) << describe(problem);
    } else {
      ++alone;
      // With nothing but this lane and moment to keep, these bytes decide.
      const auto t = static_cast<std::size_t>(shortage.moment);
      ProvisionProblem one = problem;
      one.lanes = {problem.lanes[static_cast<std::size_t>(shortage.lane)]};
      one.lanes[0].budget[0] = one.lanes[0].budget[t] + shortage.bytes_short - 1;
      one.lanes[0].host_budget = 1'000'000;
      one.floor = {problem.floor[t]};
      one.rules.clear();
      for (StorageClass& c : one.classes) {
        for (StorageAction& a : c.actions) a.held[0] = a.held[t];
      }
      EXPECT_FALSE(solve_exhaustively(one).objective_ns);
      one.lanes[0].budget[0] += 1;
      EXPECT_EQ(one.lanes[0].budget[0], shortage.floor_bytes);
      EXPECT_TRUE(solve_exhaustively(one).objective_ns);
    }
  }
  EXPECT_GT(together, 50);
  EXPECT_GT(alone, 50);
}

}  // namespace
}  // namespace tidemark::provision_test
