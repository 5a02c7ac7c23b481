// The interleaver against exhaustive search and an exact solver, and every order against
// check_order.

#include <algorithm>
#include <cstdint>
#include <iostream>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "planner/check_order.h"
#include "planner/interleaver.h"
#include "planner/order_cache.h"
#include "planner/two_chain_order.h"
#include "tests/support/exact_order.h"
#include "tests/support/random_slots.h"

namespace tidemark::interleaver_property_test {
namespace {

using testing::IsEmpty;

constexpr std::uint64_t kTwoChainInstances = 5000;
constexpr std::uint64_t kSmallInstances = 3000;
#ifdef __SANITIZE_ADDRESS__
constexpr std::uint64_t kSlots = 10;  // the exact search takes minutes there
#else
constexpr std::uint64_t kSlots = 60;
#endif
constexpr OrderLimit kAllOfIt{std::int64_t{1} << 40};

SlotProblem two_chains(std::uint64_t seed, bool memory) {
  Rng rng(seed);
  SlotProblem problem;
  const std::int64_t streams = rng.between(1, 4);
  const std::int64_t longest = rng.pick<std::int64_t>({1, 4, 30});
  for (const char* name : {"first", "second"}) {
    problem.chains.push_back(random_chain(rng, name, rng.between(1, 7), streams, longest, memory));
  }
  return problem;
}

TEST(TwoChainOrder, EqualsExhaustiveSearch) {
  TwoChainSolver solver;
  for (std::uint64_t seed = 1; seed <= kTwoChainInstances; ++seed) {
    const SlotProblem problem = two_chains(seed, false);
    const auto& first = problem.chains[0].operators;
    const auto& second = problem.chains[1].operators;
    const StreamOrder found = two_chain_order(first, second);
    ASSERT_EQ(found.makespan_ns, exhaustive_makespan(problem)) << "seed " << seed;
    ASSERT_EQ(solver.solve(first, second), found.makespan_ns) << "reused, seed " << seed;
    ASSERT_THAT(check_order(problem, found), IsEmpty()) << "seed " << seed;
  }
}

TEST(TwoChainOrder, EqualsExhaustiveSearchUnderAMemoryLimit) {
  std::int64_t infeasible = 0;
  std::int64_t longer = 0;
  for (std::uint64_t seed = 1; seed <= kTwoChainInstances; ++seed) {
    SlotProblem problem = two_chains(seed, true);
    Rng rng(seed);
    problem.memory = {rng.below(4), rng.between(4, 14)};
    const StreamOrder found = interleave(problem, kAllOfIt);
    const auto expected = exhaustive_makespan(problem);
    if (!expected) {
      ++infeasible;
      ASSERT_EQ(found.status, SolveStatus::kInfeasible) << "seed " << seed;
      continue;
    }
    ASSERT_EQ(found.status, SolveStatus::kOptimal) << "seed " << seed;
    ASSERT_EQ(found.makespan_ns, *expected) << "seed " << seed;
    ASSERT_THAT(check_order(problem, found), IsEmpty()) << "seed " << seed;
    problem.memory = {};
    longer += interleave(problem, kAllOfIt).makespan_ns < *expected;
  }
  // The limit matters in many instances.
  EXPECT_GT(infeasible, 100);
  EXPECT_GT(longer, 100);
}

TEST(Interleaver, OfSmallProblemsIsOptimalWhereItSaysSo) {
  std::int64_t optimal = 0;
  std::int64_t found_none = 0;
  for (std::uint64_t seed = 1; seed <= kSmallInstances; ++seed) {
    const SlotProblem problem = random_problem(seed, 9);
    const StreamOrder found = interleave(problem, kAllOfIt);
    const auto expected = exhaustive_makespan(problem);
    ASSERT_TRUE(expected) << "seed " << seed;
    if (found.order.empty()) {  // queues of floating operators may leave none
      ASSERT_EQ(found.status, SolveStatus::kLimit) << "seed " << seed;
      ++found_none;
      continue;
    }
    ASSERT_THAT(check_order(problem, found), IsEmpty()) << "seed " << seed;
    ASSERT_LE(found.bound_ns, *expected) << "seed " << seed;
    ASSERT_GE(found.makespan_ns, *expected) << "seed " << seed;
    if (found.status != SolveStatus::kOptimal) continue;
    ASSERT_EQ(found.makespan_ns, *expected) << "seed " << seed;
    ++optimal;
  }
  EXPECT_GT(optimal, kSmallInstances * 95 / 100);
  EXPECT_LT(found_none, kSmallInstances / 1000);
}

// The gap to the optimum of `solve`'s orders, in percent, where the exact solver could tell; to the
// lower bound where it could not.
struct Gaps {
  std::vector<double> percent;
  std::int64_t unknown = 0;

