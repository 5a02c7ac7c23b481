#include "sim/resident_memory.h"

#include <string>

#include <gtest/gtest.h>

#include "tests/support/jobs.h"

namespace tidemark::resident_memory_test {
namespace {

TEST(FreshBlock, IsAMultipleOf512Bytes) {
  EXPECT_EQ(fresh_block(0), Bytes(0));
  EXPECT_EQ(fresh_block(1), Bytes(512));
  EXPECT_EQ(fresh_block(512), Bytes(512));
  EXPECT_EQ(fresh_block(513), Bytes(1024));
}

TEST(FreshBlock, From10MiBKeepsATailOfUpTo1MiB) {
  EXPECT_EQ(fresh_block((10 << 20) - 512), Bytes((10 << 20) - 512));  // of a shared 20 MiB segment
  EXPECT_EQ(fresh_block(10 << 20), 10 * kMiB);
  EXPECT_EQ(fresh_block(11 << 20), 12 * kMiB);                        // 1 MiB left: not split
  EXPECT_EQ(fresh_block((11 << 20) - 512), Bytes((11 << 20) - 512));  // 1 MiB + 512 left: split
  EXPECT_EQ(fresh_block(125 << 20), 126 * kMiB);
}

const HardwareProfile& profile() {
  static const HardwareProfile profile = load_hardware_profile("bw1000");
  return profile;
}

// 0 when there is no such item.
Bytes item(const Job& job, std::int64_t stage, const std::string& name) {
  Bytes sum;
  for (const ResidentItem& i : resident_memory(job, profile(), stage)) {
    if (i.name == name) sum += i.bytes;
  }
  return sum;
}

TEST(ResidentMemory, HoldsDummyGradientsByTransformerEngineVersion) {
  Job job = qwen3_30b_a3b();
  // One of each shape in bf16: qkv 5120 x 2048 and projection 2048 x 4096; expert 1536 x 2048 and
  // 2048 x 768.
  const Bytes linear = 20 * kMiB + 16 * kMiB;
  const Bytes grouped = 6 * kMiB + 3 * kMiB;
  job.versions.transformer_engine = {2, 2};
  EXPECT_EQ(item(job, 0, "dummy weight gradients"), Bytes(0));
  job.versions.transformer_engine = {2, 3};
  EXPECT_EQ(item(job, 0, "dummy weight gradients"), linear);
  job.versions.transformer_engine = {2, 9};
  EXPECT_EQ(item(job, 0, "dummy weight gradients"), linear);
  job.versions.transformer_engine = {2, 10};
  EXPECT_EQ(item(job, 0, "dummy weight gradients"), linear + grouped);
  job.options.gradient_accumulation_fusion = false;
  EXPECT_EQ(item(job, 0, "dummy weight gradients"), Bytes(0));
}

TEST(ResidentMemory, HoldsTheOutputLayersDummyFromCore014) {
  Job job = qwen3_32b();
  const Bytes dummy(2 * 152064 / 4 * 5120);  // 371.25 MiB: the 0.75 MiB tail is not split off
  job.versions.megatron_core = {0, 13};
  EXPECT_EQ(item(job, 3, "output layer's dummy gradient"), Bytes(0));
  job.versions.megatron_core = {0, 14};
  EXPECT_EQ(item(job, 3, "output layer's dummy gradient"), fresh_block(dummy.value));
  EXPECT_EQ(fresh_block(dummy.value), 372 * kMiB);
  EXPECT_EQ(item(job, 2, "output layer's dummy gradient"), Bytes(0));  // not the last stage
}

TEST(ResidentMemory, ShardsOptimizerStateByKindOfParameter) {
  const Job job = deepseek_v3_1024();
  // S1 without padding and block tails: 2 + 4 bytes a parameter; 12 a parameter over 32 cards for
  // dense ones, over 2 for experts. 8 of the 12 come with the first step.
  const double dense = 8 * (46'785'536.0 + 7168 + 256 * 7168 + 3 * 512 * 7168);
  const double expert = 8 * 4 * 3 * 2048.0 * 7168;
  const auto near = [](Bytes bytes, double expected) {
    EXPECT_NEAR(static_cast<double>(bytes.value), expected, 0.002 * expected);
  };
  near(item(job, 1, "parameters (bf16)"), 2 * (dense + expert));
  near(item(job, 1, "gradient buffer"), 4 * (dense + expert));
  near(item(job, 1, "main parameters"), 4 * (dense / 32 + expert / 2));
  near(item(job, 1, "optimizer moments"), 8 * (dense / 32 + expert / 2));
}

TEST(ResidentMemory, OnlyMomentsComeWithTheFirstStep) {
  for (const ResidentItem& i : resident_memory(deepseek_v3_1024(), profile(), 7)) {
    EXPECT_EQ(i.since == ResidentSince::kOptimizerStep, i.name == "optimizer moments") << i.name;
    EXPECT_GT(i.bytes, Bytes(0)) << i.name;
    EXPECT_FALSE(i.source.empty()) << i.name;
  }
}

TEST(ResidentMemory, OnlyTheLossStageHasTheGatherBufferAndTheTorchWorkspace) {
  const Job job = deepseek_v3_1024();
  // S4: [4096, 7168] in bf16 = 56 MiB. S3: 32 MiB for each of two threads.
  EXPECT_EQ(item(job, 7, "gathered input of the output layer"), 56 * kMiB);
  EXPECT_EQ(item(job, 7, "GEMM workspaces (PyTorch)"), 64 * kMiB);
  EXPECT_EQ(item(job, 6, "gathered input of the output layer"), Bytes(0));
  EXPECT_EQ(item(job, 6, "GEMM workspaces (PyTorch)"), Bytes(0));
  EXPECT_EQ(item(llama2_70b(), 7, "gathered input of the output layer"), Bytes(0));  // flux
}

TEST(ResidentMemory, OnlyStagesWithExpertsHaveGroupedWorkspaces) {
  EXPECT_EQ(item(deepseek_v3_1024(), 1, "grouped GEMM workspaces (TE)"), 4 * 64 * kMiB);
  EXPECT_EQ(item(qwen3_32b(), 1, "grouped GEMM workspaces (TE)"), Bytes(0));
}

TEST(ResidentMemory, CachesRotaryFrequenciesPerStageOrPerLatentLayer) {
  EXPECT_EQ(item(qwen3_32b(), 1, "rotary cache"), Bytes(4 * 8192 * 128));
  // S6: frequencies in fp32, cos and sin in bf16, in each of eight layers.
  EXPECT_EQ(item(deepseek_v3_1024(), 1, "rotary caches"), Bytes(8 * 4096 * 64 * (4 + 2 + 2)));
}

}  // namespace
}  // namespace tidemark::resident_memory_test
