#include "models/job_reader.h"

#include <filesystem>
#include <fstream>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "models/input_error.h"

namespace tidemark::job_reader_test {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

// A mixture of experts on 8 cards with nothing but what is required.
nlohmann::json small_job() {
  return nlohmann::json::parse(R"({
    "schema_version": 1, "name": "small", "hardware": "bw1000",
    "frameworks": {"megatron_core": "0.13", "transformer_engine": "1.13", "dtk": "25.04"},
    "model": {"num_layers": 4, "hidden_size": 1024, "num_attention_heads": 16, "kv_channels": 64,
              "ffn_hidden_size": 4096, "vocab_size": 1000,
              "num_experts": 8, "moe_router_topk": 2, "moe_ffn_hidden_size": 512,
              "moe_layer_freq": "[0]*1+[1]*3"},
    "parallel": {"world_size": 8, "expert_model_parallel_size": 4},
    "batch": {"micro_batch_size": 1, "global_batch_size": 16, "seq_length": 2048}})");
}

std::string error_of(const nlohmann::json& json) {
  try {
    job_from_json(json, "job.json");
  } catch (const InputError& error) {
    return error.what();
  }
  return "(no error)";
}

nlohmann::json again(const Job& job) { return nlohmann::json::parse(to_json(job).dump()); }

TEST(JobReader, ReadsSectionsAndDefaults) {
  const Job job = job_from_json(small_job(), "job.json");
  EXPECT_EQ(job.source, "job.json");
  EXPECT_EQ(job.versions.megatron_core, (Version{0, 13}));
  EXPECT_EQ(*job.versions.dtk, (Version{25, 4}));
  EXPECT_EQ(job.model.attention.num_query_groups, 16);
  EXPECT_THAT(job.model.moe_layer, ElementsAre(false, true, true, true));
  EXPECT_EQ(job.model.activation, Activation::kSwiglu);
  EXPECT_EQ(job.layout.tensor, 1);
  EXPECT_EQ(job.options.optimizer.main_param_bytes, 4);
  EXPECT_TRUE(job.options.gradient_accumulation_fusion);
}

TEST(JobReader, TakesTheLayerPatternInThreeForms) {
  for (const nlohmann::json& form :
       {nlohmann::json("([0]*1+[1]*3)"), nlohmann::json({0, 1, 1, 1})}) {
    nlohmann::json json = small_job();
    json["model"]["moe_layer_freq"] = form;
    EXPECT_THAT(job_from_json(json, "").model.moe_layer, ElementsAre(false, true, true, true));
  }
  nlohmann::json json = small_job();
  json["model"]["moe_layer_freq"] = 2;
  EXPECT_THAT(job_from_json(json, "").model.moe_layer, ElementsAre(true, false, true, false));
  json["model"]["moe_layer_freq"] = {0, 1, 1};
  EXPECT_THAT(error_of(json), HasSubstr("/model/moe_layer_freq: [0,1,1], expected an integer"));
}

TEST(JobReader, RoundTripIsExact) {
  // Every field away from its default.
  Job job = job_from_json(small_job(), "job.json");
  job.model.name = "tiny";
  job.model.attention.num_query_groups = 8;
  job.model.attention.qk_layernorm = true;
  job.model.attention.add_qkv_bias = true;
  job.model.moe->shared_ffn_hidden_size = 256;
  job.model.moe->shared_expert_gate = true;
  job.model.activation = Activation::kGelu;
  job.model.normalization = Normalization::kLayerNorm;
  job.model.position_embedding = PositionEmbedding::kLearned;
  job.model.add_bias_linear = true;
  job.model.untie_embeddings_and_output_weights = false;
  job.model.max_position_embeddings = 2048;
  job.model.make_vocab_size_divisible_by = 64;
  job.layout.tensor = 2;
  job.layout.sequence_parallel = true;
  job.layout.pipeline = 1;
  job.layout.expert_tensor = 2;
  job.options.optimizer = {true, 2, 2, 1, 2};
  job.options.gradient_accumulation_fusion = false;
  job.options.overlap_grad_reduce = true;
  job.options.overlap_param_gather = true;
  job.options.ddp_bucket_size = 40'000'000;
  job.options.check_for_nan_in_loss_and_grad = false;
  job.options.cross_entropy = CrossEntropy::kTransformerEngine;
  job.options.linear_impl = LinearImpl::kFluxKeepGather;
  job.options.cp_comm = ContextParallelComm::kAllToAll;
  job.options.apply_rope_fusion = false;
  job.options.create_attention_mask_in_dataloader = false;
  job.options.hidden_dropout = 0.1;
  job.options.moe_permute_fusion = true;
  job.options.moe_router_fusion = true;
  job.options.moe_router_fp32 = true;
  job.options.moe_aux_loss = true;
  job.options.moe_expert_capacity_factor = 1.25;
  job.options.moe_pad_expert_input_to_capacity = true;
  job.options.moe_shared_expert_overlap = true;
  job.options.moe_router_force_load_balancing = true;
  job.options.quantize_comm_bits = 8;
  const Job back = job_from_json(again(job), "job.json");
  EXPECT_EQ(to_json(back), to_json(job));
  EXPECT_EQ(back.model.moe_layer, job.model.moe_layer);
  EXPECT_EQ(back.options.optimizer.exp_avg_bytes, 1);
  EXPECT_DOUBLE_EQ(back.options.hidden_dropout, 0.1);
  EXPECT_EQ(*back.versions.dtk, *job.versions.dtk);
}

