// What the adaptive policy does to a small job, in calm and in a spike.
#include "planner/adaptive_policy.h"

#include <algorithm>
#include <cmath>

#include <gtest/gtest.h>

#include "hw_profiles/hardware_profile.h"
#include "planner/rows_bound.h"
#include "sim/lane_engine.h"
#include "sim/training_run.h"
#include "tests/support/jobs.h"

namespace tidemark {
namespace {

Job small_job() {
  Job job = qwen3_30b_a3b();
  job.hardware = "bw1000";
  job.model.num_layers = 8;
  job.model.moe_layer.assign(8, true);
  job.layout.cards = 16;
  job.layout.pipeline = 2;
  job.batch.global_batch_size = 8 * 6;
  validate(job, "");
  return job;
}

HardwareProfile card_of(double gib) {
  HardwareProfile profile = load_hardware_profile("bw1000");
  profile.capacity_gib.value = gib;
  return profile;
}

std::int64_t taken(const StageDecisions& decisions) {
  return std::count(decisions.taken.begin(), decisions.taken.end(), 1);
}

// Rows of the first lane `ratio` times the others'.
LaneRows skewed(const Job& job, double ratio) {
  RoutingCounts counts = balanced_routing(job);
  const std::int64_t per_rank = counts.experts / job.layout.expert;
  for (std::int64_t mb = 0; mb < counts.microbatches; ++mb) {
    for (std::int64_t layer = 0; layer < counts.moe_layers; ++layer) {
      for (std::int64_t e = 0; e < per_rank; ++e) {
        std::int64_t& count = counts.row(mb, layer)[static_cast<std::size_t>(e)];
        count = static_cast<std::int64_t>(static_cast<double>(count) * ratio);
      }
    }
  }
  return LaneRows(job, counts);
}

class Fixed : public RoutingSource {
 public:
  explicit Fixed(const Job& job, double ratio) : counts_(balanced_routing(job)) {
    const std::int64_t per_rank = counts_.experts / job.layout.expert;
    for (std::int64_t mb = 0; mb < counts_.microbatches; ++mb) {
      for (std::int64_t layer = 0; layer < counts_.moe_layers; ++layer) {
        for (std::int64_t e = 0; e < per_rank; ++e) {
          std::int64_t& count = counts_.row(mb, layer)[static_cast<std::size_t>(e)];
          count = static_cast<std::int64_t>(static_cast<double>(count) * ratio);
        }
      }
    }
  }
  void counts(std::int64_t, std::int64_t, RoutingCounts& out) const override { out = counts_; }

 private:
  RoutingCounts counts_;
};

RunResult run_once(const Job& job, const HardwareProfile& card, const RoutingSource& routing,
                   const ManagedRun* managed) {
  const auto stop = [](const IterationRecord&) { return true; };
  if (managed == nullptr) return TrainingRun(job, card, routing, false).run(RunSpec{}, stop);
  return TrainingRun(job, card, routing, false, managed->program, *managed->policy)
      .run(RunSpec{}, stop);
}

TEST(AdaptivePolicy, GivesUpNothingWhereEverythingFits) {
  const Job job = small_job();
  const HardwareProfile card = card_of(1000);
  const ManagedRun managed = adaptive_run(job, card, 2.6);
  for (std::int32_t stage = 0; stage < 2; ++stage) {
    EXPECT_EQ(taken(managed.policy->decide(stage, skewed(job, 2.5))), 0);
  }
  const Fixed routing(job, 1.5);
  EXPECT_EQ(run_once(job, card, routing, &managed).total_ns,
            run_once(job, card, routing, nullptr).total_ns)
      << "operators that are not taken cost nothing";
}

TEST(AdaptivePolicy, RunsWhatDiesOtherwiseAndKeepsWithinTheCard) {
  const Job job = small_job();
  const HardwareProfile wide = card_of(1000);
  const Fixed routing(job, 2.5);
  const RunResult all = run_once(job, wide, routing, nullptr);
  // A card that lacks a quarter of what the most frugal plan leaves beyond it.
  const double need =
      static_cast<double>(all.iterations[0].peak_reserved.value) / static_cast<double>(kGiB.value);
  const HardwareProfile card = card_of(need * 0.9);
  EXPECT_EQ(run_once(job, card, routing, nullptr).finished, 0);
  const ManagedRun managed = adaptive_run(job, card, 2.6);
  ASSERT_GE(managed.stages[0].headroom_bytes, 0);
  const RunResult adapted = run_once(job, card, routing, &managed);
  EXPECT_EQ(adapted.finished, 1);
  EXPECT_LE(adapted.iterations[0].peak_reserved, adapted.limit);
}

TEST(AdaptivePolicy, GivesUpMoreInASpikeAndNothingOfItInTheCalmAfter) {
  const Job job = small_job();
  const HardwareProfile wide = card_of(1000);
  const RunResult all = run_once(job, wide, Fixed(job, 1), nullptr);
  const double need =
      static_cast<double>(all.iterations[0].peak_reserved.value) / static_cast<double>(kGiB.value);
  const ManagedRun managed = adaptive_run(job, card_of(need * 1.02), 2.6);
  const std::int64_t calm = taken(managed.policy->decide(0, skewed(job, 1)));
  const std::int64_t spike = taken(managed.policy->decide(0, skewed(job, 2.5)));
  EXPECT_LT(calm, spike);
  EXPECT_EQ(taken(managed.policy->decide(0, skewed(job, 1))), calm) << "decisions have no memory";
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

TEST(RowsBound, OfBalancedRoutingIsOne) {
  const Job job = small_job();
  const auto source = make_routing(job, RoutingInput{}, 1);
  EXPECT_DOUBLE_EQ(rows_bound(job, RoutingInput{}, *source, 0.01), 1);
}

}  // namespace
}  // namespace tidemark
