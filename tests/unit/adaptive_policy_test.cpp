// What the adaptive policy does to a small job, in calm and in a spike.
#include "planner/adaptive_policy.h"

#include <algorithm>
#include <cmath>
#include <fstream>

#include <gtest/gtest.h>

#include "hw_profiles/hardware_profile.h"
#include "models/input_error.h"
#include "models/layer_operators.h"
#include "planner/interleaved_run.h"
#include "planner/ladder_policy.h"
#include "planner/plan_summary.h"
#include "planner/rows_bound.h"
#include "sim/lane_engine.h"
#include "sim/training_run.h"
#include "tests/support/jobs.h"
#include "traces/trace_file.h"

namespace tidemark::adaptive_policy_test {
namespace {

Job small_job() { return small_moe_job(8, 6); }

HardwareProfile card_of(double gib) {
  HardwareProfile profile = load_hardware_profile("bw1000");
  profile.capacity_gib.value = gib;
  return profile;
}

std::int64_t taken(const StageDecisions& decisions) {
  return std::count(decisions.taken.begin(), decisions.taken.end(), 1);
}

LaneRows skewed(const Job& job, double ratio) { return LaneRows(job, spiked_routing(job, ratio)); }

// In every iteration.
class Spiked : public RoutingSource {
 public:
  Spiked(const Job& job, double ratio) : counts_(spiked_routing(job, ratio)) {}
  void counts(std::int64_t, std::int64_t, RoutingCounts& out) const override { out = counts_; }