TEST(JobReader, ReadsVirtualStagesAndTheirLayout) {
  nlohmann::json json = small_job();
  json["parallel"].update({{"pipeline_model_parallel_size", 2},
                           {"virtual_pipeline_model_parallel_size", 2},
                           {"microbatch_group_size_per_vp_stage", 4}});
  json["options"]["overlap_p2p_comm"] = true;
  Job job = job_from_json(json, "");
  EXPECT_EQ(job.layout.virtual_pipeline, 2);
  EXPECT_EQ(job.layout.microbatches_in_a_row(), 4);
  EXPECT_EQ(to_json(job_from_json(again(job), "")), to_json(job));

  // Megatron takes the number of virtual stages from a layout.
  json["parallel"].erase("virtual_pipeline_model_parallel_size");
  json["parallel"]["pipeline_model_parallel_layout"] = "E|(tt|)*2L";
  job = job_from_json(json, "");
  EXPECT_EQ(job.layout.virtual_pipeline, 2);
  EXPECT_THAT(job.layout.listed_layers, ElementsAre(0, 2, 2, 0));
  EXPECT_EQ(to_json(job)["parallel"]["pipeline_model_parallel_layout"], "E|t*2|t*2|L");
  EXPECT_EQ(to_json(job_from_json(again(job), "")), to_json(job));

  // Six places for four layers, the embedding and the loss.
  json["parallel"].erase("pipeline_model_parallel_layout");
  json["parallel"].update({{"account_for_embedding_in_pipeline_split", true},
                           {"account_for_loss_in_pipeline_split", true}});
  json["options"]["overlap_p2p_comm"] = false;
  job = job_from_json(json, "");
  EXPECT_TRUE(job.layout.account_for_embedding);
  EXPECT_TRUE(job.layout.account_for_loss);
  EXPECT_FALSE(job.options.overlap_p2p_comm);
  EXPECT_EQ(to_json(job_from_json(again(job), "")), to_json(job));
}

// They were said to be in /model.
TEST(JobReader, SaysThatOptionsOfCombinedSlotsAreOptions) {
  nlohmann::json json = small_job();
  json["options"]["delay_wgrad_compute"] = true;
  json["options"]["ep_overlap_early_attn_memory_release"] = true;
  EXPECT_THAT(error_of(json), AllOf(HasSubstr("/options/delay_wgrad_compute: true"),
                                    HasSubstr("/options/ep_overlap_early_attn_memory_release")));
  json = small_job();
  json["parallel"]["pipeline_model_parallel_size"] = 2;
  json["parallel"]["pipeline_schedule"] = "combined-1f1b";
  json["options"]["overlap_moe_expert_parallel_comm"] = true;
  json["options"]["recompute_granularity"] = "full";
  json["options"]["recompute_method"] = "uniform";
  json["options"]["recompute_num_layers"] = 1;
  EXPECT_THAT(error_of(json), AllOf(HasSubstr("/options/overlap_moe_expert_parallel_comm: true"),
                                    HasSubstr("/options/recompute_granularity: full")));
}

