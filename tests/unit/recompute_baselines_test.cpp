#include "planner/recompute_baselines.h"

#include <algorithm>
#include <vector>

#include <gtest/gtest.h>

#include "hw_profiles/hardware_profile.h"
#include "planner/action_program.h"
#include "planner/decided_memory.h"
#include "sim/simulation.h"
#include "tests/support/jobs.h"
#include "traces/routing.h"

namespace tidemark::recompute_baselines_test {
namespace {

constexpr double kLoad = 1.25;

using Build = ManagedRun (*)(const Job&, const HardwareProfile&, double);
constexpr Build kBoth[] = {adapipe_run, adaptive_recompute_run};

HardwareProfile card_of(Bytes segments) {
  HardwareProfile profile = load_hardware_profile("bw1000");
  const Bytes outside = profile.capacity() - segment_limit(small_moe_job(8, 6), profile);
  profile.capacity_gib.value =
      static_cast<double>((segments + outside).value) / static_cast<double>(kGiB.value);
  return profile;
}

Bytes most_reserved(const std::vector<CardMemory>& cards) {
  return std::ranges::max_element(cards, {}, &CardMemory::reserved)->reserved;
}

// A small job, what its cards reserve under the load if nothing is run again, and if everything is.
struct Sizes {
  Job job = small_moe_job(8, 6);
  LaneRows rows{job, scaled(balanced_routing(job), kLoad)};
  Bytes all, least;
  Sizes() {
    const HardwareProfile wide = card_of(1000 * kGiB);
    const ActionProgram p = build_action_program(job, wide, ActionKind::kRecompute);
    const UnitDecisions none{StageDecisions(), StageDecisions()};
    all = most_reserved(decided_memory(p.job, wide, p.program, rows, none));
    least = most_reserved(decided_memory(p.job, wide, p.program, rows, p.everything()));
  }
};

const Sizes& sizes() {
  static const Sizes sizes;
  return sizes;
}

UnitDecisions decisions_of(const ManagedRun& run) {
  return {run.policy->decide(0, sizes().rows), run.policy->decide(1, sizes().rows)};
}

std::int64_t taken(const StageDecisions& decisions) {
  return std::count(decisions.taken.begin(), decisions.taken.end(), 1);
}

TEST(RecomputeBaselines, RunNothingAgainWhereEverythingFits) {
  const HardwareProfile wide = card_of(4 * sizes().all);
  for (const Build build : kBoth) {
    for (const StageDecisions& d : decisions_of(build(sizes().job, wide, kLoad))) {
      EXPECT_EQ(taken(d), 0);
    }
  }
}

TEST(RecomputeBaselines, FitTheCardUnderTheLoadThatTheyPlanFor) {
  ASSERT_LT(sizes().least, sizes().all);
  const HardwareProfile card = card_of(Bytes((sizes().all + sizes().least).value / 2));
  for (const Build build : kBoth) {
    const ManagedRun run = build(sizes().job, card, kLoad);
    const UnitDecisions decisions = decisions_of(run);
    const auto memory = decided_memory(sizes().job, card, run.program, sizes().rows, decisions);
    EXPECT_LE(most_reserved(memory), segment_limit(sizes().job, card));
    EXPECT_GT(taken(decisions[0]) + taken(decisions[1]), 0);
    for (const StageDecisions& d : decisions) {
      for (std::int32_t a = 0; a < d.actions; ++a) {
        for (std::int32_t mb = 1; mb < 6; ++mb) {
          EXPECT_EQ(d.takes(mb, a), d.takes(0, a)) << "every microbatch the same";
        }
      }
    }
  }
}

TEST(RecomputeBaselines, RunEverythingAgainWhereEvenThatIsTooMuch) {
  const HardwareProfile card = card_of(Bytes(sizes().least.value / 2));
  const ActionProgram p = build_action_program(sizes().job, card, ActionKind::kRecompute);
  const UnitDecisions everything = p.everything();
  for (const Build build : kBoth) {
    const UnitDecisions decisions = decisions_of(build(sizes().job, card, kLoad));
    for (std::size_t s = 0; s < 2; ++s) EXPECT_EQ(decisions[s].taken, everything[s].taken);
  }
}

TEST(RecomputeBaselines, TheVendorsGivesEveryStageTheSameShareOfItsMemory) {
  const HardwareProfile card = card_of(Bytes((sizes().all + sizes().least).value / 2));
  const ActionProgram p = build_action_program(sizes().job, card, ActionKind::kRecompute);
  const auto least = decided_memory(p.job, card, p.program, sizes().rows, p.everything());
  const UnitDecisions decisions = decisions_of(adaptive_recompute_run(sizes().job, card, kLoad));
  // All lanes receive the same rows here.
  const std::int64_t rows = sizes().rows.at(0, 0)[0];
  for (std::size_t s = 0; s < 2; ++s) {
    std::int64_t saved = 0;
    for (std::size_t e = 0; e < p.stages[s].action_of.size(); ++e) {
      const std::int32_t action = p.stages[s].action_of[e];
      if (action >= 0 && !decisions[s].takes(0, action)) saved += p.stages[s].freed(e).at(rows);
    }
    EXPECT_LE(saved, (segment_limit(sizes().job, card) - least[s].reserved).value / 2)
        << "of two stages";
  }
}

}  // namespace
}  // namespace tidemark::recompute_baselines_test