  double quantile(double q) {
    std::sort(percent.begin(), percent.end());
    return percent[static_cast<std::size_t>(q * static_cast<double>(percent.size() - 1) + 0.5)];
  }
};

template <class Generate>
Gaps gaps(std::uint64_t instances, OrderLimit limit, Generate generate) {
  constexpr std::size_t kMaxStates = 1 << 19;
  Gaps gaps;
  Interleaver interleaver;
  for (std::uint64_t seed = 1; seed <= instances; ++seed) {
    const SlotProblem problem = generate(seed);
    const StreamOrder& found = interleaver.solve(problem, limit);
    EXPECT_THAT(check_order(problem, found), IsEmpty()) << "seed " << seed;
    std::int64_t least = found.makespan_ns;
    if (found.makespan_ns > found.bound_ns) {
      const ExactOrder exact = exact_makespan(problem, found.makespan_ns, kMaxStates);
      if (exact.answer == ExactAnswer::kFound) least = exact.makespan_ns;
      if (exact.answer == ExactAnswer::kTooBig) {
        least = found.bound_ns;
        ++gaps.unknown;
      }
      EXPECT_GE(least, found.bound_ns) << "seed " << seed;
    }
    gaps.percent.push_back(100 * static_cast<double>(found.makespan_ns - least) /
                           static_cast<double>(least));
  }
  std::cout << "gap p50 " << gaps.quantile(0.5) << " %, p95 " << gaps.quantile(0.95) << " %, max "
            << gaps.quantile(1) << " %; " << gaps.unknown << " against the bound\n";
  return gaps;
}

TEST(Interleaver, OfThreeChainsIsWithinThreePercentOfTheOptimum) {
  Gaps g = gaps(kSlots, {}, [](std::uint64_t seed) { return random_slot(seed, {}); });
  EXPECT_LE(g.quantile(0.95), 3);
}

TEST(Interleaver, OfThreeChainsWithMemoryIsWithinThreePercentOfTheOptimum) {
  Gaps g =
      gaps(kSlots, {}, [](std::uint64_t seed) { return random_slot_with_memory(seed, {}, 0.5); });
  EXPECT_LE(g.quantile(0.95), 3);
}

// Exchanges that take up to 2 % more or less from microbatch to microbatch.
TEST(OrderCache, IsAlwaysLegalAndLosesLittle) {
  OrderCache cache({}, {3, 4});
  Interleaver interleaver;
  double shared_ns = 0;
  double own_ns = 0;
  for (std::uint64_t seed = 1; seed <= kSlots; ++seed) {
    SlotProblem problem = random_slot_with_memory(seed, {}, 0.5);
    const SlotProblem base = problem;
    Rng rng(seed);
    for (int microbatch = 0; microbatch < 8; ++microbatch) {
      const std::int64_t permille = rng.between(980, 1020);
      for (std::size_t c = 0; c < base.chains.size(); ++c) {
        for (std::size_t i = 0; i < base.chains[c].operators.size(); ++i) {
          const SlotOperator& o = base.chains[c].operators[i];
          if (o.stream != 1) continue;
          problem.chains[c].operators[i].duration_ns = o.duration_ns * permille / 1000;
        }
      }
      const StreamOrder& shared = cache.order(problem);
      ASSERT_THAT(check_order(problem, shared), IsEmpty()) << "seed " << seed;
      shared_ns += static_cast<double>(shared.makespan_ns);
      own_ns += static_cast<double>(interleaver.solve(problem, {}).makespan_ns);
    }
  }
  const auto asked = static_cast<double>(cache.hits() + cache.misses());
  std::cout << "hit rate " << static_cast<double>(cache.hits()) / asked << ", longer by "
            << 100 * (shared_ns / own_ns - 1) << " %\n";
  EXPECT_GT(cache.hits(), cache.misses());
  EXPECT_LE(shared_ns / own_ns, 1.01);
}

TEST(ExactOrder, EqualsExhaustiveSearch) {
  for (std::uint64_t seed = 1; seed <= kSmallInstances; ++seed) {
    const SlotProblem problem = random_problem(seed, 9);
    const std::int64_t expected = *exhaustive_makespan(problem);
    const ExactOrder found = exact_makespan(problem, expected + 1, 1 << 20);
    ASSERT_EQ(found.answer, ExactAnswer::kFound) << "seed " << seed;
    ASSERT_EQ(found.makespan_ns, expected) << "seed " << seed;
    ASSERT_EQ(exact_makespan(problem, expected, 1 << 20).answer, ExactAnswer::kNoneBelow)
        << "seed " << seed;
  }
}

}  // namespace
}  // namespace tidemark::interleaver_property_test
