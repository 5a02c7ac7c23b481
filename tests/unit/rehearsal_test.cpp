// Whether the adaptive policy keeps to the stated risk, on a card that is nearly too small.
#include "planner/rehearsal.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>

#include <gtest/gtest.h>

#include "hw_profiles/hardware_profile.h"
#include "planner/rows_bound.h"
#include "sim/training_run.h"
#include "tests/support/jobs.h"
#include "traces/lane_rows.h"

namespace tidemark::rehearsal_test {
namespace {

constexpr double kRisk = 2e-2;
#ifdef __SANITIZE_ADDRESS__
constexpr std::int64_t kRouted = 5'000;
constexpr std::int64_t kRun = 200;
#else
constexpr std::int64_t kRouted = 20'000;
constexpr std::int64_t kRun = 1'000;
#endif

// Two-sided, 95 %, of a binomial count: normal, as n * risk is large.
std::int64_t most_of(std::int64_t n) {
  const auto trials = static_cast<double>(n);
  return static_cast<std::int64_t>(trials * kRisk + 1.96 * std::sqrt(trials * kRisk * (1 - kRisk)));
}
std::int64_t least_of(std::int64_t n) {
  const auto trials = static_cast<double>(n);
  return static_cast<std::int64_t>(
      std::ceil(trials * kRisk - 1.96 * std::sqrt(trials * kRisk * (1 - kRisk))));
}

class Risk : public testing::Test {
 protected:
  // The most frugal plan leaves `spare` bytes under the bound, by the policy's own estimate.
  HardwareProfile card_with(Bytes spare) const {
    HardwareProfile card = load_hardware_profile("bw1000");
    card.capacity_gib.value = 1000;
    const std::int64_t least = adaptive_run(job_, card, bound_).plan.least_headroom_bytes();
    card.capacity_gib.value -=
        static_cast<double>(least - spare.value) / static_cast<double>(kGiB.value);
    return card;
  }

  const Job job_ = small_moe_job(8, 6);  // one unit
  const std::unique_ptr<RoutingSource> source_ = make_routing(job_, workload(), 1);
  const double bound_ = rows_bound(job_, RoutingInput{workload(), {}}, *source_, kRisk);

  static Workload workload() {
    Workload w;
    w.kind = WorkloadKind::kBagualu2;
    return w;
  }
};

TEST_F(Risk, IsHowOftenRowsExceedTheBound) {
  std::int64_t beyond = 0;
  RoutingCounts counts;
  LaneRows rows(job_);
  for (std::int64_t i = 0; i < kRouted; ++i) {
    source_->counts(i, 0, counts);
    rows.assign(counts);
    beyond += rows.max_over_mean() > bound_;
  }
  EXPECT_GE(beyond, least_of(kRouted));
  EXPECT_LE(beyond, most_of(kRouted));
}

TEST_F(Risk, OfThePlainPolicyIsNotExceeded) {
  const HardwareProfile card = card_with(kGiB);
  const AdaptiveRun adaptive = adaptive_run(job_, card, bound_);
  RunSpec spec;
  spec.iterations = kRun;
  spec.checkpoint_interval = 1;
  TrainingRun run(job_, card, *source_, true, adaptive.program, *adaptive.policy);
  const RunResult result = run.run(spec, [](const IterationRecord&) { return true; });
  EXPECT_EQ(result.finished, kRun);
  EXPECT_LE(std::ssize(result.out_of_memory), most_of(std::ssize(result.iterations)));
}

TEST_F(Risk, OfARehearsedPolicyIsNotExceeded) {
  const HardwareProfile card = card_with(kGiB);
  const Rehearsal rehearsal = rehearsed_adaptive_run(job_, card, bound_, *source_, 200);
  EXPECT_EQ(rehearsal.deaths, 0);
  RunSpec spec;
  spec.iterations = kRun;
  spec.checkpoint_interval = 1;
  TrainingRun run(job_, card, *source_, true, rehearsal.run.program, *rehearsal.run.policy);
  const RunResult result = run.run(spec, [](const IterationRecord&) { return true; });
  EXPECT_EQ(result.finished, kRun);
  EXPECT_LE(std::ssize(result.out_of_memory), most_of(std::ssize(result.iterations)));
}

TEST_F(Risk, ARehearsalThatPassesWithholdsNothing) {
  const Rehearsal rehearsal =
      rehearsed_adaptive_run(job_, card_with(8 * kGiB), bound_, *source_, 5);
  EXPECT_EQ(rehearsal.withheld_bytes, 0);
  EXPECT_EQ(rehearsal.deaths, 0);
}

}  // namespace
}  // namespace tidemark::rehearsal_test
