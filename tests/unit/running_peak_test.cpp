#include "sim/running_peak.h"

#include <cmath>
#include <map>
#include <vector>

#include <gtest/gtest.h>

#include "hw_profiles/hardware_profile.h"
#include "tests/support/jobs.h"
#include "traces/routing.h"

namespace tidemark::running_peak_test {
namespace {

const HardwareProfile& profile() {
  static const HardwareProfile profile = load_hardware_profile("bw1000");
  return profile;
}

// Balanced, but for iterations in which the first rank receives a multiple.
class Spikes : public RoutingSource {
 public:
  Spikes(const Job& job, std::map<std::int64_t, double> ratios) : job_(job), ratios_(ratios) {}
  void counts(std::int64_t iteration, std::int64_t /*unit*/, RoutingCounts& out) const override {
    const auto found = ratios_.find(iteration);
    out = spiked_routing(job_, found == ratios_.end() ? 1 : found->second);
  }

 private:
  Job job_;
  std::map<std::int64_t, double> ratios_;
};

double mib_between(Bytes a, Bytes b) { return std::abs(to_mib(a) - to_mib(b)); }

class RunningPeaks : public ::testing::Test {
 protected:
  std::vector<Bytes> of(const std::map<std::int64_t, double>& spikes, std::int32_t lane) const {
    return running_peaks(job_, balanced_, Spikes(job_, spikes), {0, 1, lane}, 5);
  }
  // Lane 0 of stage 1 where all iterations are so, through the emulated allocator.
  StageResult repeated(double ratio) const {
    return simulate(job_, profile(), spiked_routing(job_, ratio)).result.stages[1];
  }

  const Job job_ = small_moe_job(4, 4);
  const Simulation balanced_ = simulate(job_, profile(), balanced_routing(job_));
};

TEST_F(RunningPeaks, OfBalancedRoutingAreTheFirstIterationsAndThenTheLaterOnes) {
  const StageResult& stage = balanced_.result.stages[1];
  const Bytes first = stage.peak_allocated_first_iteration();
  const Bytes later = stage.peak_allocated();
  ASSERT_LT(first, later);
  EXPECT_EQ(of({}, 3), (std::vector<Bytes>{first, later, later, later, later}));
}

TEST_F(RunningPeaks, ASpikeRaisesThemForGood) {
  const Bytes before = balanced_.result.stages[1].peak_allocated();
  const std::vector<Bytes> peaks = of({{2, 2}, {3, 1.5}}, 0);
  EXPECT_EQ(peaks[1], before);
  // What cards of a stage hold alike does not depend on the routing, but for unsplit tails of
  // blocks of more than 1 MiB: less than that each.
  const Bytes spiked = repeated(2).peak_allocated();
  EXPECT_LT(mib_between(peaks[2], spiked), 8);
  EXPECT_GT(peaks[2], before + Bytes(100 << 20));
  EXPECT_EQ(peaks[3], peaks[2]) << "a lower one does not show";
  EXPECT_EQ(peaks[4], peaks[2]);
}

TEST_F(RunningPeaks, TheFirstIterationHasItsOwnRouting) {
  const Bytes first = repeated(2).peak_allocated_first_iteration();
  EXPECT_LT(mib_between(of({{0, 2}}, 0)[0], first), 8);
}

TEST_F(RunningPeaks, OtherCardsDoNotNoticeASpike) { EXPECT_EQ(of({{2, 2}}, 3), of({}, 3)); }

}  // namespace
}  // namespace tidemark::running_peak_test
