#include "planner/adapipe.h"

#include <algorithm>
#include <numeric>

#include <gtest/gtest.h>

#include "tests/support/random_jobs.h"

namespace tidemark::adapipe_test {
namespace {

AdaPipeProblem random_problem(Rng& rng) {
  AdaPipeProblem p;
  const std::int64_t stages = rng.between(1, 3);
  p.microbatches = stages + rng.below(5);
  const std::int64_t layers = stages + rng.below(3);
  std::int64_t most = 0;
  for (std::int64_t l = 0; l < layers; ++l) {
    AdaPipeLayer layer{rng.below(4), rng.between(1, 6), rng.below(3), rng.below(5), {}};
    most += layer.static_bytes + stages * layer.kept_bytes;
    const std::int64_t units = rng.between(1, 3);
    for (std::int64_t u = 0; u < units; ++u) {
      layer.units.push_back({rng.between(1, 6), rng.between(1, 6)});
      layer.forward_ns += layer.units.back().forward_ns;
      most += stages * layer.units.back().bytes;
    }
    p.layers.push_back(layer);
  }
  for (std::int64_t s = 0; s < stages; ++s) p.capacity_bytes.push_back(rng.below(most));
  return p;
}

std::span<const AdaPipeLayer> range(const AdaPipeProblem& p, std::int64_t first, std::int64_t end) {
  return std::span(p.layers).subspan(static_cast<std::size_t>(first),
                                     static_cast<std::size_t>(end - first));
}

// Least forward time to run again, of all subsets; -1 if none fits.
std::int64_t least_recompute(std::span<const AdaPipeLayer> layers, std::int64_t in_flight,
                             std::int64_t capacity) {
  std::vector<AdaPipeUnit> units;
  std::int64_t fixed = 0;
  for (const AdaPipeLayer& layer : layers) {
    fixed += layer.static_bytes + in_flight * layer.kept_bytes;
    units.insert(units.end(), layer.units.begin(), layer.units.end());
  }
  std::int64_t best = -1;
  for (std::uint32_t saved = 0; saved < 1U << units.size(); ++saved) {
    std::int64_t bytes = fixed;
    std::int64_t time = 0;
    for (std::size_t u = 0; u < units.size(); ++u) {
      const bool save = (saved >> u & 1U) != 0;
      bytes += save ? in_flight * units[u].bytes : 0;
      time += save ? 0 : units[u].forward_ns;
    }
    if (bytes <= capacity && (best < 0 || time < best)) best = time;
  }
  return best;
}

TEST(AdaPipe, SavesWhatIsDearestToRunAgain) {
  int fitting = 0;
  for (std::uint64_t seed = 0; seed < 500; ++seed) {
    Rng rng(seed);
    const AdaPipeProblem p = random_problem(rng);
    const std::int64_t in_flight = rng.between(1, std::ssize(p.capacity_bytes));
    const std::int64_t capacity = p.capacity_bytes[0];
    const auto solved = adapipe_saves(p.layers, in_flight, capacity);
    const std::int64_t expected = least_recompute(p.layers, in_flight, capacity);
    ASSERT_EQ(solved.has_value(), expected >= 0) << "seed " << seed;
    if (!solved) continue;
    ++fitting;
    EXPECT_EQ(solved->recompute_ns, expected) << "seed " << seed;
    // What it says it saves is what it charges for.
    std::int64_t bytes = 0;
    std::int64_t time = 0;
    for (std::size_t l = 0; l < p.layers.size(); ++l) {
      const AdaPipeLayer& layer = p.layers[l];
      bytes += layer.static_bytes + in_flight * layer.kept_bytes;
      for (std::size_t u = 0; u < layer.units.size(); ++u) {
        const bool saved = solved->saved[l][u];
        bytes += saved ? in_flight * layer.units[u].bytes : 0;
        time += saved ? 0 : layer.units[u].forward_ns;
      }
    }
    EXPECT_LE(bytes, capacity);
    EXPECT_EQ(time, solved->recompute_ns);
  }
  EXPECT_GT(fitting, 100);
}

// The recurrences as the header states them, all splits, nothing remembered.
struct Recurrence {
  std::int64_t total = -1;  // T; -1: no split fits
  std::int64_t forward = 0, backward = 0, warm_up = 0, ending = 0, steady = 0;
  std::vector<std::int64_t> layers;
};

Recurrence recur(const AdaPipeProblem& p, std::int64_t stage, std::int64_t first) {
  const std::int64_t stages = std::ssize(p.capacity_bytes);
  const std::int64_t layers = std::ssize(p.layers);
  const std::int64_t later = stages - stage - 1;
  Recurrence best;
  for (std::int64_t end = later == 0 ? layers : first + 1; end <= layers - later; ++end) {
    const std::int64_t again = least_recompute(range(p, first, end), stages - stage,
                                               p.capacity_bytes[static_cast<std::size_t>(stage)]);
    Recurrence here;
    if (again < 0) continue;
    here.backward = again;
    for (const AdaPipeLayer& layer : range(p, first, end)) {
      here.forward += layer.forward_ns;
      here.backward += layer.backward_ns;
    }
    here.warm_up = here.forward;
    here.ending = here.backward;
    here.steady = here.forward + here.backward;
    here.layers = {end - first};
    if (later > 0) {
      const Recurrence next = recur(p, stage + 1, end);
      if (next.total < 0) continue;
      here.warm_up += std::max(next.warm_up + next.backward, later * here.forward);
      here.ending += std::max(next.ending + next.forward, later * here.backward);
      here.steady = std::max(here.steady, next.steady);
      here.layers.insert(here.layers.end(), next.layers.begin(), next.layers.end());
    }
    here.total = here.warm_up + here.ending + (p.microbatches - stages + stage) * here.steady;
    if (best.total < 0 || here.total < best.total) best = here;
  }
  return best;
}

TEST(AdaPipe, DealsLayersAsItsRecurrencesSay) {
  int fitting = 0;
  for (std::uint64_t seed = 0; seed < 500; ++seed) {
    Rng rng(seed);
    AdaPipeProblem p = random_problem(rng);
    if (rng.coin()) p.layers.assign(p.layers.size(), p.layers[0]);
    const AdaPipePlan plan = solve_adapipe(p);
    const Recurrence expected = recur(p, 0, 0);
    EXPECT_EQ(plan.layers, expected.layers) << "seed " << seed;
    if (plan.layers.empty()) continue;
    ++fitting;
    EXPECT_EQ(plan.iteration_ns, expected.total) << "seed " << seed;
  }
  EXPECT_GT(fitting, 100);
}

TEST(AdaPipe, EqualLayersAndEnoughMemoryArePlain1F1B) {
  // Two layers a stage of 2 + 4 ns: F = 4, B = 8. Warm-up of stage 0 of 2: 4 + max(4 + 8, 4) = 16;
  // ending: 8 + max(8 + 4, 8) = 20; and 5 - 2 more slots of 12.
  AdaPipeProblem p;
  p.layers.assign(4, {2, 4, 0, 0, {{2, 10}}});
  p.microbatches = 5;
  p.capacity_bytes = {40, 40};
  const AdaPipePlan plan = solve_adapipe(p);
  EXPECT_EQ(plan.layers, (std::vector<std::int64_t>{2, 2}));
  EXPECT_EQ(plan.iteration_ns, 16 + 20 + 3 * 12);
  // One byte less: stage 0 runs one unit again; so does nobody who keeps one microbatch.
  p.capacity_bytes = {39, 39};
  EXPECT_GT(solve_adapipe(p).iteration_ns, plan.iteration_ns);
}

TEST(AdaPipe, GivesTheFirstStageFewerLayersWhereMemoryIsShort) {
  // Nothing can be run again; stage 0 keeps two microbatches, so three layers go to stage 1.
  AdaPipeProblem p;
  p.layers.assign(4, {2, 4, 10, 0, {}});
  p.microbatches = 5;
  p.capacity_bytes = {30, 30};
  EXPECT_EQ(solve_adapipe(p).layers, (std::vector<std::int64_t>{1, 3}));
  p.capacity_bytes = {30, 29};
  EXPECT_TRUE(solve_adapipe(p).layers.empty());
}

TEST(AdaPipe, DealsAsManyLayersAsTheLargestJobHas) {
  // 93 equal layers on 16 stages: some stage has at least six, and no stage needs more. With so
  // many microbatches that the steady slots decide, no split with a longer one is better.
  AdaPipeProblem p;
  p.layers.assign(93, {300, 600, 5, 7, {}});
  for (std::int64_t u = 0; u < 20; ++u) {
    for (AdaPipeLayer& layer : p.layers) layer.units.push_back({10 + u, 20 + u * u % 17});
  }
  p.microbatches = 10'000;
  p.capacity_bytes.assign(16, 1'000'000);
  const std::vector<std::int64_t> dealt = solve_adapipe(p).layers;
  EXPECT_EQ(std::accumulate(dealt.begin(), dealt.end(), std::int64_t{0}), 93);
  EXPECT_EQ(std::ranges::max(dealt), 6);
}

}  // namespace
}  // namespace tidemark::adapipe_test
