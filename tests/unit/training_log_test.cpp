#include "models/training_log.h"

#include <filesystem>
#include <fstream>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "models/input_error.h"

namespace tidemark::training_log_test {
namespace {

using testing::Contains;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

std::filesystem::path write(const std::string& name, const std::string& content) {
  const std::filesystem::path path = std::filesystem::path(testing::TempDir()) / name;
  std::ofstream(path, std::ios::binary) << content;
  return path;
}

// Lines of a public log of the vendor, shortened: HYGON-AI/train-cookbook-das (MIT),
// docs/model-pretrain/BW1000/LLM/logs/Qwen3-8B-dcu8-b32-s4096.log.
constexpr const char* kArguments =
    R"(------------------------ arguments ------------------------
  mla_down_proj_fusion ............................ False
  moe_router_fusion ............................... False
  num_layers ...................................... 36
-------------------- end of arguments ---------------------
)";
constexpr const char* kRun =
    R"(------------------------ env vars ------------------------
  C_INCLUDE_PATH .................................. /opt/dtk/include:/opt/dtk-26.04/include:
  NVIDIA_PYTORCH_VERSION .......................... 26.01
  TRANSFORMER_ENGINE_VERSION ...................... 2.11
-------------------- end of env vars ---------------------
  (output_layer): ColumnParallelLinear(in_features=4096, out_features=151808, bias=False, TP=2)
 > number of parameters on (tensor, pipeline) model parallel rank (0, 0): 4094997504
 > number of parameters on (tensor, pipeline) model parallel rank (1, 0): 4094997504
[WARNING  | megatron.core.rerun_state_machine]: Result validation enabled
 [2026-07-13 17:19:29.871622] iteration        1/      15 | consumed samples:           32 | elapsed time per iteration (ms): 38843.8 | throughput per GPU (TFLOP/s/GPU): 20.7 | learning rate: 3.000000E-05 |
[Rank 1] (after 1 iterations) memory (MB) | allocated: 36152.02 | max allocated: 39838.50 | reserved: 40750.00 | max reserved: 40751.00
 [2026-07-13 17:19:39.650566] iteration        3/      15 | consumed samples:           96 | elapsed time per iteration (ms): 4853.4 | learning rate: 2.866308E-05 |
[2026-07-13 17:21:50.186808] saving checkpoint at iteration      15 to ./ckpt in torch format
)";

TEST(TrainingLog, ReadsWhatARunPrints) {
  const TrainingLog log = read_training_log(write("run.log", std::string(kArguments) + kRun));
  EXPECT_EQ(log.arguments.values.at("num_layers").text, "36");

  ASSERT_EQ(log.iterations.size(), 2U);  // the checkpoint line is none
  EXPECT_EQ(log.iterations[0].iteration, 1);
  EXPECT_DOUBLE_EQ(log.iterations[0].elapsed_ms, 38843.8);
  EXPECT_DOUBLE_EQ(*log.iterations[0].tflops_per_card, 20.7);
  EXPECT_EQ(log.iterations[1].iteration, 3);
  EXPECT_FALSE(log.iterations[1].tflops_per_card.has_value());

  ASSERT_EQ(log.memory.size(), 1U);
  EXPECT_EQ(log.memory[0].rank, 1);
  EXPECT_EQ(log.memory[0].after_iterations, 1);
  EXPECT_DOUBLE_EQ(log.memory[0].allocated_mib, 36152.02);
  EXPECT_DOUBLE_EQ(log.memory[0].max_allocated_mib, 39838.50);
  EXPECT_DOUBLE_EQ(log.memory[0].reserved_mib, 40750.00);
  EXPECT_DOUBLE_EQ(log.memory[0].max_reserved_mib, 40751.00);

  ASSERT_EQ(log.parameters.size(), 2U);
  EXPECT_EQ(log.parameters[1].tensor_rank, 1);
  EXPECT_EQ(log.parameters[1].pipeline_rank, 0);
  EXPECT_EQ(log.parameters[1].parameters, 4094997504);

  EXPECT_EQ(*log.padded_vocab_size, 151808);
  EXPECT_FALSE(log.vocab_size.has_value());
  EXPECT_THAT(log.missing, Contains("no Megatron core version").Times(0));
}

TEST(TrainingLog, ReadsVersionsAndSaysWhere) {
  const TrainingLog log = read_training_log(write("run.log", std::string(kArguments) + kRun));
  EXPECT_EQ(*log.dtk, (Version{26, 4}));
  EXPECT_EQ(*log.nvidia_pytorch, (Version{26, 1}));
  EXPECT_EQ(*log.transformer_engine, (Version{2, 11}));
  EXPECT_EQ(*log.megatron_core, (Version{0, 17}));  // by its arguments
  EXPECT_THAT(log.evidence, Contains(HasSubstr("Megatron core >= 0.17: argument mla_down")));
  EXPECT_EQ(log.versions().transformer_engine, (Version{2, 11}));
}

TEST(TrainingLog, ABuildPathGoesBeforeTheArguments) {
  const TrainingLog log = read_training_log(
      write("path.log", "make: Entering directory '/opt/Megatron-LM-core_v0.16.1/datasets'\n" +
                            std::string(kArguments)));
  EXPECT_EQ(*log.megatron_core, (Version{0, 16}));
}

TEST(TrainingLog, ReadsTheTokenizersSize) {
  const TrainingLog log = read_training_log(write(
      "vocab.log", std::string(kArguments) + "INFO:megatron.core.tokenizers: > padded vocab (size: "
                                             "151669) with 11 dummy tokens (new size: 151680)\n"));
  EXPECT_EQ(*log.vocab_size, 151669);
  EXPECT_EQ(*log.padded_vocab_size, 151680);
}

TEST(TrainingLog, NamesWhatIsMissing) {
  const TrainingLog log = read_training_log(write("bare.log", kArguments));
  EXPECT_THAT(log.missing, Contains("no memory lines"));
  EXPECT_THAT(log.missing, Contains("no iteration lines"));
  EXPECT_THAT(log.missing, Contains("no Transformer Engine version"));
  EXPECT_EQ(log.versions().transformer_engine, FrameworkVersions{}.transformer_engine);
}

TEST(TrainingLog, IgnoresHalfALine) {
  const TrainingLog log = read_training_log(write(
      "half.log", std::string(kArguments) + "[Rank 0] (after 1 iterations) memory (MB) | allocated"
                                            ": 36152.02 | max allocated: 39838.50 | reserv\n"));
  EXPECT_THAT(log.memory, IsEmpty());
}

TEST(TrainingLog, RefusesALogWithoutArguments) {
  EXPECT_THROW(read_training_log(write("no.log", kRun)), InputError);
}

TEST(OldestCore, IsTheNewestArgumentsFirstRelease) {
  MegatronArguments a;
  EXPECT_FALSE(oldest_core(a).has_value());
  a.values["mtp_num_layers"] = {"None", ""};
  EXPECT_EQ(oldest_core(a)->version, (Version{0, 12}));
  a.values["moe_router_padding_for_quantization"] = {"False", ""};
  EXPECT_EQ(oldest_core(a)->version, (Version{0, 15}));
}

}  // namespace
}  // namespace tidemark::training_log_test
