// The provisioning solver against an exhaustive oracle, planted plans, and itself on changed
// problems. Every plan passes check_plan.
#include "planner/provision.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "planner/check_plan.h"
#include "tests/support/provision_oracle.h"
#include "tests/support/random_jobs.h"
#include "tests/support/random_provision.h"

namespace tidemark {
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

}  // namespace
}  // namespace tidemark