TEST(JobReader, RefusesVirtualStagesThatCannotBe) {
  nlohmann::json json = small_job();
  json["parallel"]["virtual_pipeline_model_parallel_size"] = 2;
  json["options"]["moe_pad_expert_input_to_capacity"] = true;
  EXPECT_THAT(error_of(json),
              AllOf(HasSubstr("/parallel/virtual_pipeline_model_parallel_size: 2, expected 1 "
                              "without pipeline stages"),
                    HasSubstr("/options/moe_pad_expert_input_to_capacity")));
  json["options"].erase("moe_pad_expert_input_to_capacity");
  json["parallel"]["pipeline_model_parallel_size"] = 2;
  json["options"]["overlap_p2p_comm"] = false;
  json["parallel"]["microbatch_group_size_per_vp_stage"] = 1;
  EXPECT_THAT(error_of(json),
              AllOf(HasSubstr("/options/overlap_p2p_comm: false"),
                    HasSubstr("/parallel/microbatch_group_size_per_vp_stage: 1, expected from")));
  for (const char* layout : {"Etttm|tL", "Ett|tt", "Ettx|ttL", ""}) {
    json["parallel"]["pipeline_model_parallel_layout"] = layout;
    EXPECT_THAT(error_of(json), HasSubstr("/parallel/pipeline_model_parallel_layout: \"" +
                                          std::string(layout) + "\", expected a layout"));
  }
  json["parallel"]["pipeline_model_parallel_layout"] = "Et|t|ttL";
  EXPECT_THAT(error_of(json), HasSubstr("/parallel/pipeline_model_parallel_layout: 3 stages"));
}

TEST(JobReader, ReadsRecomputation) {
  nlohmann::json json = small_job();
  json["options"] = {{"recompute_granularity", "full"},
                     {"recompute_method", "block"},
                     {"recompute_num_layers", 3}};
  Job job = job_from_json(json, "");
  ASSERT_TRUE(job.options.full_recompute.has_value());
  EXPECT_EQ(job.options.full_recompute->method, RecomputeMethod::kBlock);
  EXPECT_EQ(job.options.full_recompute->num_layers, 3);
  EXPECT_EQ(to_json(job_from_json(again(job), "")), to_json(job));

  json["options"] = {{"recompute_granularity", "selective"}};
  SelectiveRecompute expected;
  expected.core_attn = true;
  EXPECT_EQ(job_from_json(json, "").options.recompute, expected) << "as Megatron's default";
  json["options"]["recompute_modules"] = nlohmann::json::array();
  job = job_from_json(json, "");
  EXPECT_EQ(job.options.recompute, SelectiveRecompute{});
  EXPECT_EQ(to_json(job_from_json(again(job), "")), to_json(job));
  json["options"]["recompute_modules"] = {"core_attn", "layernorm", "mlp", "moe", "moe_act"};
  job = job_from_json(json, "");
  expected = {true, false, true, true, true, true, false};
  EXPECT_EQ(job.options.recompute, expected);
  EXPECT_EQ(to_json(job_from_json(again(job), "")), to_json(job));
}

TEST(JobReader, ReadsOffloadingAndTheOtherKeysOfModelsAndDispatchers) {
  nlohmann::json json = small_job();
  json["options"] = {{"offload_modules", {"core_attn", "expert_fc1"}},
                     {"min_offloaded_tensor_size", 0},
                     {"activation_offload_fraction", 0.5},
                     {"attention_backend", "unfused"},
                     {"moe_token_dispatcher_type", "hybridep"},
                     {"overlap_moe_expert_parallel_comm", true}};
  json["model"].update(
      {{"swiglu", false}, {"squared_relu", true}, {"rotary_percent", 0.5}, {"mtp_num_layers", 1}});
  const Job job = job_from_json(json, "");
  EXPECT_TRUE(job.options.offload.offloads(OffloadModule::kExpertFc1));
  EXPECT_EQ(job.options.attention_backend, AttentionBackend::kUnfused);
  EXPECT_EQ(job.options.moe_dispatcher, MoeDispatcher::kHybridEp);
  EXPECT_TRUE(job.options.overlap_moe_expert_parallel_comm);
  EXPECT_TRUE(job_from_json(again(job), "").options.overlap_moe_expert_parallel_comm);
  EXPECT_EQ(job.model.activation, Activation::kSquaredRelu);
  EXPECT_EQ(job.model.mtp_num_layers, 1);
  EXPECT_EQ(to_json(job_from_json(again(job), "")), to_json(job));

  json["options"]["offload_modules"] = {"attn_proj", "experts"};
  EXPECT_THAT(error_of(json),
              HasSubstr("/options/offload_modules: \"experts\", expected an array"));
  json["options"]["offload_modules"] = {"attn_proj"};
  EXPECT_THAT(error_of(json), HasSubstr("/options/offload_modules: attn_proj, expected core_attn"));
}