 private:
  RoutingCounts counts_;
};

RunResult run_once(const Job& job, const HardwareProfile& card, const RoutingSource& routing,
                   const ManagedRun* managed) {
  const auto go_on = [](const IterationRecord&) { return true; };
  if (managed == nullptr) return TrainingRun(job, card, routing, false).run(RunSpec{}, go_on);
  return TrainingRun(job, card, routing, false, managed->program, *managed->policy)
      .run(RunSpec{}, go_on);
}

TEST(AdaptivePolicy, GivesUpNothingWhereEverythingFits) {
  const Job job = small_job();
  const HardwareProfile card = card_of(1000);
  const AdaptiveRun managed = adaptive_run(job, card, 2.6);
  for (std::int32_t stage = 0; stage < 2; ++stage) {
    EXPECT_EQ(taken(managed.policy->decide(stage, skewed(job, 2.5))), 0);
  }
}

TEST(FixedRun, OperatorsThatAreNotTakenCostNothing) {
  const Job job = small_job();
  const HardwareProfile card = card_of(1000);
  const ManagedRun managed = fixed_run(job, card, 2.6);
  const Spiked routing(job, 1.5);
  EXPECT_EQ(run_once(job, card, routing, &managed).total_ns,
            run_once(job, card, routing, nullptr).total_ns);
}

// The device idles at a gate, so each layer of each microbatch of the slowest stage adds a
// decision.
TEST(AdaptivePolicy, PaysForDecidingAtEachGate) {
  const Job job = small_job();
  const HardwareProfile card = card_of(1000);
  const AdaptiveRun managed = adaptive_run(job, card, 2.6);
  const Spiked routing(job, 1);
  const std::int64_t more = run_once(job, card, routing, &managed).total_ns -
                            run_once(job, card, routing, nullptr).total_ns;
  const std::int64_t gates_of_stage = 6 * 8 / 2;  // microbatches x layers
  // A microbatch fills the pipeline over the other stage's gates, too.
  EXPECT_GE(more, gates_of_stage * kDecisionNs);
  EXPECT_LE(more, (gates_of_stage + 8 / 2) * kDecisionNs);
}

TEST(AdaptivePolicy, RunsWhatDiesOtherwiseAndKeepsWithinTheCard) {
  const Job job = small_job();
  const HardwareProfile wide = card_of(1000);
  const Spiked routing(job, 2.5);
  const RunResult all = run_once(job, wide, routing, nullptr);
  // A card that lacks a tenth of that.
  const double need =
      static_cast<double>(all.iterations[0].peak_reserved.value) / static_cast<double>(kGiB.value);
  const HardwareProfile card = card_of(need * 0.9);
  EXPECT_EQ(run_once(job, card, routing, nullptr).finished, 0);
  const AdaptiveRun managed = adaptive_run(job, card, 2.6);
  ASSERT_GE(managed.plan.stages[0].headroom_bytes, 0);
  const RunResult adapted = run_once(job, card, routing, &managed);
  EXPECT_EQ(adapted.finished, 1);
  EXPECT_LE(adapted.iterations[0].peak_reserved, adapted.limit);
  EXPECT_EQ(adapted.highest_bound(), std::nullopt) << "of cards that decide differently";
}

TEST(AdaptivePolicy, GivesUpMoreInASpikeAndNothingOfItInTheCalmAfter) {
  const Job job = small_job();
  const HardwareProfile wide = card_of(1000);
  const RunResult all = run_once(job, wide, Spiked(job, 1), nullptr);
  const double need =
      static_cast<double>(all.iterations[0].peak_reserved.value) / static_cast<double>(kGiB.value);
  const AdaptiveRun managed = adaptive_run(job, card_of(need * 1.02), 2.6);
  const std::int64_t calm = taken(managed.policy->decide(0, skewed(job, 1)));
  const std::int64_t spike = taken(managed.policy->decide(0, skewed(job, 2.5)));
  EXPECT_LT(calm, spike);
  EXPECT_EQ(taken(managed.policy->decide(0, skewed(job, 1))), calm) << "decisions have no memory";
}

TEST(AdaptivePolicy, KeepsWhatItHoldsWithinTheHeadroom) {
  const Job job = small_job();
  const std::int64_t roomy = adaptive_run(job, card_of(1000), 2.6).plan.least_headroom_bytes();
  const AdaptiveRun managed = adaptive_run(job, card_of(1000 - to_gib(Bytes(roomy)) + 2), 2.6);
  const auto& policy = dynamic_cast<const LadderPolicy&>(*managed.policy);
  for (std::int32_t s = 0; s < 2; ++s) {
    const AdaptivePlan::Stage& stage = managed.plan.stages[static_cast<std::size_t>(s)];
    EXPECT_GE(stage.run_ahead_bytes, 0);
    EXPECT_LE(stage.run_ahead_bytes, stage.headroom_bytes);
    for (const double ratio : {1.0, 1.5, 2.5, 4.0}) {
      const std::int64_t most = policy.most_excess(s, skewed(job, ratio));
      EXPECT_GT(most, 0);
      EXPECT_LE(most, stage.headroom_bytes - stage.run_ahead_bytes) << ratio;
    }
  }
}

// Found when combined slots were said not to fit: the CPU runs ahead of copies and exchanges, and
// on a card without limit their blocks pile up.
TEST(AdaptivePolicy, CountsOnACardThatWaitsForItsDeviceInASpike) {
  const Job job = with_combined_slots(small_moe_job(8, 16)).value();
  HardwareProfile card = load_hardware_profile("bw1000");
  const AdaptivePlan roomy = adaptive_run(job, card, 2.6).plan;
  card.capacity_gib.value -= to_gib(Bytes(roomy.least_headroom_bytes())) - 0.25;
  const AdaptiveRun managed = adaptive_run(job, card, 2.6);
  EXPECT_GE(managed.plan.least_headroom_bytes(), 0);
  const RunResult result = run_once(job, card, Spiked(job, 2.5), &managed);
  EXPECT_EQ(result.finished, 1);
  EXPECT_GT(result.iterations[0].alloc_retries, 0);
}

// Host memory of a node that lets a card pin a third of what it would pin without a limit.
TEST(AdaptivePolicy, PinsNoMoreThanTheCardsShareOfItsNodesMemory) {
  const Job job = small_job();
  const RunResult all = run_once(job, card_of(1000), Spiked(job, 2.5), nullptr);
  const double need =
      static_cast<double>(all.iterations[0].peak_reserved.value) / static_cast<double>(kGiB.value);
  HardwareProfile card = card_of(need * 0.9);
  const auto bound = static_cast<std::int64_t>(static_cast<double>(balanced_lane_rows(job)) * 2.6);
  const auto pinned = [&](const AdaptiveRun& managed, double ratio) {
    std::int64_t most = 0;
    for (std::int32_t s = 0; s < 2; ++s) {
      const Schedule& schedule = managed.program.schedule;
      most = std::max(most,
                      pinned_host_bytes(managed.stages[static_cast<std::size_t>(s)],
                                        managed.policy->decide(s, skewed(job, ratio)),
                                        schedule.microbatches, peak_in_flight(schedule, s), bound));
    }
    return most;
  };
  const AdaptiveRun unlimited = adaptive_run(job, card, 2.6);
  const std::int64_t limit = pinned(unlimited, 2.5) / 3;
  ASSERT_GT(limit, 0);
  card.host_memory_gib.emplace().value =
      card.cards_per_node.value * static_cast<double>(limit) / static_cast<double>(kGiB.value);
  const AdaptiveRun limited = adaptive_run(job, card, 2.6);
  for (const double ratio : {1.0, 1.5, 2.0, 2.5}) EXPECT_LE(pinned(limited, ratio), limit);
  EXPECT_THROW(planned_run(job, card, unlimited.plan), InputError);
  EXPECT_NO_THROW(planned_run(job, card, limited.plan));
}

// Without a host to copy to, what may be kept in 8 bits need not be run again. The last stage,
// which is the slowest: elsewhere running again is hidden.
TEST(AdaptivePolicy, QuantizesOnlyWhereTheJobAllowsIt) {
  Job job = small_job();
  HardwareProfile card = card_of(1);
  card.host_memory_gib.emplace();
  const auto ladder = [&] { return adaptive_run(job, card, 2.6).plan.stages[1].rungs; };
  const auto quantized = [](const std::vector<AdaptivePlan::Rung>& rungs) {
    std::int64_t n = 0;
    for (const AdaptivePlan::Rung& rung : rungs) {
      n += std::ranges::count(rung.actions, ActionKind::kQuantize, &AdaptivePlan::Action::kind);
    }
    return n;
  };
  const auto strict = ladder();
  EXPECT_EQ(quantized(strict), 0);
  job.options.quantize_activations = true;
  const auto allowed = ladder();
  EXPECT_GT(quantized(allowed), 0);
  // A plan that holds no more than one of the strict ladder exposes no more.
  int compared = 0;
  for (const AdaptivePlan::Rung& more : allowed) {
    for (const AdaptivePlan::Rung& rung : strict) {
      if (rung.held_bytes > more.held_bytes) continue;
      EXPECT_LE(more.exposed_ns, rung.exposed_ns);
      ++compared;
    }
  }
  EXPECT_GT(compared, 10);
}

TEST(AdaptivePolicy, OffloadsNothingWithoutHostMemory) {
  const Job job = small_job();
  HardwareProfile card = card_of(1);
  card.host_memory_gib.emplace();
  const AdaptiveRun managed = adaptive_run(job, card, 2.6);
  for (const AdaptivePlan::Stage& stage : managed.plan.stages) {
    EXPECT_GT(stage.rungs.size(), 1U) << "recomputation is left";
    for (const AdaptivePlan::Rung& rung : stage.rungs) {
      for (const AdaptivePlan::Action& action : rung.actions) {
        EXPECT_NE(action.kind, ActionKind::kOffload);
      }
    }
  }
}

TEST(RowsBound, OfBurstsIsTheirQuantile) {
  const Job job = small_job();
  RoutingInput input;
  input.workload.kind = WorkloadKind::kBagualu2;
  const auto source = make_routing(job, input, 1);
  const Workload& w = input.workload;
  // P(x > bound) = p (1 - F(bound)).
  for (const double risk : {0.0001, 0.001, 0.01, 0.02}) {
    const double bound = rows_bound(job, input, *source, risk);
    const double within = [&](double x) {
      return (1 - std::pow(w.burst_low / x, w.burst_exponent)) /
             (1 - std::pow(w.burst_low / w.burst_high, w.burst_exponent));
    }(bound);
    EXPECT_NEAR(w.burst_probability * (1 - within), risk, 1e-12);
  }
  EXPECT_EQ(rows_bound(job, input, *source, 0.5), w.burst_low) << "bursts are rarer than the risk";
}

TEST(RowsBound, OfATraceIsTheLargestOfItsFirstHalf) {
  const Job job = small_job();
  Workload skewed;
  skewed.kind = WorkloadKind::kDirichlet;
  const auto drawn = make_routing(job, skewed, 1);
  RoutingInput input;
  input.file = testing::TempDir() + "rows_bound.trace";
  std::ofstream file(input.file, std::ios::binary);
  TraceInfo info;
  info.shape = routing_shape(job);
  TraceWriter writer(file, info);
  double highest = 0;
  for (std::int64_t i = 0; i < 4; ++i) {
    for (std::int64_t u = 0; u < info.shape.units; ++u) {
      RoutingCounts counts;
      drawn->counts(i, u, counts);
      writer.write(counts);
      if (i < 2) highest = std::max(highest, LaneRows(job, counts).max_over_mean());
    }
  }
  writer.finish();
  file.close();
  const auto source = make_routing(job, input, 1);
  EXPECT_DOUBLE_EQ(rows_bound(job, input, *source, 0.01), highest);
}

TEST(RowsBound, OfBalancedRoutingIsOne) {
  const Job job = small_job();
  const auto source = make_routing(job, RoutingInput{}, 1);
  EXPECT_DOUBLE_EQ(rows_bound(job, RoutingInput{}, *source, 0.01), 1);
}

}  // namespace
}  // namespace tidemark::adaptive_policy_test
