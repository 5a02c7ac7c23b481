#include "models/flops.h"

#include <gtest/gtest.h>

#include "tests/support/jobs.h"

namespace tidemark::flops_test {
namespace {

TEST(ModelFlops, OfOneDenseLayerByHand) {
  Job job = two_stage_job();
  job.model.num_layers = 1;
  job.model.moe_layer = {false};
  // 6 FLOPs a multiply, forward and backward. A token: qkv 64 -> 3 * 64, projection 64 -> 64,
  // three MLP matrices 64 x 128, vocabulary 64 x 256. A pair of positions: scores and values of
  // 4 heads of 16, half of the pairs masked. Two sequences of 16 tokens.
  const std::int64_t token = 64 * 192 + 64 * 64 + 3 * 64 * 128 + 64 * 256;
  const std::int64_t pair = 4 * (16 + 16) / 2;
  EXPECT_EQ(model_flops_per_iteration(job), Flops(2 * 6 * (16 * token + 16 * 16 * pair)));
}

// Megatron's num_floating_point_operations, evaluated for the two runs.
TEST(ModelFlops, OfQwen3With30BEqualMegatronsCount) {
  Job job = qwen3_30b_a3b();
  job.batch = {1, 64, 4096};
  ASSERT_EQ(job.model.padded_vocab_size(1), 151680);
  EXPECT_EQ(model_flops_per_iteration(job), Flops(6'030'134'083'584'000));
}

TEST(ModelFlops, OfDeepSeekV3EqualMegatronsCount) {
  const Job job = deepseek_v3_1024();
  ASSERT_EQ(job.model.padded_vocab_size(4), 129280);
  EXPECT_EQ(model_flops_per_iteration(job), Flops(2'095'575'394'815'049'728));
}

TEST(ModelFlops, MayExceed63Bits) {
  Job job = deepseek_v3_1024();
  const Flops once = model_flops_per_iteration(job);
  job.batch.global_batch_size *= 1024;
  EXPECT_TRUE(model_flops_per_iteration(job) == 1024 * once);
}

TEST(ModelFlops, AreNoneOfTheLayouts) {
  Job job = qwen3_30b_a3b();
  const Flops flops = model_flops_per_iteration(job);
  job.layout.expert = 4;
  job.layout.pipeline = 2;
  EXPECT_TRUE(model_flops_per_iteration(job) == flops);
}

TEST(ModelFlops, SharedExpertsCountForEveryTokenAndPlainMlpsHaveTwoMatrices) {
  Job job = qwen3_30b_a3b();
  const Flops tokens = job.tokens_per_iteration();
  const Flops before = model_flops_per_iteration(job);
  job.model.moe->shared_ffn_hidden_size = 512;
  const Flops shared = Flops(6) * 3 * 2048 * 512 * 48 * tokens;
  EXPECT_TRUE(model_flops_per_iteration(job) - before == shared);
  job.model.moe->shared_ffn_hidden_size = 0;
  job.model.activation = Activation::kGelu;
  const Flops third_matrix = Flops(6) * 2048 * 8 * 768 * 48 * tokens;
  EXPECT_TRUE(before - model_flops_per_iteration(job) == third_matrix);
}

}  // namespace
}  // namespace tidemark::flops_test