TEST(JobReader, RefusesRecomputationThatMegatronRefuses) {
  nlohmann::json json = small_job();
  const auto error = [&](nlohmann::json options) {
    json["options"] = std::move(options);
    return error_of(json);
  };
  EXPECT_THAT(error({{"recompute_granularity", "full"}, {"recompute_modules", {"mlp"}}}),
              AllOf(HasSubstr("/options/recompute_method: missing"),
                    HasSubstr("/options/recompute_num_layers: missing"),
                    HasSubstr("/options/recompute_modules: [\"mlp\"], expected "
                              "recompute_granularity selective beside it")));
  EXPECT_THAT(error({{"recompute_method", "uniform"},
                     {"recompute_num_layers", 0},
                     {"recompute_modules", {"mlp"}}}),
              AllOf(HasSubstr("/options/recompute_method"),
                    HasSubstr("/options/recompute_num_layers: 0, expected recompute_granularity "
                              "full beside it"),
                    HasSubstr("/options/recompute_modules")));
  EXPECT_THAT(error({{"recompute_granularity", "layers"}}),
              HasSubstr("/options/recompute_granularity: \"layers\", expected"));
  EXPECT_THAT(
      error({{"recompute_granularity", "selective"}, {"recompute_modules", {"mlp", "moa"}}}),
      HasSubstr("/options/recompute_modules: \"moa\", expected an array of core_attn "));
  EXPECT_THAT(error({{"recompute_granularity", "selective"}, {"recompute_modules", "mlp"}}),
              HasSubstr("/options/recompute_modules: \"mlp\", expected an array of core_attn "));

  // All of them at once: grouped attention, no shared expert.
  EXPECT_THAT(error({{"recompute_granularity", "selective"},
                     {"recompute_modules", {"mla_up_proj", "shared_experts"}},
                     {"moe_shared_expert_overlap", true}}),
              AllOf(HasSubstr("/options/recompute_modules: mla_up_proj, expected no such module"),
                    HasSubstr("shared_experts, expected moe_shared_expert_overlap off"),
                    HasSubstr("shared_experts, expected moe_shared_expert_intermediate_size")));
  json["model"].erase("num_experts");
  json["model"].erase("moe_router_topk");
  json["model"].erase("moe_ffn_hidden_size");
  json["model"].erase("moe_layer_freq");
  json["parallel"].erase("expert_model_parallel_size");
  for (const char* module : {"moe", "moe_act"}) {
    EXPECT_THAT(error({{"recompute_granularity", "selective"}, {"recompute_modules", {module}}}),
                HasSubstr(std::string("/options/recompute_modules: ") + module +
                          ", expected no such module without experts"));
  }

  Job job = job_from_json(small_job(), "");
  job.options.full_recompute = FullRecompute{RecomputeMethod::kUniform, 0};
  job.options.recompute.mlp = true;
  try {
    validate(job, "/");
    FAIL();
  } catch (const InputError& refused) {
    EXPECT_THAT(refused.what(), AllOf(HasSubstr("/recompute_num_layers: 0"),
                                      HasSubstr("/recompute_modules: given")));
  }
}

