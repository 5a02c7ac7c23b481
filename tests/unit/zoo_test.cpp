// Every model of models/zoo: its parameters by the formula of its architecture, against
// models/parameters.h and against what the file says is published.
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "models/model_file.h"
#include "models/model_reader.h"
#include "models/parameters.h"

namespace tidemark::zoo_test {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;

// The sizes of an architecture, apart from any file.
struct Architecture {
  std::int64_t layers = 0;
  std::int64_t dense_layers = 0;
  std::int64_t hidden = 0;
  std::int64_t attention = 0;  // parameters of a layer
  std::int64_t dense_ffn = 0;
  std::int64_t experts = 0;
  std::int64_t topk = 0;
  std::int64_t expert_ffn = 0;
  std::int64_t shared_ffn = 0;
  std::int64_t vocabulary = 0;

  std::int64_t swiglu(std::int64_t ffn) const { return 3 * hidden * ffn; }
  // Embedding and output layer, final norm; two norms a layer. `active`: experts counted a layer.
  std::int64_t parameters(std::int64_t active) const {
    const std::int64_t moe = experts * hidden + active * swiglu(expert_ffn) + swiglu(shared_ffn);
    return 2 * vocabulary * hidden + hidden + layers * (attention + 2 * hidden) +
           dense_layers * swiglu(dense_ffn) + (layers - dense_layers) * moe;
  }
};

// Query, key, value and output; with norms of query and key heads or without.
std::int64_t grouped(std::int64_t h, std::int64_t heads, std::int64_t groups, bool norms) {
  return h * (heads + 2 * groups) * 128 + heads * 128 * h + (norms ? 2 * 128 : 0);
}

// DeepSeek's MLA: query rank 1536, key-value rank 512, 128 + 64 of a query head, 128 of a value.
std::int64_t latent(std::int64_t h, std::int64_t heads) {
  const std::int64_t query = h * 1536 + 1536 + 1536 * heads * (128 + 64);
  const std::int64_t key_value = h * (512 + 64) + 512 + 512 * heads * (128 + 128);
  return query + key_value + heads * 128 * h;
}

// The same with queries projected directly.
std::int64_t latent_without_query_rank(std::int64_t h, std::int64_t heads) {
  const std::int64_t key_value = h * (512 + 64) + 512 + 512 * heads * (128 + 128);
  return h * heads * (128 + 64) + key_value + heads * 128 * h;
}

std::map<std::string, Architecture> architectures() {
  const auto deepseek = [](std::int64_t layers) {
    return Architecture{layers, 3, 7168, latent(7168, 128), 18432, 256, 8, 2048, 2048, 129280};
  };
  return {
      {"deepseek-v3", deepseek(61)},
      {"deepseek-v3-19l", deepseek(19)},
      {"deepseek-v3-93l", deepseek(93)},
      {"kimi-k2", {61, 1, 7168, latent(7168, 64), 18432, 384, 8, 2048, 2048, 163840}},
      {"llama-2-70b", {80, 80, 8192, grouped(8192, 64, 8, false), 28672, 0, 0, 0, 0, 32000}},
      {"mixtral-8x22b", {56, 0, 6144, grouped(6144, 48, 8, false), 0, 8, 2, 16384, 0, 32000}},
      {"moonlight-16b-a3b",
       {27, 1, 2048, latent_without_query_rank(2048, 16), 11264, 64, 6, 1408, 2816, 163840}},
      {"qwen3-235b-a22b", {94, 0, 4096, grouped(4096, 64, 4, true), 0, 128, 8, 1536, 0, 151936}},
      {"qwen3-30b-a3b", {48, 0, 2048, grouped(2048, 32, 4, true), 0, 128, 8, 768, 0, 151936}},
  };
}

TEST(Zoo, HoldsTheseModels) {
  EXPECT_THAT(zoo_models(), ElementsAre("deepseek-v3", "deepseek-v3-19l", "deepseek-v3-93l",
                                        "kimi-k2", "llama-2-70b", "mixtral-8x22b",
                                        "moonlight-16b-a3b", "qwen3-235b-a22b", "qwen3-30b-a3b"));
}

TEST(Zoo, ParametersFollowFromTheArchitecture) {
  for (const auto& [name, architecture] : architectures()) {
    const ModelParameters found = model_parameters(read_model_file(zoo_file(name)).model);
    EXPECT_EQ(found.total, architecture.parameters(architecture.experts)) << name;
    EXPECT_EQ(found.activated, architecture.parameters(architecture.topk)) << name;
  }
}

TEST(Zoo, ParametersAreThePublishedOnes) {
  for (const auto& [name, architecture] : architectures()) {
    const ModelFile file = read_model_file(zoo_file(name));
    ASSERT_TRUE(file.published.has_value()) << name;
    const PublishedParameters& published = *file.published;
    const std::int64_t total = architecture.parameters(architecture.experts);
    EXPECT_LT(std::abs(total + published.not_modelled - published.total), published.total_unit)
        << name;
    if (!published.activated) continue;
    const std::int64_t activated = architecture.parameters(architecture.topk);
    EXPECT_LT(std::abs(activated - *published.activated), published.activated_unit) << name;
  }
}

TEST(Zoo, FiguresInFullAreTheseAndExpertBiasesExplainTheRest) {
  const auto published = [](const char* name) {
    return *read_model_file(zoo_file(name)).published;
  };
  EXPECT_EQ(published("llama-2-70b").total, 68'976'648'192);
  EXPECT_EQ(published("mixtral-8x22b").total, 281'241'268'224 / 2);
  EXPECT_EQ(published("qwen3-235b-a22b").total, 470'187'269'120 / 2);
  EXPECT_EQ(published("qwen3-30b-a3b").total, 61'064'245'248 / 2);
  EXPECT_EQ(published("deepseek-v3").total, 671'026'419'200);
  EXPECT_EQ(published("deepseek-v3").not_modelled, 58 * 256);
  EXPECT_EQ(published("kimi-k2").total, 1'026'408'235'864);
  EXPECT_EQ(published("kimi-k2").not_modelled, 60 * 384 + 61 * 56);
  EXPECT_EQ(published("moonlight-16b-a3b").total, 15'960'111'936);
  EXPECT_EQ(published("moonlight-16b-a3b").not_modelled, 26 * 64 + 27 * 64);
  for (const char* name : {"llama-2-70b", "mixtral-8x22b", "qwen3-235b-a22b", "qwen3-30b-a3b"}) {
    EXPECT_EQ(published(name).not_modelled, 0) << name;
    EXPECT_EQ(published(name).total_unit, 1) << name;
  }
}

// "Muon is Scalable for LLM Training" (arXiv:2502.16982): 15.29 billion and 2.24 billion activated,
// both without the embeddings.
TEST(Zoo, MoonlightHasThePapersParameters) {
  const ModelParameters found =
      model_parameters(read_model_file(zoo_file("moonlight-16b-a3b")).model);
  const std::int64_t embeddings = 2 * 163'840 * std::int64_t{2048};
  EXPECT_EQ((found.total - embeddings + 5'000'000) / 10'000'000, 1529);
  EXPECT_EQ((found.activated - embeddings + 5'000'000) / 10'000'000, 224);
}

TEST(Zoo, SaysWhichModelsAreStandIns) {
  for (const std::string& name : zoo_models()) {
    const bool stand_in = name == "deepseek-v3-19l" || name == "deepseek-v3-93l";
    EXPECT_EQ(read_model_file(zoo_file(name)).warnings.empty(), !stand_in) << name;
  }
}

TEST(Zoo, AgreesWithTheConfigsOfTheCheckpoints) {
  for (const char* name : {"deepseek-v3", "kimi-k2", "llama-2-70b", "mixtral-8x22b",
                           "qwen3-235b-a22b", "qwen3-30b-a3b"}) {
    const fs::path config =
        fs::path(TIDEMARK_SOURCE_DIR) / "tests/data/hf_configs" / (std::string(name) + ".json");
    ModelSpec expected = read_model_file(config).model;
    const ModelSpec found = read_model_file(zoo_file(name)).model;
    expected.name = found.name;  // a config has none
    EXPECT_EQ(to_json(found), to_json(expected)) << name;
  }
}

}  // namespace
}  // namespace tidemark::zoo_test
