#include "models/parallel_layout.h"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tidemark::parallel_layout_test {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

// DeepSeek-V3's shape as the vendor's 1,024-card run has it.
ModelSpec deepseek_v3() {
  ModelSpec m;
  m.num_layers = 61;
  m.hidden_size = 7168;
  m.ffn_hidden_size = 18432;
  m.attention.kind = AttentionKind::kMultiLatent;
  m.attention.num_heads = 128;
  m.attention.num_query_groups = 128;
  m.moe = MoeSpec{};
  m.moe->num_experts = 256;
  m.moe->topk = 8;
  m.moe->ffn_hidden_size = 2048;
  m.moe->shared_ffn_hidden_size = 2048;
  m.moe_layer.assign(61, true);
  m.moe_layer[0] = m.moe_layer[1] = m.moe_layer[2] = false;
  return m;
}

ParallelLayout layout_1024() {
  ParallelLayout l;
  l.cards = 1024;
  l.tensor = 4;
  l.sequence_parallel = true;
  l.pipeline = 8;
  l.expert = 64;
  l.first_stage_layers = 5;
  return l;
}

const Batch kBatch{1, 2048, 4096};

std::string errors(const ModelSpec& model, const ParallelLayout& layout, const Batch& batch) {
  std::string all;
  for (const Violation& v : validate(model, layout, batch, "f", "/")) all += v.text() + "\n";
  return all;
}

TEST(ParallelLayout, GroupsFollowFromTheDegrees) {
  const ParallelLayout l = layout_1024();
  EXPECT_EQ(l.data(), 1024 / (4 * 8));          // DP
  EXPECT_EQ(l.expert_data(), 1024 / (8 * 64));  // expert DP
  EXPECT_EQ(l.lanes_per_stage(), 64);           // max(TP * CP, EP * ETP)
  EXPECT_EQ(l.units(), 1024 / (8 * 64));
  EXPECT_EQ(kBatch.num_microbatches(l), 2048 / 32);
}

TEST(ParallelLayout, OtherStagesShareTheRestEvenly) {
  // 5 + 7 * 8 = 61.
  const ParallelLayout l = layout_1024();
  EXPECT_EQ(l.chunk_layers(0, 61).begin, 0);
  EXPECT_EQ(l.chunk_layers(0, 61).end, 5);
  EXPECT_EQ(l.chunk_layers(1, 61).begin, 5);
  EXPECT_EQ(l.chunk_layers(7, 61).begin, 53);
  EXPECT_EQ(l.chunk_layers(7, 61).end, 61);
}

TEST(ParallelLayout, FirstAndLastStageMayBothBeGiven) {
  ParallelLayout l = layout_1024();
  l.first_stage_layers = 7;
  l.last_stage_layers = 6;  // the six between: (61 - 13) / 6 = 8
  EXPECT_EQ(l.chunk_layers(1, 61).size(), 8);
  EXPECT_EQ(l.chunk_layers(7, 61).begin, 55);
  EXPECT_THAT(errors(deepseek_v3(), l, kBatch), IsEmpty());
}

TEST(ParallelLayout, OneStageHoldsAllLayers) {
  ParallelLayout l;
  EXPECT_EQ(l.chunk_layers(0, 61).size(), 61);
}

TEST(ValidateLayout, AcceptsTheVendorsRun) {
  EXPECT_THAT(errors(deepseek_v3(), layout_1024(), kBatch), IsEmpty());
}

TEST(ValidateLayout, HeadsDivideByTensorParallel) {
  ParallelLayout l = layout_1024();
  l.tensor = 3;
  EXPECT_THAT(errors(deepseek_v3(), l, kBatch),
              HasSubstr("/tensor_model_parallel_size: 3, expected a divisor of "
                        "num_attention_heads = 128"));
}

TEST(ValidateLayout, ExpertsDivideByExpertParallel) {
  ModelSpec m = deepseek_v3();
  m.moe->num_experts = 250;
  EXPECT_THAT(
      errors(m, layout_1024(), kBatch),
      HasSubstr("/expert_model_parallel_size: 64, expected a divisor of num_experts = 250"));
}

TEST(ValidateLayout, StagesNeedWholeLayers) {
  ParallelLayout l = layout_1024();
  l.first_stage_layers = 6;  // 55 left for 7 stages
  EXPECT_THAT(errors(deepseek_v3(), l, kBatch), HasSubstr("remaining 55 layers of 61 evenly"));
}

TEST(ValidateLayout, CardsAndBatchDivide) {
  ParallelLayout l = layout_1024();
  l.cards = 1000;
  EXPECT_THAT(errors(deepseek_v3(), l, kBatch), HasSubstr("TP * CP * PP"));
  EXPECT_THAT(
      errors(deepseek_v3(), layout_1024(), {1, 2047, 4096}),
      HasSubstr("/global_batch_size: 2047, expected a multiple of micro_batch_size * DP = 32"));
}

// Virtual stages need the number of microbatches, which without a data-parallel rank there is none
// of: this was a division by zero.
TEST(ValidateLayout, FewerCardsThanStagesNeedAreRefusedWithVirtualStages) {
  ParallelLayout l = layout_1024();
  l.first_stage_layers = 0;
  l.virtual_pipeline = 2;
  l.cards = 16;
  EXPECT_THAT(errors(deepseek_v3(), l, kBatch), HasSubstr("/world_size: 16, expected a multiple"));
}

TEST(ValidateLayout, ContextParallelCutsTheSequenceTwiceARank) {
  ParallelLayout l = layout_1024();
  l.context = 4;
  EXPECT_THAT(errors(deepseek_v3(), l, {1, 2048, 4096}), IsEmpty());
  EXPECT_THAT(errors(deepseek_v3(), l, {1, 2048, 4092}),
              HasSubstr("/seq_length: 4092, expected a multiple of"));
}

TEST(ValidateLayout, ExpertsWithTensorParallelNeedSequenceParallel) {
  ParallelLayout l = layout_1024();
  l.sequence_parallel = false;
  EXPECT_THAT(errors(deepseek_v3(), l, kBatch), HasSubstr("/sequence_parallel: false"));
}

TEST(ValidateLayout, ADegreeBelowOneIsReportedAlone) {
  ParallelLayout l = layout_1024();
  l.tensor = 0;
  EXPECT_EQ(errors(deepseek_v3(), l, kBatch),
            "f: /tensor_model_parallel_size: 0, expected an integer >= 1\n");
}

TEST(PipelineLayout, TextIsWhatWasParsed) {
  for (const std::vector<std::int64_t>& layers :
       {std::vector<std::int64_t>{4}, {3, 2, 0, 1}, {0, 12, 0}}) {
    EXPECT_EQ(parse_pipeline_layout(pipeline_layout_text(layers))->decoder_layers, layers);
  }
}

}  // namespace
}  // namespace tidemark::parallel_layout_test