TEST(JobReader, RoundTripOfKwaisFork) {
  nlohmann::json json = small_job();
  for (const char* key :
       {"num_experts", "moe_router_topk", "moe_ffn_hidden_size", "moe_layer_freq"}) {
    json["model"].erase(key);
  }
  json["frameworks"]["fork"] = "kwai";
  json["parallel"] = {{"world_size", 8},
                      {"tensor_model_parallel_size", 2},
                      {"sequence_parallel", true},
                      {"context_parallel_size", 2},
                      {"pipeline_model_parallel_size", 2},
                      {"virtual_pipeline_model_parallel_size", 2}};
  json["options"] = {{"kaimm_recompute_norm", true},
                     {"kaimm_recompute_mlp_activation_func", true},
                     {"kaimm_offload_activation_ratio", 0.3},
                     {"allocator_max_split_size_mb", 21}};
  const Job job = job_from_json(json, "job.json");
  EXPECT_EQ(job.versions.fork, Fork::kKwai);
  EXPECT_EQ(job.layout.virtual_pipeline, 2);
  EXPECT_TRUE(job.options.recompute.layernorm);
  EXPECT_TRUE(job.options.recompute.mlp_act);
  EXPECT_DOUBLE_EQ(job.options.offload_ratio, 0.3);
  EXPECT_EQ(*job.options.allocator.max_split_size_mb, 21);
  EXPECT_THAT(job.warnings, ElementsAre(HasSubstr("take no time")));
  EXPECT_EQ(to_json(job_from_json(again(job), "")), to_json(job));

  json["frameworks"].erase("fork");
  json["options"]["allocator_max_split_size_mb"] = 20;  // PyTorch wants more
  EXPECT_THAT(error_of(json), HasSubstr("/options/allocator_max_split_size_mb: 20"));
  json["options"].erase("allocator_max_split_size_mb");
  EXPECT_THAT(error_of(json),
              AllOf(HasSubstr("/options/kaimm_recompute_mlp_activation_func: true, expected the "
                              "fork \"kwai\""),
                    HasSubstr("/options/kaimm_offload_activation_ratio: 0.3")));
}

TEST(JobReader, ReadsAllocatorOptions) {
  nlohmann::json json = small_job();
  json["options"].update({{"allocator_garbage_collection_threshold", 0.8},
                          {"allocator_roundup_power2_divisions", 4},
                          {"allocator_expandable_segments", true}});
  const Job job = job_from_json(json, "job.json");
  EXPECT_EQ(job.options.allocator.garbage_collection_threshold, 0.8);
  EXPECT_EQ(job.options.allocator.roundup_power2_divisions, 4);
  EXPECT_TRUE(job.options.allocator.expandable_segments);
  EXPECT_EQ(to_json(job_from_json(again(job), "")), to_json(job));

  json["options"]["allocator_garbage_collection_threshold"] = 1.0;
  json["options"]["allocator_roundup_power2_divisions"] = 3;
  EXPECT_THAT(error_of(json),
              AllOf(HasSubstr("/options/allocator_garbage_collection_threshold: 1.0"),
                    HasSubstr("/options/allocator_roundup_power2_divisions: 3")));
}

TEST(JobReader, RoundTripOfMultiLatentAttention) {
  nlohmann::json json = small_job();
  json["model"].erase("kv_channels");
  json["model"].update({{"multi_latent_attention", true},
                        {"q_lora_rank", 384},
                        {"kv_lora_rank", 128},
                        {"qk_head_dim", 64},
                        {"qk_pos_emb_head_dim", 32},
                        {"v_head_dim", 48}});
  const Job job = job_from_json(json, "");
  EXPECT_EQ(job.model.attention.query_dim(), 64 + 32);
  EXPECT_EQ(to_json(job_from_json(again(job), "")), to_json(job));
}

TEST(JobReader, ListsAllViolationsTogether) {
  nlohmann::json json = small_job();
  json["model"].erase("hidden_size");
  json["model"]["num_layers"] = -1;
  json["batch"]["seq_length"] = "long";
  json["options"]["cross_entropy"] = "fast";
  json["frameworks"]["megatron_core"] = "new";
  const std::string error = error_of(json);
  for (const char* text :
       {"job.json: /model/hidden_size: missing",
        "/model/num_layers: -1, expected an integer from 1",
        "/batch/seq_length: \"long\", expected an integer",
        "/options/cross_entropy: \"fast\", expected one of \"unfused\" \"native\" \"te\"",
        "/frameworks/megatron_core: \"new\", expected a version"}) {
    EXPECT_THAT(error, HasSubstr(text));
  }
}

TEST(JobReader, RefusesUnknownKeysWithTheNearestKnownOne) {
  nlohmann::json json = small_job();
  json["parallel"]["tensor_model_paralel_size"] = 2;
  EXPECT_THAT(error_of(json), HasSubstr("/parallel/tensor_model_paralel_size: unknown key"));
  EXPECT_THAT(error_of(json), HasSubstr("did you mean \"tensor_model_parallel_size\"?"));
}

