#include "models/model_file.h"

#include <filesystem>
#include <fstream>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "models/input_error.h"
#include "models/model_reader.h"

namespace tidemark::model_file_test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class ModelFileTest : public testing::Test {
 protected:
  void SetUp() override {
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  fs::path write(const json& content) {
    const fs::path path = folder_ / "model.json";
    std::ofstream(path) << content;
    return path;
  }

  std::string error_of(const json& content) {
    try {
      read_model_file(write(content));
    } catch (const InputError& error) {
      return error.what();
    }
    return "(no error)";
  }

  // Two dense layers with nothing but what is required.
  json spec_ = json::parse(R"({
    "schema_version": 1, "source": "made up", "licence": "none",
    "num_layers": 2, "hidden_size": 64, "ffn_hidden_size": 128, "num_attention_heads": 4,
    "kv_channels": 16, "vocab_size": 256})");
  const fs::path folder_ = fs::path(testing::TempDir()) / "model_file_test";
};

TEST_F(ModelFileTest, ReadsASpecFile) {
  const ModelFile file = read_model_file(write(spec_));
  EXPECT_EQ(file.model.num_layers, 2);
  EXPECT_EQ(file.model.attention.num_query_groups, 4);
  EXPECT_EQ(file.model.make_vocab_size_divisible_by, 128);
  EXPECT_FALSE(file.published.has_value());
  EXPECT_THAT(file.warnings, IsEmpty());
}

TEST_F(ModelFileTest, ReadsPublishedParameters) {
  spec_["published_parameters"] = {{"total", 1000},
                                   {"activated", 900},
                                   {"activated_unit", 100},
                                   {"source", "a paper"},
                                   {"not_modelled", {{"parameters", 7}, {"what", "a buffer"}}}};
  const PublishedParameters published = *read_model_file(write(spec_)).published;
  EXPECT_EQ(published.total, 1000);
  EXPECT_EQ(published.total_unit, 1);
  EXPECT_EQ(*published.activated, 900);
  EXPECT_EQ(published.activated_unit, 100);
  EXPECT_EQ(published.source, "a paper");
  EXPECT_EQ(published.not_modelled, 7);
  EXPECT_EQ(published.not_modelled_what, "a buffer");
}

TEST_F(ModelFileTest, WarnsOfAStandIn) {
  spec_["stand_in"] = "for a model of that size";
  EXPECT_THAT(read_model_file(write(spec_)).warnings,
              ElementsAre("the model is a stand-in: for a model of that size"));
}

TEST_F(ModelFileTest, ReadsAHuggingFaceConfig) {
  const ModelFile file =
      read_model_file(fs::path(TIDEMARK_SOURCE_DIR) / "tests/data/hf_configs/deepseek-v3.json");
  EXPECT_EQ(file.model.num_layers, 61);
  EXPECT_EQ(file.warnings.size(), 2U);
}

TEST_F(ModelFileTest, ListsAllViolationsTogether) {
  spec_.erase("source");
  spec_.erase("licence");
  spec_["schema_version"] = 2;
  spec_["num_layers"] = 0;
  spec_["hiden_size"] = 64;
  spec_["published_parameters"] = {{"total", "many"}};
  const std::string error = error_of(spec_);
  for (const char* text :
       {"/source: missing", "/licence: missing", "/schema_version: 2", "/num_layers: 0",
        "/hiden_size: unknown key, expected a known key; did you mean \"hidden_size\"?",
        "/published_parameters/total: \"many\"", "/published_parameters/source: missing"}) {
    EXPECT_THAT(error, HasSubstr("model.json: " + std::string(text)));
  }
}

TEST_F(ModelFileTest, ChecksTheRulesOfTheModel) {
  spec_["num_query_groups"] = 3;
  EXPECT_THAT(error_of(spec_), HasSubstr("model.json: /num_query_groups: 3, expected a divisor"));
}

TEST_F(ModelFileTest, FindsFilesFromTheFolderBeforeTheZoo) {
  write(spec_);
  EXPECT_EQ(find_model_file("model.json", folder_), folder_ / "model.json");
  EXPECT_EQ(find_model_file((folder_ / "model.json").string(), "elsewhere"),
            folder_ / "model.json");
  EXPECT_EQ(find_model_file("kimi-k2", folder_), zoo_file("kimi-k2"));
  std::ofstream(folder_ / "kimi-k2") << spec_;
  EXPECT_EQ(find_model_file("kimi-k2", folder_), folder_ / "kimi-k2");
  EXPECT_EQ(find_model_file("no such model", folder_), std::nullopt);
  EXPECT_EQ(find_model_file("", folder_), std::nullopt);
}

TEST_F(ModelFileTest, WhatIsWrittenIsReadBack) {
  ModelSpec model = read_model_file(zoo_file("deepseek-v3")).model;
  json again = json::parse(to_json(model).dump());
  again.update({{"schema_version", 1}, {"source", "here"}, {"licence", "none"}});
  EXPECT_EQ(to_json(read_model_file(write(again)).model), to_json(model));
}

}  // namespace
}  // namespace tidemark::model_file_test
