#include "planner/recompute_baselines.h"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "hw_profiles/hardware_profile.h"
#include "planner/action_program.h"
#include "planner/decided_memory.h"
#include "planner/layer_times.h"
#include "sim/simulation.h"
#include "tests/support/jobs.h"
#include "traces/routing.h"

namespace tidemark::recompute_baselines_test {
namespace {

constexpr double kLoad = 1.25;

struct Built {
  Job job;
  ManagedRun run;
};
Built adapipe(const Job& job, const HardwareProfile& profile) {
  AdaPipeRun built = adapipe_run(job, profile, kLoad);
  return {std::move(built.job), std::move(built.run)};
}
Built adaptive_recompute(const Job& job, const HardwareProfile& profile) {
  return {job, adaptive_recompute_run(job, profile, kLoad)};
}
using Build = Built (*)(const Job&, const HardwareProfile&);
constexpr Build kBoth[] = {adapipe, adaptive_recompute};

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
    for (const StageDecisions& d : decisions_of(build(sizes().job, wide).run)) {
      EXPECT_EQ(taken(d), 0);
    }
  }
}

TEST(RecomputeBaselines, FitTheCardUnderTheLoadThatTheyPlanFor) {
  ASSERT_LT(sizes().least, sizes().all);
  const HardwareProfile card = card_of(Bytes((sizes().all + sizes().least).value / 2));
  for (const Build build : kBoth) {
    const Built built = build(sizes().job, card);
    const UnitDecisions decisions = decisions_of(built.run);
    const auto memory = decided_memory(built.job, card, built.run.program, sizes().rows, decisions);
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
    const UnitDecisions decisions = decisions_of(build(sizes().job, card).run);
    for (std::size_t s = 0; s < 2; ++s) EXPECT_EQ(decisions[s].taken, everything[s].taken);
  }
}

std::int64_t outside_and(const std::map<std::int32_t, LayerTime>& stage,
                         std::int64_t LayerTime::*pass, std::int64_t layers) {
  return stage.at(-1).*pass + layers * (stage.at(2).*pass);
}

TEST(RecomputeBaselines, AdaPipeDealsTheLossAsTheWorkThatItIs) {
  // Everything fits. Of two stages the first has the embedding, the last the loss, and all layers
  // are equal: with n microbatches T is W + E + (n - 2) S, and the split with the least T is dealt.
  const Job& job = sizes().job;
  const HardwareProfile wide = card_of(100 * sizes().all);
  const Job on = on_platform(job, wide);
  const LaneRows balanced(on, balanced_routing(on));
  auto times = layer_times(build_program(on, wide), balanced);
  times[1][2] = times[0].at(2);  // an inner layer, of either stage
  std::int64_t best = 0;
  std::int64_t least = -1;
  for (std::int64_t first = 1; first < 8; ++first) {
    const std::int64_t f0 = outside_and(times[0], &LayerTime::forward_ns, first);
    const std::int64_t b0 = outside_and(times[0], &LayerTime::backward_ns, first);
    const std::int64_t f1 = outside_and(times[1], &LayerTime::forward_ns, 8 - first);
    const std::int64_t b1 = outside_and(times[1], &LayerTime::backward_ns, 8 - first);
    const std::int64_t warm_up = f0 + std::max(f1 + b1, f0);
    const std::int64_t ending = b0 + std::max(b1 + f1, b0);
    const std::int64_t total = warm_up + ending + (6 - 2) * std::max(f0 + b0, f1 + b1);
    if (least >= 0 && least <= total) continue;
    least = total;
    best = first;
  }
  ASSERT_GT(best, 4) << "the loss is worth a layer";
  const AdaPipeRun run = adapipe_run(job, wide, kLoad);
  EXPECT_EQ(run.keeps_split_since, "");
  EXPECT_EQ(run.split.layers, (std::vector<std::int64_t>{best, 8 - best}));
  EXPECT_EQ(run.job.layout.listed_layers, run.split.layers);
  validate(run.job, "");
  // Within the layers that are not the inner one: the first and last of a stage.
  EXPECT_NEAR(static_cast<double>(run.split.iteration_ns), static_cast<double>(least),
              0.01 * static_cast<double>(least));
}

TEST(RecomputeBaselines, AdaPipeKeepsTheSplitThatItsFormulasDoNotHoldFor) {
  const HardwareProfile wide = card_of(4 * sizes().all);
  Job virtual_stages = sizes().job;
  virtual_stages.layout.virtual_pipeline = 2;
  Job one_stage = sizes().job;
  one_stage.layout.pipeline = 1;
  one_stage.layout.cards = 8;
  Job zero_bubble = sizes().job;
  zero_bubble.layout.schedule = PipelineSchedule::kZbH1;
  for (const Job& job : {virtual_stages, one_stage, zero_bubble, small_moe_job(8, 1)}) {
    validate(job, "");
    const AdaPipeRun run = adapipe_run(job, wide, kLoad);
    EXPECT_NE(run.keeps_split_since, "");
    EXPECT_TRUE(run.split.layers.empty());
    EXPECT_TRUE(run.job.layout.listed_layers.empty());
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