TEST(JobReader, RulesAcrossSectionsPointIntoTheirSection) {
  nlohmann::json json = small_job();
  json["parallel"]["tensor_model_parallel_size"] = 3;
  json["batch"]["global_batch_size"] = 17;
  json["model"]["num_query_groups"] = 16;
  const std::string error = error_of(json);
  EXPECT_THAT(error, HasSubstr("job.json: /parallel/tensor_model_parallel_size: 3, expected"));
  json["parallel"]["tensor_model_parallel_size"] = 1;
  EXPECT_THAT(error_of(json), HasSubstr("/batch/global_batch_size: 17, expected a multiple"));
  json["batch"]["global_batch_size"] = 16;
  json["options"]["moe_shared_expert_overlap"] = true;
  EXPECT_THAT(error_of(json), HasSubstr("/options/moe_shared_expert_overlap: true"));
  json["model"]["moe_router_topk"] = 9;
  EXPECT_THAT(error_of(json), HasSubstr("/model/moe_router_topk: 9, expected from 1"));
}

TEST(JobReader, ExpertKeysNeedANumberOfExperts) {
  nlohmann::json json = small_job();
  json["model"].erase("num_experts");
  EXPECT_THAT(error_of(json), HasSubstr("/model/num_experts: missing"));
}

TEST(JobReader, TakesTheModelFromAFileOfItsOwn) {
  const auto folder = std::filesystem::path(TIDEMARK_SOURCE_DIR) / "tests/data/hf_configs";
  nlohmann::json json = small_job();
  json["parallel"]["expert_model_parallel_size"] = 8;
  json["model"] = "../hf_configs/deepseek-v3.json";  // from the folder of the job
  const Job job = job_from_json(json, (folder / "job.json").string());
  EXPECT_EQ(job.model.moe->num_experts, 256);
  EXPECT_EQ(job.model_source, (folder / "../hf_configs/deepseek-v3.json").string());
  EXPECT_THAT(job.warnings, ElementsAre(HasSubstr("num_nextn_predict_layers 1"),
                                        HasSubstr("quantization_config")));
  // Written, the model is an object.
  EXPECT_EQ(to_json(job_from_json(again(job), "")), to_json(job));

  json["model"] = "qwen3-30b-a3b";  // of the zoo
  EXPECT_EQ(job_from_json(json, "job.json").model.num_layers, 48);
}

TEST(JobReader, ListsTheViolationsOfTheModelsFileWithItsOwn) {
  nlohmann::json json = small_job();
  json["model"] = "qwen3-30b-a3";
  json["batch"]["seq_length"] = "long";
  EXPECT_THAT(error_of(json), AllOf(HasSubstr("job.json: /model: \"qwen3-30b-a3\", expected an "
                                              "object, the path of a model's file from here, or "
                                              "one of deepseek-v3 "),
                                    HasSubstr("job.json: /batch/seq_length: \"long\"")));
  const std::string config = TIDEMARK_SOURCE_DIR "/tests/data/hf_configs/gpt-oss-20b.json";
  json["model"] = config;
  EXPECT_THAT(error_of(json), AllOf(HasSubstr(config + ": /model_type: \"gpt_oss\""),
                                    HasSubstr("job.json: /batch/seq_length: \"long\"")));
  json["model"] = 7;
  EXPECT_THAT(error_of(json), HasSubstr("job.json: /model: 7, expected an object"));
}

TEST(JobReader, RefusesAnotherSchemaAndAFileThatIsCutOff) {
  nlohmann::json json = small_job();
  json["schema_version"] = 2;
  EXPECT_THAT(error_of(json), HasSubstr("/schema_version: 2"));
  EXPECT_THAT(error_of(nlohmann::json::array()), HasSubstr("expected an object"));

  const auto path = std::filesystem::path(testing::TempDir()) / "cut.json";
  const std::string whole = small_job().dump(1);
  std::ofstream(path) << whole.substr(0, whole.size() / 2);
  try {
    read_job(path);
    FAIL();
  } catch (const InputError& error) {
    EXPECT_THAT(error.what(), HasSubstr("truncated"));
  }
}

TEST(ParseVersion, TakesTheFirstTwoNumbers) {
  EXPECT_EQ(parse_version("0.13.0"), (Version{0, 13}));
  EXPECT_EQ(parse_version("2.10.dev0+abc"), (Version{2, 10}));
  EXPECT_EQ(parse_version("25.04"), (Version{25, 4}));
  for (const char* text : {"", "13", "v0.13", "0.", "-1.2"}) {
    EXPECT_FALSE(parse_version(text).has_value()) << text;
  }
}

}  // namespace
}  // namespace tidemark::job_reader_test
