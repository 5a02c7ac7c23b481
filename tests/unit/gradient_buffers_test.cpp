// One job throughout: a layer of hidden size 64 on one stage, two cards, distributed optimizer. Its
// weights, last registered first, with their places in the buffer (multiples of 64):
//
//   output 16384 | final norm 64 | fc2 8192 | fc1 16384 | norm 64 | qkv 12288 | norm 64 | proj 4096
//   | 0              16384           16448      24640       41024     41088       53376     53440
//   embedding 16384
//   57536 .. 73920
#include "models/gradient_buffers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/jobs.h"

namespace tidemark::gradient_buffers_test {
namespace {

using testing::ElementsAre;

Job one_layer() {
  Job job = two_stage_job();
  job.model.num_layers = 1;
  job.model.moe_layer = {false};
  job.layout.pipeline = 1;
  return job;
}

TEST(GradientBuffers, AreOneBucketWithoutOverlap) {
  const auto buffers = gradient_buffers(one_layer(), 0);
  ASSERT_EQ(buffers.size(), 1u);
  const GradientBuffer& b = buffers[0];
  EXPECT_EQ(b.shards, 2);
  EXPECT_EQ(b.parameters, 73984);  // 73920 to a multiple of lcm(2, 128)
  ASSERT_EQ(b.buckets.size(), 1u);
  EXPECT_EQ(b.buckets[0].parameters, 73984);
  EXPECT_EQ(b.buckets[0].first_layer, -1);  // the embedding
  EXPECT_EQ(b.buckets[0].last_layer, 1);    // final norm and output
}

TEST(GradientBuffers, TheFirstRankOwnsTheFirstShardOfEachBucket) {
  // 73984 / 2 = 36992: output, norm, fc2, and of fc1 what lies before 36992.
  const GradientBuffer b = gradient_buffers(one_layer(), 0)[0];
  EXPECT_THAT(b.owned_pieces, ElementsAre(16384, 64, 8192, 36992 - 24640));
  EXPECT_EQ(b.owned(), 36992);
}

TEST(GradientBuffers, TheSecondRankOwnsTheSecondShard) {
  // From 36992: the rest of fc1, norm, qkv, norm, proj, embedding.
  const GradientBuffer b = gradient_buffers(one_layer(), 0, 1)[0];
  EXPECT_THAT(b.owned_pieces, ElementsAre(41024 - 36992, 64, 12288, 64, 4096, 16384));
}

TEST(GradientBuffers, ABucketClosesOnceItHoldsTheBucketSize) {
  Job job = one_layer();
  job.options.overlap_grad_reduce = true;
  job.options.ddp_bucket_size = 20000;
  const GradientBuffer b = gradient_buffers(job, 0)[0];
  // output + norm + fc2 = 24640 >= 20000, closed at 24704 = 193 * 128. From there fc1, norm, qkv up
  // to 53440, closed at 53504 = 418 * 128; norm, proj and embedding up to 74048, 74112 = 579 * 128.
  ASSERT_EQ(b.buckets.size(), 3u);
  EXPECT_EQ(b.buckets[0].parameters, 24704);
  EXPECT_EQ(b.buckets[1].parameters, 53504 - 24704);
  EXPECT_EQ(b.buckets[2].parameters, 74112 - 53504);
  EXPECT_EQ(b.parameters, 74112);
  EXPECT_EQ(b.buckets[0].first_layer, 0);
  EXPECT_EQ(b.buckets[0].last_layer, 1);
  EXPECT_EQ(b.buckets[1].first_layer, 0);
  EXPECT_EQ(b.buckets[1].last_layer, 0);
  EXPECT_EQ(b.buckets[2].first_layer, -1);
  EXPECT_EQ(b.buckets[2].last_layer, 0);
  // Halves: 12352 of output; 14400 of fc1; norm, proj, and 10304 - 4160 of the embedding.
  EXPECT_THAT(b.owned_pieces, ElementsAre(12352, 14400, 64, 4096, 6144));
}

TEST(GradientBuffers, TheBucketSizeIsALimitFromBelow) {
  Job job = one_layer();
  job.options.overlap_grad_reduce = true;
  job.options.ddp_bucket_size = 16384;  // the output layer alone
  EXPECT_EQ(gradient_buffers(job, 0)[0].buckets[0].parameters, 16384);
  job.options.ddp_bucket_size = 16385;  // and the final norm: 16448 to 16512 = 129 * 128
  EXPECT_EQ(gradient_buffers(job, 0)[0].buckets[0].parameters, 16512);
}

TEST(GradientBuffers, OnlyTheFirstStageIsCutIntoBuckets) {
  Job job = two_stage_job();
  job.options.overlap_grad_reduce = true;
  job.options.ddp_bucket_size = 5000;
  EXPECT_GT(gradient_buffers(job, 0)[0].buckets.size(), 1u);
  EXPECT_EQ(gradient_buffers(job, 1)[0].buckets.size(), 1u);
}

TEST(GradientBuffers, BucketsHoldFortyMillionParametersByDefault) {
  Job job = qwen3_8b();  // DP 4: 40 million > 4 * 1 million
  const std::vector<GradientBucket> buckets = gradient_buffers(job, 0)[0].buckets;
  ASSERT_GT(buckets.size(), 2u);
  for (std::size_t b = 0; b + 1 < buckets.size(); ++b) {
    EXPECT_GE(buckets[b].parameters, 40'000'000);
  }
}

TEST(GradientBuffers, WithoutADistributedOptimizerNothingIsPaddedOrSharded) {
  Job job = one_layer();
  job.options.optimizer.distributed = false;
  const GradientBuffer b = gradient_buffers(job, 0)[0];
  EXPECT_EQ(b.shards, 1);
  EXPECT_EQ(b.parameters, 73920);
  EXPECT_EQ(b.owned(), 73920);
}

TEST(GradientBuffers, ExpertsAreASecondBufferOverExpertDataRanks) {
  const Job job = deepseek_v3_1024();
  const auto buffers = gradient_buffers(job, 1);
  ASSERT_EQ(buffers.size(), 2u);
  EXPECT_FALSE(buffers[0].expert);
  EXPECT_EQ(buffers[0].shards, 1024 / (4 * 8));
  EXPECT_TRUE(buffers[1].expert);
  EXPECT_EQ(buffers[1].shards, 1024 / (8 * 64));
  EXPECT_EQ(buffers[1].parameters, 8 * 4 * 3 * 2048 * 7168);
}

}  // namespace
}  // namespace tidemark::gradient_buffers_test
