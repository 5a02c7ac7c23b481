#include "planner/ratio_search.h"

#include <gtest/gtest.h>

#include "models/input_error.h"
#include "models/job_reader.h"
#include "sim/simulation.h"
#include "tests/support/jobs.h"
#include "traces/routing.h"

namespace tidemark::ratio_search_test {
namespace {

// Llama-65B of Kwai's sweep with a quarter of the layers and microbatches, on cards of other sizes.
Job small_kwai_job() {
  Job job = read_job(TIDEMARK_SOURCE_DIR "/validation/kwai_atc24/job.json");
  job.model.num_layers = 16;
  job.layout.virtual_pipeline = 2;
  job.layout.cards = 64;
  return job;
}

HardwareProfile card_of(double gib) {
  HardwareProfile profile = load_hardware_profile("h800");
  profile.capacity_gib.value = gib;
  return profile;
}

SimulationResult simulate_at(Job job, const HardwareProfile& card, double ratio) {
  job.options.offload_ratio = ratio;
  return simulate(job, card, balanced_routing(job)).result;
}

// Between what is reserved at both ends.
TEST(LeastOffloadRatio, FitsAndAHundredthLessDoesNot) {
  const Job job = small_kwai_job();
  const HardwareProfile wide = card_of(1000);
  const auto needs = [&](double ratio) {
    const SimulationResult r = simulate_at(job, wide, ratio);
    return to_gib(r.capacity - r.headroom());
  };
  const HardwareProfile card = card_of((needs(0) + needs(1)) / 2);
  const RatioSearch search = least_offload_ratio(job, card);
  ASSERT_TRUE(search.best.has_value());
  EXPECT_FALSE(search.recomputes);
  EXPECT_EQ(search.best->options.offload_ratio, search.ratio);
  EXPECT_GT(search.ratio, 0.1);
  EXPECT_LT(search.ratio, 0.9);
  EXPECT_TRUE(simulate_at(job, card, search.ratio).fits());
  EXPECT_FALSE(simulate_at(job, card, search.ratio - 0.01).fits());
  EXPECT_LE(search.simulated, 1 + 7) << "bisection of 101 ratios";
}

TEST(LeastOffloadRatio, IsZeroWhereEverythingFits) {
  const RatioSearch search = least_offload_ratio(small_kwai_job(), card_of(1000));
  EXPECT_EQ(search.ratio, 0);
  EXPECT_FALSE(search.recomputes);
}

// The card holds what is reserved with everything offloaded and run again, which is less than what
// is allocated without running anything again.
TEST(LeastOffloadRatio, RunsNormsAndSwigluAgainOnlyWhereNoRatioIsEnough) {
  Job job = small_kwai_job();
  job.model.num_layers = 32;
  Job again = job;
  again.options.recompute.layernorm = again.options.recompute.mlp_act = true;
  const SimulationResult r = simulate_at(again, card_of(1000), 1);
  const double least = to_gib(r.capacity - r.headroom());
  const RatioSearch search = least_offload_ratio(job, card_of(least + 0.1));
  ASSERT_TRUE(search.best.has_value());
  EXPECT_TRUE(search.recomputes);
  EXPECT_FALSE(least_offload_ratio(job, card_of(least - 2)).best.has_value());
}

TEST(LeastOffloadRatio, IsForKwaisFork) {
  EXPECT_THROW(least_offload_ratio(two_stage_job(), card_of(80)), InputError);
}

}  // namespace
}  // namespace tidemark::ratio_search_test
