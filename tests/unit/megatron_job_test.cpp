#include "models/megatron_job.h"

#include <functional>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "models/input_error.h"
#include "models/layer_pattern.h"

namespace tidemark::megatron_job_test {
namespace {

using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

// The smallest dense job that Megatron would start on 8 cards.
nlohmann::json dense() {
  return {{"num_layers", 4},
          {"hidden_size", 1024},
          {"num_attention_heads", 16},
          {"seq_length", 2048},
          {"micro_batch_size", 2},
          {"global_batch_size", 64},
          {"vocab_size", 1000},
          {"world_size", 8},
          {"bf16", true},
          {"position_embedding_type", "rope"}};
}

nlohmann::json moe() {
  nlohmann::json j = dense();
  j.update({{"num_experts", 8},
            {"moe_grouped_gemm", true},
            {"moe_token_dispatcher_type", "alltoall"},
            {"expert_model_parallel_size", 4}});
  return j;
}

nlohmann::json with(nlohmann::json base, const nlohmann::json& changes) {
  base.update(changes);
  return base;
}

MegatronContext context() {
  MegatronContext c;
  c.hardware = "bw1000";
  c.versions = FrameworkVersions{};
  return c;
}

Job read(const nlohmann::json& arguments, const MegatronContext& c = context()) {
  return job_from_megatron(arguments_from_json(arguments, "args.json"), c);
}

std::string error_of(const nlohmann::json& arguments, const MegatronContext& c = context()) {
  try {
    read(arguments, c);
  } catch (const InputError& error) {
    return error.what();
  }
  return "(no error)";
}

TEST(JobFromMegatron, AppliesMegatronsDefaults) {
  const Job job = read(dense());
  EXPECT_EQ(job.model.ffn_hidden_size, 4 * 1024);
  EXPECT_EQ(job.model.attention.head_dim, 1024 / 16);
  EXPECT_EQ(job.model.attention.num_query_groups, 16);  // no group_query_attention
  EXPECT_EQ(job.model.activation, Activation::kGelu);
  EXPECT_EQ(job.model.normalization, Normalization::kLayerNorm);
  EXPECT_TRUE(job.model.add_bias_linear);
  EXPECT_TRUE(job.model.attention.add_qkv_bias);  // follows add_bias_linear
  EXPECT_FALSE(job.model.untie_embeddings_and_output_weights);
  EXPECT_DOUBLE_EQ(job.options.hidden_dropout, 0.1);
  EXPECT_EQ(job.options.cross_entropy, CrossEntropy::kUnfused);
  EXPECT_FALSE(job.options.optimizer.distributed);
  EXPECT_EQ(job.options.optimizer.main_grad_bytes, 4);  // bf16 reduces in fp32
  EXPECT_FALSE(job.model.moe.has_value());
  EXPECT_THAT(job.model.moe_layer, Each(false));
}

TEST(JobFromMegatron, GatedLayersAreTwoThirdsAsWide) {
  // int((4 * 1024 * 2 / 3) / 64) * 64 = int(2730.67 / 64) * 64 = 42 * 64 = 2688.
  EXPECT_EQ(read(with(dense(), {{"swiglu", true}})).model.ffn_hidden_size, 2688);
}

TEST(JobFromMegatron, GlobalBatchDefaultsToOneMicrobatchEach) {
  nlohmann::json j = with(dense(), {{"tensor_model_parallel_size", 2}});
  j.erase("global_batch_size");
  EXPECT_EQ(read(j).batch.global_batch_size, 2 * (8 / 2));
}

TEST(JobFromMegatron, SequenceParallelNeedsTensorParallel) {
  EXPECT_FALSE(read(with(dense(), {{"sequence_parallel", true}})).layout.sequence_parallel);
  EXPECT_TRUE(read(with(dense(), {{"sequence_parallel", true}, {"tensor_model_parallel_size", 2}}))
                  .layout.sequence_parallel);
}

TEST(JobFromMegatron, QueryGroupsCountOnlyWithGroupQueryAttention) {
  EXPECT_EQ(read(with(dense(), {{"num_query_groups", 4}})).model.attention.num_query_groups, 16);
  EXPECT_EQ(read(with(dense(), {{"num_query_groups", 4}, {"group_query_attention", true}}))
                .model.attention.num_query_groups,
            4);
}

TEST(JobFromMegatron, MultiLatentAttentionTakesYarnUnlessTold) {
  const nlohmann::json mla =
      with(dense(), {{"multi_latent_attention", true}, {"q_lora_rank", 384}, {"v_head_dim", 32}});
  const Job job = read(mla);
  EXPECT_EQ(job.model.attention.kind, AttentionKind::kMultiLatent);
  EXPECT_EQ(job.model.attention.q_lora_rank, 384);
  EXPECT_EQ(job.model.attention.kv_lora_rank, 32);  // Megatron's default
  EXPECT_EQ(job.model.attention.v_head_dim, 32);
  EXPECT_EQ(job.model.position_embedding, PositionEmbedding::kYarn);
  EXPECT_EQ(read(with(mla, {{"rope_type", "rope"}})).model.position_embedding,
            PositionEmbedding::kRope);
}

TEST(JobFromMegatron, ExpertsTakeDefaultsFromTheDenseModel) {
  const Job job = read(with(
      moe(),
      {{"ffn_hidden_size", 512}, {"sequence_parallel", true}, {"tensor_model_parallel_size", 2}}));
  EXPECT_EQ(job.model.moe->ffn_hidden_size, 512);
  EXPECT_EQ(job.model.moe->topk, 2);
  EXPECT_EQ(job.layout.expert_tensor, 2);  // that of the dense layers
  EXPECT_THAT(job.model.moe_layer, Each(true));
  EXPECT_FALSE(job.options.moe_expert_capacity_factor.has_value());
}

TEST(JobFromMegatron, NegativeCapacityMeansDropless) {
  EXPECT_FALSE(read(with(moe(), {{"moe_expert_capacity_factor", -1.0}}))
                   .options.moe_expert_capacity_factor.has_value());
  EXPECT_DOUBLE_EQ(
      *read(with(moe(), {{"moe_expert_capacity_factor", 1.5}})).options.moe_expert_capacity_factor,
      1.5);
}

TEST(JobFromMegatron, AuxiliaryLossNeedsACoefficientAndABalancingType) {
  EXPECT_FALSE(read(moe()).options.moe_aux_loss);  // coefficient 0
  EXPECT_TRUE(read(with(moe(), {{"moe_aux_loss_coeff", "1e-2"}})).options.moe_aux_loss);
  EXPECT_FALSE(
      read(with(moe(), {{"moe_aux_loss_coeff", 0.01}, {"moe_router_load_balancing_type", "none"}}))
          .options.moe_aux_loss);
}

TEST(JobFromMegatron, BridgeFusesCrossEntropyAndTakesTheVocabularyAsItIs) {
  EXPECT_EQ(read(with(dense(),
                      {{"cross_entropy_loss_fusion", true}, {"cross_entropy_fusion_impl", "te"}}))
                .options.cross_entropy,
            CrossEntropy::kTransformerEngine);
  const Job bridge = read(with(dense(), {{"use_bridge", true}}));
  EXPECT_EQ(bridge.options.cross_entropy, CrossEntropy::kNativeFused);
  EXPECT_EQ(bridge.model.padded_vocab_size(1), 1000);
}

TEST(JobFromMegatron, PadsTheVocabularyAsTheTokenizerDoes) {
  const auto padded = [](const nlohmann::json& j, const MegatronContext& c) {
    const Job job = read(j, c);
    return job.model.padded_vocab_size(job.layout.tensor);
  };
  const nlohmann::json tp2 = with(dense(), {{"tensor_model_parallel_size", 2}});
  EXPECT_EQ(padded(tp2, context()), 1024);  // to a multiple of 128 * 2
  // NullTokenizer adds its end-of-document: 1024 + 1 goes to the next multiple.
  EXPECT_EQ(
      padded(with(tp2, {{"tokenizer_type", "NullTokenizer"}, {"vocab_size", 1024}}), context()),
      1280);
  MegatronContext given = context();
  given.vocab_size = 128815;  // DeepSeek-V3: 128815 + 467 - 2, not padded
  EXPECT_EQ(
      padded(with(tp2, {{"tokenizer_type", "DeepSeekV2Tokenizer"}, {"extra_vocab_size", 467}}),
             given),
      129280);
  given.padded_vocab_size = 151936;
  EXPECT_EQ(padded(tp2, given), 151936);
}

TEST(JobFromMegatron, PrecisionAwareOptimizerKeepsRemaindersFromTransformerEngine21) {
  const nlohmann::json j = with(dense(), {{"use_distributed_optimizer", true},
                                          {"use_precision_aware_optimizer", true},
                                          {"main_grads_dtype", "bf16"},
                                          {"exp_avg_dtype", "bf16"},
                                          {"exp_avg_sq_dtype", "torch.bfloat16"}});
  MegatronContext c = context();
  c.versions->transformer_engine = Version{2, 1};
  const OptimizerOptions o = read(j, c).options.optimizer;
  EXPECT_EQ(o.main_grad_bytes, 2);
  EXPECT_EQ(o.exp_avg_bytes, 2);
  EXPECT_EQ(o.exp_avg_sq_bytes, 2);
  EXPECT_EQ(o.main_param_bytes, 2);  // 16 bits beside the bf16 parameter
  c.versions->transformer_engine = Version{2, 0};
  EXPECT_EQ(read(j, c).options.optimizer.main_param_bytes, 4);
}

TEST(JobFromMegatron, GradientsReduceInBf16OnRequest) {
  EXPECT_EQ(read(with(dense(), {{"grad_reduce_in_bf16", true}})).options.optimizer.main_grad_bytes,
            2);
}

TEST(JobFromMegatron, GradientsThatAreNotFp32AreCopiedUnlessFusedAdamReadsThem) {
  const auto optimizer = [](const nlohmann::json& more) {
    const nlohmann::json distributed = {{"use_distributed_optimizer", true}};
    return read(with(with(dense(), distributed), more)).options.optimizer;
  };
  EXPECT_FALSE(optimizer(nlohmann::json::object()).fp32_grad_copies);
  EXPECT_TRUE(optimizer({{"grad_reduce_in_bf16", true}}).fp32_grad_copies);
  nlohmann::json aware = {{"use_precision_aware_optimizer", true}, {"main_grads_dtype", "bf16"}};
  EXPECT_FALSE(optimizer(aware).fp32_grad_copies);
  EXPECT_EQ(optimizer(aware).main_param_bytes, 2);
  // A recipe other than delayed scaling turns that off, FP8 or not.
  aware["fp8_recipe"] = "tensorwise";
  EXPECT_TRUE(optimizer(aware).fp32_grad_copies);
  EXPECT_EQ(optimizer(aware).main_param_bytes, 4);
}

TEST(JobFromMegatron, PrecisionsAreModelledOrRefusedByName) {
  EXPECT_TRUE(read(with(moe(), {{"moe_router_dtype", "fp32"}})).options.moe_router_fp32);
  for (const auto& [name, value] : std::vector<std::pair<std::string, nlohmann::json>>{
           {"moe_router_dtype", "fp64"},
           {"fp4_format", "e2m1"},
           {"fp8_format", "hybrid"},
           {"fp8_dot_product_attention", true},
           {"fp8_multi_head_attention", true},
           {"force_fp8_ctx", true},
           {"activation_func_fp8_input_store", true},
           {"moe_router_padding_for_fp8", true},
           {"te_precision_config_file", "precision.yaml"},
           {"fp16_lm_cross_entropy", true},
           {"fp32_residual_connection", true},
           {"fp16", true}}) {
    EXPECT_THAT(error_of(with(moe(), {{name, value}})), HasSubstr("/" + name + ": ")) << name;
  }
}

TEST(JobFromMegatron, RecomputesTheActivationFunctionOfDenseLayers) {
  const nlohmann::json flag = {{"recompute_activation_function", true}};
  EXPECT_TRUE(read(with(dense(), flag)).options.recompute.activation_function);
  const nlohmann::json selective = {{"recompute_granularity", "selective"}};
  EXPECT_THAT(error_of(with(with(dense(), flag), selective)),
              HasSubstr("/recompute_activation_function: True"));
  EXPECT_THAT(
      error_of(with(with(dense(), flag), {{"recompute_activation_function_num_layers", 2}})),
      HasSubstr("/recompute_activation_function_num_layers: 2"));
  EXPECT_THAT(read(with(moe(), flag)).warnings, ElementsAre(HasSubstr("does not reach experts")));
}

TEST(JobFromMegatron, SaysWhyOffloadsAreNotModelled) {
  EXPECT_THAT(error_of(with(dense(), {{"swap_attention", true}})),
              HasSubstr("(not modelled: one stream copies both ways"));
  EXPECT_THAT(error_of(with(dense(), {{"delta_offload_bytes_across_pp_ranks", 1048576}})),
              HasSubstr("(not modelled: it keeps groups of the first microbatches alone"));
}

TEST(JobFromMegatron, TakesCardsFromTheLauncherOrTheCaller) {
  nlohmann::json j = dense();
  j.erase("world_size");
  EXPECT_THAT(error_of(j), HasSubstr("--cards"));
  EXPECT_EQ(read(with(j, {{"nproc_per_node", 8}, {"nnodes", 2}})).layout.cards, 16);
  MegatronContext c = context();
  c.cards = 32;
  EXPECT_EQ(read(j, c).layout.cards, 32);
  EXPECT_EQ(read(with(j, {{"world_size", "$WORLD_SIZE"}}), c).layout.cards, 32);
  EXPECT_THAT(error_of(dense(), c), HasSubstr("/world_size: 8, expected 32"));
}

TEST(JobFromMegatron, NamesTheOptionForAnUnknownVocabulary) {
  nlohmann::json j = dense();
  j.erase("vocab_size");
  EXPECT_THAT(error_of(j), HasSubstr("--vocab-size"));
}

TEST(JobFromMegatron, RefusesEveryFeatureThatIsNotModelledAtOnce) {
  const std::string error = error_of(with(dense(), {{"fp8-format", "hybrid"},
                                                    {"swap_attention", true},
                                                    {"kaimm_offload_activation_ratio", 0.5},
                                                    {"optimizer", "muon"},
                                                    {"cuda_graph_impl", "local"}}));
  for (const char* place :
       {"args.json: /fp8-format: hybrid", "/swap_attention: True",
        "/kaimm_offload_activation_ratio: 0.5", "/optimizer: muon, expected adam",
        "/cuda_graph_impl: local, expected none"}) {
    EXPECT_THAT(error, HasSubstr(place));
  }
}

TEST(JobFromMegatron, SwitchesOfExpertsAreHarmlessWithoutExperts) {
  const nlohmann::json j = {{"moe_token_dispatcher_type", "allgather"},
                            {"moe_enable_deepep", true},
                            {"moe_input_jitter_eps", 0.1}};
  EXPECT_EQ(error_of(with(dense(), j)), "(no error)");
  const std::string error = error_of(with(moe(), j));
  EXPECT_THAT(error, HasSubstr("/moe_token_dispatcher_type: allgather, expected alltoall, flex"));
  EXPECT_THAT(error, HasSubstr("/moe_enable_deepep: True"));
  EXPECT_THAT(error, HasSubstr("/moe_input_jitter_eps: 0.1"));
}

TEST(JobFromMegatron, QuantizedCommunicationIsModelledIn8Bits) {
  EXPECT_EQ(*read(with(moe(), {{"use_quantize_comm", true}})).options.quantize_comm_bits, 8);
  EXPECT_THAT(error_of(with(moe(), {{"use_quantize_comm", true}, {"quant_comm_bits", 4}})),
              HasSubstr("/quant_comm_bits: 4, expected 8"));
  EXPECT_FALSE(read(with(moe(), {{"quant_comm_bits", 4}})).options.quantize_comm_bits.has_value());
}

TEST(JobFromMegatron, FluxIsModelledWithItsGatheredInputOnly) {
  EXPECT_EQ(
      read(with(dense(), {{"parallel_linear_impl", "flux"}, {"save_flux_gather_input", true}}))
          .options.linear_impl,
      LinearImpl::kFluxKeepGather);
  EXPECT_THAT(error_of(with(dense(), {{"parallel_linear_impl", "flux"}})),
              HasSubstr("save_flux_gather_input"));
}

// A dense job of two stages, in two chunks each.
nlohmann::json interleaved() {
  return with(dense(), {{"pipeline_model_parallel_size", 2},
                        {"num_virtual_stages_per_pipeline_rank", 2},
                        {"num_layers", 8}});
}

TEST(JobFromMegatron, VirtualStagesAreAskedForInThreeWays) {
  nlohmann::json none = interleaved();
  none.erase("num_virtual_stages_per_pipeline_rank");
  EXPECT_EQ(read(none).layout.virtual_pipeline, 1);
  EXPECT_EQ(read(interleaved()).layout.virtual_pipeline, 2);
  // 8 layers / 2 stages / 1 layer.
  EXPECT_EQ(
      read(with(none, {{"num_layers_per_virtual_pipeline_stage", 1}})).layout.virtual_pipeline, 4);
  // (7 layers + embedding) / 2 stages / 2 layers.
  const Job counted = read(with(none, {{"num_layers_per_virtual_pipeline_stage", 2},
                                       {"account_for_embedding_in_pipeline_split", true},
                                       {"num_layers", 7}}));
  EXPECT_EQ(counted.layout.virtual_pipeline, 2);
  EXPECT_TRUE(counted.layout.account_for_embedding);
  const Job listed = read(with(none, {{"pipeline_model_parallel_layout", "Et|(ttt|)*2tL"}}));
  EXPECT_EQ(listed.layout.virtual_pipeline, 2);
  EXPECT_THAT(listed.layout.listed_layers, ElementsAre(1, 3, 3, 1));
  // As the log prints it, and the group of microbatches.
  const Job printed = read(with(none, {{"virtual_pipeline_model_parallel_size", 2},
                                       {"microbatch_group_size_per_vp_stage", 4}}));
  EXPECT_EQ(printed.layout.virtual_pipeline, 2);
  EXPECT_EQ(printed.layout.microbatches_in_a_row(), 4);
}

TEST(JobFromMegatron, RefusesContradictoryVirtualStages) {
  EXPECT_THAT(error_of(with(interleaved(), {{"num_layers_per_virtual_pipeline_stage", 2}})),
              HasSubstr("/num_layers_per_virtual_pipeline_stage: 2, expected not beside "
                        "num_virtual_stages_per_pipeline_rank"));
  EXPECT_THAT(error_of(with(interleaved(), {{"virtual_pipeline_model_parallel_size", 4}})),
              HasSubstr("/virtual_pipeline_model_parallel_size: 4, expected 2"));
  EXPECT_THAT(error_of(with(interleaved(), {{"overlap_p2p_comm", false}})),
              HasSubstr("/overlap_p2p_comm: False"));
  nlohmann::json none = interleaved();
  none.erase("num_virtual_stages_per_pipeline_rank");
  // 4 layers a stage.
  EXPECT_THAT(error_of(with(none, {{"num_layers_per_virtual_pipeline_stage", 3}})),
              HasSubstr("/num_layers_per_virtual_pipeline_stage: 3, expected a divisor"));
}

TEST(JobFromMegatron, RefusesLayoutsThatMissSomething) {
  nlohmann::json none = interleaved();
  none.erase("num_virtual_stages_per_pipeline_rank");
  const auto error = [&](const char* layout, std::int64_t mtp = 0) {
    return error_of(
        with(none, {{"pipeline_model_parallel_layout", layout}, {"mtp_num_layers", mtp}}));
  };
  EXPECT_THAT(error("t*4|t*4L"), HasSubstr("/pipeline_model_parallel_layout: t*4|t*4L"));  // no E
  EXPECT_THAT(error("Et*4|t*2|t*2L"), HasSubstr("3 stages, expected a multiple"));
  EXPECT_THAT(error("Et*4|t*3L"), HasSubstr("7 decoder layers, expected num_layers = 8"));
  EXPECT_THAT(error("Et*4|t*4L", 1), HasSubstr("0 layers m, expected mtp_num_layers = 1"));
  EXPECT_THAT(error("Et*4m|t*4L", 1), HasSubstr("m in the last stage"));
  EXPECT_EQ(error("Et*4|t*4mL", 1), "(no error)");
}

TEST(JobFromMegatron, RecomputationFollowsItsGranularity) {
  EXPECT_EQ(read(dense()).options.recompute, SelectiveRecompute{});
  EXPECT_TRUE(read(with(dense(), {{"recompute-activations", true}})).options.recompute.core_attn);
  const TrainingOptions chosen =
      read(with(moe(), {{"recompute_granularity", "selective"},
                        {"recompute_modules", {"moe_act", "layernorm"}}}))
          .options;
  EXPECT_TRUE(chosen.recompute.moe_act && chosen.recompute.layernorm);
  EXPECT_FALSE(chosen.recompute.core_attn);
  const nlohmann::json full = with(dense(), {{"recompute_granularity", "full"},
                                             {"recompute_method", "block"},
                                             {"recompute_num_layers", 2}});
  EXPECT_EQ(read(full).options.full_recompute->method, RecomputeMethod::kBlock);
  EXPECT_EQ(read(full).options.full_recompute->num_layers, 2);
  // Without a granularity the others mean nothing.
  EXPECT_FALSE(read(with(dense(), {{"recompute_num_layers", 1}})).options.full_recompute);
}

TEST(JobFromMegatron, RefusesContradictoryRecomputationAtOnce) {
  EXPECT_THAT(error_of(with(dense(), {{"recompute_granularity", "full"}})),
              testing::AllOf(HasSubstr("recompute_method: None, expected block, uniform"),
                             HasSubstr("recompute_num_layers: missing")));
  EXPECT_THAT(error_of(with(dense(), {{"recompute_granularity", "selective"},
                                      {"recompute_method", "block"},
                                      {"recompute_modules", {"mlp", "mhc"}}})),
              testing::AllOf(HasSubstr("/recompute_method: block, expected None"),
                             HasSubstr("/recompute_modules: mhc, expected core_attn")));
}

TEST(JobFromMegatron, ReadsSquaredReluAndPartialRotation) {
  const Job job = read(with(dense(), {{"squared_relu", true}, {"rotary_percent", 0.5}}));
  EXPECT_EQ(job.model.activation, Activation::kSquaredRelu);
  EXPECT_EQ(job.model.rotary_dim(), 1024 / 16 / 2);
  EXPECT_THAT(error_of(with(dense(), {{"squared_relu", true}, {"swiglu", true}})),
              HasSubstr("/squared_relu: True, expected False"));
  EXPECT_THAT(error_of(with(dense(), {{"rotary_percent", 1.5}})),
              HasSubstr("/rotary_percent: 1.5"));
}

TEST(JobFromMegatron, HybridEpIsTheFlexDispatcherThatIsModelled) {
  const nlohmann::json flex = with(moe(), {{"moe_token_dispatcher_type", "flex"}});
  EXPECT_EQ(read(with(flex, {{"moe_flex_dispatcher_backend", "hybridep"}})).options.moe_dispatcher,
            MoeDispatcher::kHybridEp);
  EXPECT_THAT(error_of(flex), HasSubstr("moe_flex_dispatcher_backend: deepep"));
}

TEST(JobFromMegatron, OverlappedExpertsNeedVirtualStages) {
  const nlohmann::json overlap = {{"overlap_moe_expert_parallel_comm", true}};
  EXPECT_THAT(error_of(with(moe(), overlap)), HasSubstr("/overlap_moe_expert_parallel_comm: True"));
  const Job job =
      read(with(with(moe(), interleaved()), {{"overlap_moe_expert_parallel_comm", true}}));
  EXPECT_TRUE(job.combines_slots());
  EXPECT_THAT(job.warnings, IsEmpty());
}

TEST(JobFromMegatron, Fp8IsTakenAsBf16WhereThatIsMore) {
  const nlohmann::json fp8 = {{"fp8_format", "hybrid"}, {"fp8_recipe", "tensorwise"}};
  EXPECT_THAT(error_of(with(dense(), fp8)), HasSubstr("/fp8_format: hybrid"));
  EXPECT_THAT(read(with(with(dense(), fp8), {{"fp8_param_gather", true}})).warnings,
              ElementsAre(HasSubstr("FP8 is not modelled")));
}

TEST(JobFromMegatron, OneExpertACardNeedsNoGroupedGemm) {
  EXPECT_EQ(error_of(with(moe(), {{"moe_grouped_gemm", false}, {"expert_model_parallel_size", 8}})),
            "(no error)");
  EXPECT_THAT(error_of(with(moe(), {{"moe_grouped_gemm", false}})),
              HasSubstr("/moe_grouped_gemm: False"));
}

TEST(JobFromMegatron, ReadsFineGrainedOffloading) {
  const nlohmann::json given =
      with(moe(), {{"fine_grained_activation_offloading", true},
                   {"offload_modules", {"core_attn", "attn_proj", "moe_act"}},
                   {"min_offloaded_tensor_size", 4096},
                   {"fine_grained_offloading_max_inflight_offloads", 2},
                   {"activation_offload_fraction", 0.5}});
  const FineGrainedOffload offload = read(given).options.offload;
  EXPECT_EQ(offload.max_inflight, 2);
  EXPECT_EQ(offload.modules, (std::vector{OffloadModule::kCoreAttn, OffloadModule::kAttnProj,
                                          OffloadModule::kMoeAct}));
  EXPECT_EQ(offload.min_tensor_elements, 4096);
  EXPECT_DOUBLE_EQ(offload.fraction, 0.5);
  // Modules alone switch nothing on.
  EXPECT_TRUE(
      read(with(moe(), {{"offload_modules", {"core_attn"}}})).options.offload.modules.empty());
  EXPECT_THROW(read(with(given, {{"offload_modules", {"attn_proj"}}})), InputError);
  EXPECT_THROW(read(with(given, {{"offload_modules", {"experts"}}})), InputError);
  EXPECT_THROW(read(with(given, {{"delta_offload_bytes_across_pp_ranks", 1024}})), InputError);
}

TEST(JobFromMegatron, BatchSchedulesStartWithTheirFirstSize) {
  nlohmann::json j = with(dense(), {{"step_batch_size_schedule", "0:32 200B:768"}});
  j.erase("global_batch_size");
  EXPECT_EQ(read(j).batch.global_batch_size, 32);
  EXPECT_THAT(error_of(with(dense(), {{"step_batch_size_schedule", "10:32"}})),
              HasSubstr("/step_batch_size_schedule: 10:32"));
}

TEST(JobFromMegatron, TakesTheAllocatorsSettings) {
  MegatronArguments arguments = arguments_from_json(dense(), "args.json");
  arguments.allocator_conf = {"max_split_size_mb:64,garbage_collection_threshold:0.8", "line 3"};
  const Job job = job_from_megatron(arguments, context());
  EXPECT_EQ(job.options.allocator.max_split_size_mb, 64);
  EXPECT_EQ(job.options.allocator.garbage_collection_threshold, 0);  // Megatron sets no fraction
  EXPECT_THAT(job.warnings, ElementsAre(HasSubstr("garbage_collection_threshold has no effect")));

  arguments.allocator_conf->text = "max_split_size_mb:8";
  EXPECT_THROW(job_from_megatron(arguments, context()), InputError);
}

TEST(JobFromMegatron, ListsUnknownNamesInOneWarningWithHints) {
  const Job job = read(with(dense(), {{"num_layer", 4}, {"zzzzzz", 1}}));
  EXPECT_THAT(job.warnings, ElementsAre("unknown arguments, ignored: num_layer (num_layers?), "
                                        "zzzzzz"));
}

TEST(JobFromMegatron, WarnsWhenVersionsAreAssumed) {
  MegatronContext c = context();
  c.versions.reset();
  EXPECT_THAT(read(dense(), c).warnings, ElementsAre(HasSubstr("versions not given")));
}

TEST(JobFromMegatron, PlacesImpossibleCombinationsInTheFile) {
  // 16 heads on 3 cards.
  EXPECT_THAT(error_of(with(dense(), {{"tensor_model_parallel_size", 3}, {"world_size", 24}})),
              HasSubstr("args.json: /tensor_model_parallel_size: 3, expected a divisor of "
                        "num_attention_heads = 16"));
  EXPECT_THAT(error_of(with(moe(), {{"num_experts", 6}})),
              HasSubstr("/expert_model_parallel_size: 4, expected a divisor of num_experts = 6"));
  EXPECT_THAT(error_of(with(dense(), {{"data_parallel_size", 4}})),
              HasSubstr("/data_parallel_size: 4, expected 8"));
}

TEST(JobFromMegatron, RefusesMalformedValues) {
  EXPECT_THAT(error_of(with(dense(), {{"num_layers", "$LAYERS"}})),
              HasSubstr("/num_layers: $LAYERS, expected an integer from 1"));
  EXPECT_THAT(error_of(with(dense(), {{"swiglu", "maybe"}})),
              HasSubstr("/swiglu: maybe, expected True or False"));
  EXPECT_THAT(error_of(with(dense(), {{"bf16", false}})), HasSubstr("/bf16: False"));
  EXPECT_THAT(error_of(with(dense(), {{"num_layers", "99999999999999999999"}})),
              HasSubstr("/num_layers"));
}

TEST(MoeLayerPattern, EveryNthLayerFromTheFirst) {
  EXPECT_THAT(*moe_layer_pattern("1", 3), ElementsAre(true, true, true));
  EXPECT_THAT(*moe_layer_pattern("2", 4), ElementsAre(true, false, true, false));
  EXPECT_FALSE(moe_layer_pattern("0", 4).has_value());
}

TEST(MoeLayerPattern, ListExpressionsAsPythonReadsThem) {
  EXPECT_THAT(*moe_layer_pattern("([0]*2+[1]*1)", 3), ElementsAre(false, false, true));
  EXPECT_THAT(*moe_layer_pattern("([0,1]+[1])*2", 6),
              ElementsAre(false, true, true, false, true, true));
  EXPECT_THAT(*moe_layer_pattern("[0, 0, 1]", 3), ElementsAre(false, false, true));
}

TEST(MoeLayerPattern, RefusesOtherLengthsAndOtherText) {
  EXPECT_TRUE(moe_layer_pattern("[0]*3+[1]*58", 61).has_value());
  EXPECT_FALSE(moe_layer_pattern("[0]*3+[1]*58", 60).has_value());
  for (const char* text : {"", "[0", "[2]", "[1]*", "[1]*999999999999", "([1])x", "__import__"}) {
    EXPECT_FALSE(moe_layer_pattern(text, 1).has_value()) << text;
  }
  EXPECT_FALSE(moe_layer_pattern(std::string(100'000, '('), 1).has_value());  // no stack overflow
}

}  // namespace
}  // namespace tidemark::megatron_job_test
