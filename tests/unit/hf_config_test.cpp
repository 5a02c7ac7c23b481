// On config.json files of published checkpoints (data/hf_configs/README.md) and changes to them.
#include "models/hf_config.h"

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "models/input_error.h"
#include "models/json_reader.h"
#include "models/parameters.h"

namespace tidemark::hf_config_test {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

json config_of(const std::string& name) {
  return load_json(std::filesystem::path(TIDEMARK_SOURCE_DIR) / "tests/data/hf_configs" /
                   (name + ".json"));
}

json with(const std::string& name, const json& changes) {
  json config = config_of(name);
  config.update(changes);
  return config;
}

json without(const std::string& name, const std::vector<std::string>& keys) {
  json config = config_of(name);
  for (const std::string& key : keys) config.erase(key);
  return config;
}

ModelSpec read(const json& config) { return model_from_hf_config(config, "config.json").model; }

std::string error_of(const json& config) {
  try {
    read(config);
  } catch (const InputError& error) {
    return error.what();
  }
  return "(no error)";
}

std::vector<std::string> warnings_of(const json& config) {
  return model_from_hf_config(config, "config.json").warnings;
}

std::int64_t parameters_of(const std::string& name) {
  return model_parameters(read(config_of(name))).total;
}

// --- each family against its checkpoint ---------------------------------------------------------

// Totals of the checkpoints' safetensors files, as Hugging Face shows them or as half the bytes of
// a bf16 index.
TEST(HfConfig, GivesTheParametersThatTheCheckpointsHave) {
  EXPECT_EQ(parameters_of("llama-2-70b"), 68'976'648'192);
  EXPECT_EQ(parameters_of("llama-3.1-70b"), 141'107'412'992 / 2);
  EXPECT_EQ(parameters_of("mistral-7b-v0.3"), 7'248'023'552);
  EXPECT_EQ(parameters_of("mixtral-8x22b"), 140'620'634'112);
  EXPECT_EQ(parameters_of("qwen2.5-7b"), 7'615'616'512);
  EXPECT_EQ(parameters_of("qwen1.5-moe-a2.7b"), 14'315'784'192);
  EXPECT_EQ(parameters_of("qwen3-32b"), 32'762'123'264);
  EXPECT_EQ(parameters_of("qwen3-235b-a22b"), 235'093'634'560);
  EXPECT_EQ(parameters_of("qwen3-30b-a3b"), 30'532'122'624);
  EXPECT_EQ(parameters_of("deepseek-v2-lite"), 15'706'484'224);
}

// The router's bias of each expert is a buffer in Megatron; multi-token prediction is left out.
TEST(HfConfig, LeavesOutWhatItSaysItLeavesOut) {
  EXPECT_EQ(parameters_of("deepseek-v3"), 671'026'419'200 - 58 * 256);
  EXPECT_EQ(parameters_of("kimi-k2"), 1'026'408'232'448 - 60 * 384);

  const std::int64_t h = 4096;
  const std::int64_t attention = (96 + 2 * 8) * 128 * (h + 1) + 96 * 128 * h;
  const std::int64_t moe_layer = attention + 2 * h + 128 * h + (128 + 1) * 3 * 1408 * h;
  // A layer, its own embedding and output layer, the projection of both inputs, three norms.
  const std::int64_t mtp = moe_layer + 2 * 151552 * h + 2 * h * h + 3 * h;
  EXPECT_EQ(parameters_of("glm-4.5-air"), 110'468'824'832 - mtp - 46 * 128);
}

TEST(HfConfig, Llama) {
  const ModelSpec m = read(config_of("llama-2-70b"));
  EXPECT_EQ(m.num_layers, 80);
  EXPECT_EQ(m.hidden_size, 8192);
  EXPECT_EQ(m.ffn_hidden_size, 28672);
  EXPECT_EQ(m.attention.kind, AttentionKind::kGrouped);
  EXPECT_EQ(m.attention.num_heads, 64);
  EXPECT_EQ(m.attention.num_query_groups, 8);
  EXPECT_EQ(m.attention.head_dim, 8192 / 64);
  EXPECT_FALSE(m.attention.qk_layernorm);
  EXPECT_FALSE(m.attention.add_qkv_bias);
  EXPECT_FALSE(m.moe.has_value());
  EXPECT_EQ(m.num_moe_layers(), 0);
  EXPECT_EQ(m.activation, Activation::kSwiglu);
  EXPECT_EQ(m.normalization, Normalization::kRmsNorm);
  EXPECT_EQ(m.position_embedding, PositionEmbedding::kRope);
  EXPECT_TRUE(m.untie_embeddings_and_output_weights);
  EXPECT_EQ(m.max_position_embeddings, 4096);
  EXPECT_EQ(m.vocab_size, 32000);
}

TEST(HfConfig, LlamaBeforeGroupedQueriesHasAGroupForEachHead) {
  const ModelSpec m = read(without("llama-2-70b", {"num_key_value_heads"}));
  EXPECT_EQ(m.attention.num_query_groups, 64);
}

TEST(HfConfig, LlamaBiasesAreThoseOfAllLinears) {
  const ModelSpec m = read(with("llama-2-70b", {{"attention_bias", true}, {"mlp_bias", true}}));
  EXPECT_TRUE(m.add_bias_linear);
  EXPECT_TRUE(m.attention.add_qkv_bias);
  EXPECT_THAT(error_of(with("llama-2-70b", {{"attention_bias", true}})),
              HasSubstr("config.json: /attention_bias: true, expected false"));
  EXPECT_THAT(error_of(with("llama-2-70b", {{"mlp_bias", true}})),
              HasSubstr("/mlp_bias: true, expected false"));
  EXPECT_EQ(error_of(with("llama-2-70b", {{"mlp_bias", "yes"}})),
            "config.json: /mlp_bias: \"yes\", expected true or false");
}

TEST(HfConfig, MixtralHasExpertsInEveryLayer) {
  const ModelSpec m = read(config_of("mixtral-8x22b"));
  EXPECT_EQ(m.num_moe_layers(), 56);
  EXPECT_EQ(m.moe->num_experts, 8);
  EXPECT_EQ(m.moe->topk, 2);
  EXPECT_EQ(m.moe->ffn_hidden_size, 16384);
  EXPECT_EQ(m.moe->shared_ffn_hidden_size, 0);
}

TEST(HfConfig, Qwen2HasABiasOfQueryKeyAndValueOnly) {
  const ModelSpec m = read(config_of("qwen2.5-7b"));
  EXPECT_TRUE(m.attention.add_qkv_bias);
  EXPECT_FALSE(m.add_bias_linear);
  EXPECT_FALSE(m.attention.qk_layernorm);
  EXPECT_FALSE(read(with("qwen1.5-moe-a2.7b", {{"qkv_bias", false}})).attention.add_qkv_bias);
}

TEST(HfConfig, Qwen2MoeHasASharedExpertWithAGate) {
  const ModelSpec m = read(config_of("qwen1.5-moe-a2.7b"));
  EXPECT_EQ(m.num_moe_layers(), 24);
  EXPECT_EQ(m.moe->num_experts, 60);
  EXPECT_EQ(m.moe->topk, 4);
  EXPECT_EQ(m.moe->ffn_hidden_size, 1408);
  EXPECT_EQ(m.moe->shared_ffn_hidden_size, 5632);
  EXPECT_TRUE(m.moe->shared_expert_gate);
}

TEST(HfConfig, Qwen3NormalizesQueryAndKey) {
  const ModelSpec m = read(config_of("qwen3-32b"));
  EXPECT_TRUE(m.attention.qk_layernorm);
  EXPECT_FALSE(m.attention.add_qkv_bias);
  EXPECT_EQ(m.attention.head_dim, 128);  // not 5120 / 64
}

TEST(HfConfig, Qwen3MoeInTheSpellingOfTransformers5) {
  const ModelSpec m = read(config_of("qwen3-30b-a3b"));  // num_local_experts, rope_parameters
  EXPECT_EQ(m.moe->num_experts, 128);
  EXPECT_EQ(m.moe->topk, 8);
  EXPECT_EQ(m.moe->shared_ffn_hidden_size, 0);
  EXPECT_FALSE(m.moe->shared_expert_gate);
  EXPECT_EQ(m.position_embedding, PositionEmbedding::kRope);
}

TEST(HfConfig, QwenExpertsAreInEveryNthLayerCountedFromOne) {
  const json small = {{"num_hidden_layers", 6}, {"decoder_sparse_step", 2}};
  EXPECT_THAT(read(with("qwen3-235b-a22b", small)).moe_layer,
              ElementsAre(false, true, false, true, false, true));
  json some_dense = small;
  some_dense["mlp_only_layers"] = {0, 3};
  EXPECT_THAT(read(with("qwen3-235b-a22b", some_dense)).moe_layer,
              ElementsAre(false, true, false, false, false, true));
}

TEST(HfConfig, DeepSeekV3HasLatentAttentionAndDenseLayersFirst) {
  const ModelSpec m = read(config_of("deepseek-v3"));
  const AttentionSpec& a = m.attention;
  EXPECT_EQ(a.kind, AttentionKind::kMultiLatent);
  EXPECT_EQ(a.num_heads, 128);
  EXPECT_EQ(a.q_lora_rank, 1536);
  EXPECT_EQ(a.kv_lora_rank, 512);
  EXPECT_EQ(a.qk_head_dim, 128);
  EXPECT_EQ(a.qk_pos_emb_head_dim, 64);
  EXPECT_EQ(a.v_head_dim, 128);
  EXPECT_TRUE(a.qk_layernorm);
  EXPECT_EQ(m.position_embedding, PositionEmbedding::kYarn);
  EXPECT_EQ(m.num_moe_layers(), 58);
  EXPECT_FALSE(m.is_moe(2));
  EXPECT_TRUE(m.is_moe(3));
  EXPECT_EQ(m.moe->num_experts, 256);
  EXPECT_EQ(m.moe->shared_ffn_hidden_size, 1 * 2048);
  EXPECT_FALSE(m.moe->shared_expert_gate);
}

TEST(HfConfig, DeepSeekV2MayProjectTheQueryDirectly) {
  const ModelSpec m = read(config_of("deepseek-v2-lite"));  // q_lora_rank null
  EXPECT_EQ(m.attention.q_lora_rank, 0);
  EXPECT_EQ(m.moe->shared_ffn_hidden_size, 2 * 1408);
  // A missing rank is Transformers' 1536, not none.
  EXPECT_THAT(error_of(without("deepseek-v2-lite", {"q_lora_rank"})),
              HasSubstr("/q_lora_rank: missing"));
  EXPECT_EQ(
      read(with("deepseek-v2-lite", {{"n_shared_experts", nullptr}})).moe->shared_ffn_hidden_size,
      0);
}

TEST(HfConfig, DeepSeekExpertsAreInEveryNthLayerCountedFromZero) {
  const json changes = {{"num_hidden_layers", 6}, {"moe_layer_freq", 2}};
  EXPECT_THAT(read(with("deepseek-v3", changes)).moe_layer,
              ElementsAre(false, false, false, false, true, false));
}

TEST(HfConfig, KimiK2IsReadAsDeepSeekV3) {
  const ModelSpec m = read(config_of("kimi-k2"));
  EXPECT_EQ(m.attention.num_heads, 64);
  EXPECT_EQ(m.moe->num_experts, 384);
  EXPECT_EQ(m.num_moe_layers(), 60);
  EXPECT_EQ(m.vocab_size, 163840);
}

TEST(HfConfig, Glm4MoeHasABiasOfQueryKeyAndValueAndPerhapsNorms) {
  const ModelSpec m = read(config_of("glm-4.5-air"));
  EXPECT_TRUE(m.attention.add_qkv_bias);
  EXPECT_FALSE(m.add_bias_linear);
  EXPECT_FALSE(m.attention.qk_layernorm);
  EXPECT_EQ(m.num_moe_layers(), 45);
  EXPECT_EQ(m.moe->shared_ffn_hidden_size, 1408);
  EXPECT_TRUE(read(with("glm-4.5-air", {{"use_qk_norm", true}})).attention.qk_layernorm);
}

// --- what all families share --------------------------------------------------------------------

TEST(HfConfig, TheVocabularyIsPaddedForTensorParallelismOnly) {
  const ModelSpec m = read(config_of("glm-4.5-air"));
  EXPECT_EQ(m.padded_vocab_size(1), 151552);
  EXPECT_EQ(m.padded_vocab_size(128), 151552);  // 1184 * 128
  EXPECT_EQ(m.padded_vocab_size(96), 151584);   // 1579 * 96
}

TEST(HfConfig, TiedEmbeddings) {
  const json tied = with("qwen3-32b", {{"tie_word_embeddings", true}});
  EXPECT_FALSE(read(tied).untie_embeddings_and_output_weights);
}

TEST(HfConfig, YarnIsAModuleAndOtherScalingsOfRopeAreNot) {
  const auto position = [](const json& scaling) {
    return read(with("qwen3-32b", {{"rope_scaling", scaling}})).position_embedding;
  };
  EXPECT_EQ(position({{"type", "yarn"}, {"factor", 4}}), PositionEmbedding::kYarn);
  EXPECT_EQ(position({{"rope_type", "yarn"}, {"factor", 4}}), PositionEmbedding::kYarn);
  EXPECT_EQ(position({{"rope_type", "linear"}, {"factor", 4}}), PositionEmbedding::kRope);
  EXPECT_EQ(position(nullptr), PositionEmbedding::kRope);
  EXPECT_EQ(read(config_of("llama-3.1-70b")).position_embedding, PositionEmbedding::kRope);
}

TEST(HfConfig, WarnsOfWhatIsLeftOut) {
  EXPECT_THAT(warnings_of(config_of("deepseek-v3")),
              ElementsAre(HasSubstr("num_nextn_predict_layers 1: the layers of multi-token "
                                    "prediction are left out"),
                          HasSubstr("quantization_config \"fp8\": the format of the checkpoint")));
  EXPECT_THAT(warnings_of(config_of("kimi-k2")), ElementsAre(HasSubstr("quantization_config")));
  EXPECT_THAT(warnings_of(config_of("glm-4.5-air")),
              ElementsAre(HasSubstr("partial_rotary_factor 0.5: RoPE is simulated on whole heads"),
                          HasSubstr("num_nextn_predict_layers 1")));
  EXPECT_THAT(warnings_of(config_of("qwen3-235b-a22b")), IsEmpty());
}

// --- refusals -----------------------------------------------------------------------------------

TEST(HfConfig, RefusesAWindowThatSequencesMayExceed) {
  const char* refused = "/sliding_window: 4096, expected null (attention within a window";
  EXPECT_THAT(error_of(with("mistral-7b-v0.3", {{"sliding_window", 4096}})), HasSubstr(refused));
  EXPECT_THAT(error_of(without("mistral-7b-v0.3", {"sliding_window"})), HasSubstr(refused));
  EXPECT_THAT(error_of(with("mixtral-8x22b", {{"sliding_window", 4096}})), HasSubstr(refused));
  EXPECT_EQ(error_of(with("mistral-7b-v0.3", {{"sliding_window", 32768}})), "(no error)");
  EXPECT_EQ(error_of(without("mixtral-8x22b", {"sliding_window"})), "(no error)");
  for (const char* qwen : {"qwen2.5-7b", "qwen1.5-moe-a2.7b", "qwen3-32b", "qwen3-235b-a22b"}) {
    EXPECT_THAT(error_of(with(qwen, {{"use_sliding_window", true}})),
                HasSubstr("/use_sliding_window: true, expected false"));
  }
}

TEST(HfConfig, RefusesLayersThatAreNotFullAttention) {
  json types = json::array();
  for (int layer = 0; layer < 64; ++layer) types.push_back("full_attention");
  EXPECT_EQ(error_of(with("qwen3-32b", {{"layer_types", types}})), "(no error)");
  types[5] = "linear_attention";
  EXPECT_THAT(error_of(with("qwen3-32b", {{"layer_types", types}})),
              HasSubstr("/layer_types/5: \"linear_attention\", expected \"full_attention\""));
}

TEST(HfConfig, RefusesABiasOfTheOutputProjection) {
  for (const char* name : {"mistral-7b-v0.3", "mixtral-8x22b", "qwen2.5-7b", "qwen1.5-moe-a2.7b",
                           "qwen3-32b", "qwen3-235b-a22b", "deepseek-v2-lite", "deepseek-v3"}) {
    EXPECT_THAT(error_of(with(name, {{"attention_bias", true}})),
                HasSubstr("/attention_bias: true, expected false (a bias of the output"));
  }
}

TEST(HfConfig, RefusesOtherActivationsAndScalings) {
  EXPECT_THAT(error_of(with("llama-2-70b", {{"hidden_act", "gelu"}})),
              HasSubstr("/hidden_act: \"gelu\", expected one of \"silu\""));
  EXPECT_THAT(error_of(with("qwen3-32b", {{"rope_scaling", {{"type", "longrope"}}}})),
              HasSubstr("/rope_scaling/type: \"longrope\", expected one of \"default\""));
  EXPECT_THAT(error_of(with("qwen3-30b-a3b", {{"rope_parameters", {{"rope_theta", 1e6}}}})),
              HasSubstr("/rope_parameters/type: missing, expected one of"));
  EXPECT_THAT(error_of(with("qwen3-32b", {{"rope_scaling", "yarn"}})),
              HasSubstr("/rope_scaling: \"yarn\", expected an object or null"));
}

TEST(HfConfig, RefusesOtherFamiliesAndHeads) {
  EXPECT_THAT(error_of(with("llama-2-70b", {{"model_type", "gemma3"}})),
              HasSubstr("/model_type: \"gemma3\", expected one of \"llama\" \"mistral\""));
  EXPECT_THAT(error_of(config_of("gpt-oss-20b")),
              HasSubstr("of gpt_oss, attention sinks, windows in every other layer"));
  EXPECT_THAT(error_of(without("llama-2-70b", {"model_type"})), HasSubstr("/model_type: missing"));
  EXPECT_THAT(
      error_of(with("llama-2-70b", {{"architectures", {"LlamaForSequenceClassification"}}})),
      HasSubstr("/architectures: [\"LlamaForSequenceClassification\"], expected "
                "[\"LlamaForCausalLM\"]"));
  EXPECT_THAT(error_of(json::array()), HasSubstr("expected an object"));
}

TEST(HfConfig, RefusesListsOfLayersThatAreNone) {
  for (const json& list : {json("all"), json({94}), json({-1}), json({"0"})}) {
    EXPECT_THAT(error_of(with("qwen3-235b-a22b", {{"mlp_only_layers", list}})),
                HasSubstr("expected an array of layers from 0 to 93"));
  }
}

TEST(HfConfig, RulesBetweenSizesNameHuggingFacesKeys) {
  EXPECT_THAT(error_of(with("llama-2-70b", {{"num_key_value_heads", 7}})),
              HasSubstr("config.json: /num_key_value_heads: 7, expected a divisor of the 64"));
  EXPECT_THAT(error_of(with("mixtral-8x22b", {{"num_experts_per_tok", 9}})),
              HasSubstr("config.json: /num_experts_per_tok: 9, expected from 1 to the number"));
  EXPECT_THAT(error_of(with("llama-2-70b", {{"hidden_size", 8190}})),
              HasSubstr("/head_dim: missing, expected an integer"));
}

TEST(HfConfig, ListsAllViolationsTogether) {
  json config = with("deepseek-v3", {{"hidden_act", "gelu"},
                                     {"attention_bias", true},
                                     {"mlp_bias", true},
                                     {"num_hidden_layers", -1},
                                     {"kv_lora_rank", "many"},
                                     {"architectures", {"Other"}}});
  config.erase("vocab_size");
  config.erase("first_k_dense_replace");
  config["rope_scaling"]["type"] = "mrope";
  const std::string error = error_of(config);
  for (const char* place : {"/hidden_act: \"gelu\"", "/attention_bias: true", "/mlp_bias: true",
                            "/num_hidden_layers: -1", "/kv_lora_rank: \"many\"",
                            "/architectures: [\"Other\"]", "/vocab_size: missing",
                            "/first_k_dense_replace: missing", "/rope_scaling/type: \"mrope\""}) {
    EXPECT_THAT(error, HasSubstr(std::string("config.json: ") + place));
  }
  EXPECT_EQ(std::count(error.begin(), error.end(), '\n'), 8);
}

TEST(HfConfig, IsToldFromOurOwnFiles) {
  EXPECT_TRUE(is_hf_config(config_of("kimi-k2")));
  EXPECT_FALSE(is_hf_config({{"schema_version", 1}, {"num_layers", 2}}));
  EXPECT_FALSE(is_hf_config(json::array()));
}

}  // namespace
}  // namespace tidemark::hf_config_test
