// Counts are those that Megatron printed (data/dcu_logs/parameters.csv), each derived here.
#include "models/parameters.h"

#include <cstdint>

#include <gtest/gtest.h>

#include "tests/support/jobs.h"

namespace tidemark::parameters_test {
namespace {

std::int64_t total(const Job& job, std::int64_t stage) {
  return count_parameters(stage_weights(job, stage)).total();
}

TEST(StageWeights, OfDeepSeekV3CountWhatTheLogPrints) {
  const Job job = deepseek_v3_1024();
  const std::int64_t h = 7168;
  // MLA on TP4: input norm; output projection of 128 heads; query down (split), norm, up; key-value
  // down (split, with 64 positions), norm, up.
  const std::int64_t attention = h + h * 128 * 128 / 4 +                          //
                                 1536 / 4 * h + 1536 + 128 * 192 / 4 * 1536 +     //
                                 (512 + 64) / 4 * h + 512 + 128 * 256 / 4 * 512;  //
  EXPECT_EQ(attention, 46'785'536);
  const std::int64_t dense = h + 3 * 18432 / 4 * h;
  // Norm, router, 256 / 64 experts of three matrices, shared expert.
  const std::int64_t experts = h + 256 * h + 4 * 3 * 2048 * h + 3 * 2048 / 4 * h;
  const std::int64_t vocabulary = 129280 / 4 * h;

  // Five layers, of which three are dense; eight; eight with final norm and output layer.
  EXPECT_EQ(vocabulary + 5 * attention + 3 * dense + 2 * experts, 1'140'916'224);
  EXPECT_EQ(8 * (attention + experts), 1'886'388'224);
  EXPECT_EQ(8 * (attention + experts) + h + vocabulary, 2'118'065'152);
  EXPECT_EQ(total(job, 0), 1'140'916'224);
  for (std::int64_t stage = 1; stage < 7; ++stage) EXPECT_EQ(total(job, stage), 1'886'388'224);
  EXPECT_EQ(total(job, 7), 2'118'065'152);
}

TEST(StageWeights, OfQwen3With30BCountWhatTheLogPrints) {
  const std::int64_t h = 2048;
  // Norm, packed qkv of 32 + 2 * 4 heads, q and k norm, projection.
  const std::int64_t attention = h + (32 + 8) * 128 * h + 2 * 128 + h * 32 * 128;
  const std::int64_t experts = h + 128 * h + 128 / 8 * 3 * 768 * h;
  const std::int64_t vocabulary = 151680 * h;  // 151,669 to a multiple of 128; twice: untied
  EXPECT_EQ(48 * (attention + experts) + 2 * vocabulary + h, 5'163'923'456);
  EXPECT_EQ(total(qwen3_30b_a3b(), 0), 5'163'923'456);
}

TEST(StageWeights, OfQwen3With32BCountWhatTheLogPrints) {
  const std::int64_t h = 5120;
  const std::int64_t layer = h + (64 + 16) * 128 / 4 * h + 2 * 128 + h * 64 * 128 / 4 +  //
                             h + 3 * 25600 / 4 * h;
  const std::int64_t vocabulary = 152064 / 4 * h;  // 151,669 to a multiple of 128 * TP4
  EXPECT_EQ(16 * layer, 1'950'519'296);
  const Job job = qwen3_32b();
  EXPECT_EQ(total(job, 0), 16 * layer + vocabulary);      // 2,145,161,216
  EXPECT_EQ(total(job, 1), 16 * layer);                   // 1,950,519,296
  EXPECT_EQ(total(job, 3), 16 * layer + vocabulary + h);  // 2,145,166,336
  EXPECT_EQ(total(job, 0), 2'145'161'216);
  EXPECT_EQ(total(job, 3), 2'145'166'336);
}

TEST(StageWeights, OfTheOtherDenseRunsCountWhatTheirLogsPrint) {
  EXPECT_EQ(total(qwen3_8b(), 0), 4'094'997'504);
  EXPECT_EQ(total(llama2_70b(), 0), 2'205'319'168);
  EXPECT_EQ(total(llama2_70b(), 4), 2'139'258'880);
  EXPECT_EQ(total(llama2_70b(), 7), 2'205'327'360);
}

TEST(StageWeights, ExpertsAreApartOnlyWithExpertParallelism) {
  Job job = qwen3_30b_a3b();
  const ParameterCount split = count_parameters(stage_weights(job, 0));
  EXPECT_EQ(split.expert, std::int64_t{48} * 16 * 3 * 768 * 2048);
  job.layout.expert = 1;
  const ParameterCount whole = count_parameters(stage_weights(job, 0));
  EXPECT_EQ(whole.expert, 0);
  EXPECT_EQ(whole.dense, split.dense + 8 * split.expert);
}

TEST(StageWeights, ATiedOutputLayerIsNoSecondTableOnOneStage) {
  Job job = two_stage_job();
  job.model.untie_embeddings_and_output_weights = false;
  const std::int64_t table = 256 * 64;
  EXPECT_EQ(total(job, 0) + 64, total(job, 1));  // a copy on the last stage, beside the final norm
  job.layout.pipeline = 1;
  const std::int64_t tied = total(job, 0);
  job.model.untie_embeddings_and_output_weights = true;
  EXPECT_EQ(total(job, 0), tied + table);
}

TEST(StageWeights, DownProjectionsAreReplicatedFromCore014) {
  Job job = deepseek_v3_1024();
  const std::int64_t split = total(job, 1);
  job.versions.megatron_core = {0, 14};
  // Three quarters of both matrices more, in each of eight layers.
  EXPECT_EQ(total(job, 1) - split, 8 * 3 * (1536 + 576) / 4 * 7168);
}

TEST(StageWeights, BiasesFollowTheirLinears) {
  Job job = two_stage_job();
  const std::int64_t without = total(job, 0);
  job.model.attention.add_qkv_bias = true;
  EXPECT_EQ(total(job, 0) - without, 3 * 64);  // query, key, value of 4 * 16
  job.model.attention.add_qkv_bias = false;
  job.model.add_bias_linear = true;  // qkv, projection, fc1 (gated), fc2
  EXPECT_EQ(total(job, 0) - without, 3 * 64 + 64 + 2 * 128 + 64);
}

TEST(StageWeights, ALayerNormHasAShift) {
  Job job = two_stage_job();
  const std::int64_t rms = total(job, 1);
  job.model.normalization = Normalization::kLayerNorm;
  EXPECT_EQ(total(job, 1) - rms, 3 * 64);  // two norms of the layer, one final
}

TEST(StageWeights, ALearnedPositionTableLiesBesideTheEmbedding) {
  Job job = two_stage_job();
  const std::int64_t rope = total(job, 0);
  job.model.position_embedding = PositionEmbedding::kLearned;
  job.model.max_position_embeddings = 32;
  EXPECT_EQ(total(job, 0) - rope, 32 * 64);
}

}  // namespace
}  // namespace tidemark::parameters_test
