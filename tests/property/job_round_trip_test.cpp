// A job that is written and read again is the same job.
#include <cstdint>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "models/job_reader.h"
#include "tests/support/random_jobs.h"

namespace tidemark::job_round_trip_test {
namespace {

TEST(JobRoundTrip, IsExact) {
  int checkpointed = 0;
  int listed = 0;
  int ordered = 0;
  for (std::uint64_t seed = 1; seed <= 500; ++seed) {
    Job job = seed % 4 == 0 ? random_scheduled_job(seed) : random_job(seed);
    if (job.combines_slots() && seed % 8 < 4) {
      job.options.combined_slot_order = SlotOrder::kShortest;
      ++ordered;
    }
    job.options.quantize_activations = seed % 5 == 0;
    const auto text = to_json(job).dump();
    const Job back = job_from_json(nlohmann::json::parse(text), job.source);
    ASSERT_EQ(to_json(back).dump(), text) << describe(job, seed);
    ASSERT_EQ(back.layout.listed_layers, job.layout.listed_layers) << describe(job, seed);
    ASSERT_EQ(back.layout.virtual_pipeline, job.layout.virtual_pipeline) << describe(job, seed);
    ASSERT_EQ(back.layout.microbatch_group, job.layout.microbatch_group) << describe(job, seed);
    ASSERT_EQ(back.options.overlap_p2p_comm, job.options.overlap_p2p_comm) << describe(job, seed);
    ASSERT_EQ(back.options.combined_slot_order, job.options.combined_slot_order)
        << describe(job, seed);
    ASSERT_EQ(back.options.quantize_activations, job.options.quantize_activations)
        << describe(job, seed);
    ASSERT_EQ(back.layout.schedule, job.layout.schedule) << describe(job, seed);
    ASSERT_EQ(back.options.recompute, job.options.recompute) << describe(job, seed);
    ASSERT_EQ(back.options.full_recompute.has_value(), job.options.full_recompute.has_value())
        << describe(job, seed);
    if (const auto& full = job.options.full_recompute) {
      ASSERT_EQ(back.options.full_recompute->method, full->method) << describe(job, seed);
      ASSERT_EQ(back.options.full_recompute->num_layers, full->num_layers) << describe(job, seed);
      ++checkpointed;
    }
    listed += job.layout.listed_layers.empty() ? 0 : 1;
  }
  EXPECT_GT(checkpointed, 50);
  EXPECT_GT(listed, 50);
  EXPECT_GT(ordered, 10);
}

}  // namespace
}  // namespace tidemark::job_round_trip_test
