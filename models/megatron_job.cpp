#include "models/megatron_job.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

#include "models/argument_reader.h"
#include "models/input_error.h"
#include "models/json_reader.h"
#include "models/layer_pattern.h"
#include "models/megatron_argument_table.h"

namespace tidemark {
namespace {

// Far above any job; they keep products of sizes within 64 bits.
constexpr std::int64_t kLargestSize = std::int64_t{1} << 31;
constexpr std::int64_t kLargestDegree = std::int64_t{1} << 20;

void refuse_not_modelled(ArgumentReader& in, Job& job) {
  std::string unknown;
  const std::vector<std::string> known = known_arguments();
  for (const auto& [name, argument] : in.arguments().values) {
    const ArgumentInfo* info = find_argument(name);
    if (info == nullptr) {
      const std::string hint = nearest(name, known);
      unknown += (unknown.empty() ? "" : ", ") + name;
      if (!hint.empty()) unknown += " (" + hint + "?)";
      continue;
    }
    if (info->kind != ArgumentClass::kNotModelled || info->accepts(argument.text)) continue;
    // Switches of experts mean nothing to a model without them.
    if (!job.model.moe && name.rfind("moe_", 0) == 0) continue;
    in.refuse(name, argument.text, info->accepted_text());
  }
  if (!unknown.empty()) job.warnings.push_back("unknown arguments, ignored: " + unknown);
}

AttentionSpec read_attention(ArgumentReader& in, std::int64_t hidden_size) {
  AttentionSpec a;
  a.num_heads = in.required("num_attention_heads");
  // Hygon's use_qk_norm: "Enable RMSNorm on Q, K before RoPE".
  a.qk_layernorm = in.boolean("qk_layernorm") || in.boolean("use_qk_norm");
  a.num_query_groups = a.num_heads;
  if (in.boolean("multi_latent_attention")) {
    a.kind = AttentionKind::kMultiLatent;
    a.q_lora_rank = in.integer_or("q_lora_rank", 0);
    a.kv_lora_rank = in.integer_or("kv_lora_rank", 32);
    a.qk_head_dim = in.integer_or("qk_head_dim", 128);
    a.qk_pos_emb_head_dim = in.integer_or("qk_pos_emb_head_dim", 64);
    a.v_head_dim = in.integer_or("v_head_dim", 128);
    return a;
  }
  if (in.boolean("group_query_attention")) {
    a.num_query_groups = in.integer_or("num_query_groups", 1, 1);
  }
  if (!in.given("kv_channels") && a.num_heads > 0 && hidden_size % a.num_heads != 0) {
    in.refuse("kv_channels", "missing", "an integer, as hidden_size is no multiple of the heads");
  }
  a.head_dim = in.integer_or("kv_channels", hidden_size / std::max<std::int64_t>(1, a.num_heads));
  // validate_args: "add_qkv_bias is more targeted".
  a.add_qkv_bias = in.boolean("add_qkv_bias") || in.boolean("add_bias_linear", true);
  return a;
}

MoeSpec read_moe(ArgumentReader& in, std::int64_t num_experts, std::int64_t ffn_hidden_size) {
  MoeSpec moe;
  moe.num_experts = num_experts;
  moe.topk = in.integer_or("moe_router_topk", 2);
  moe.ffn_hidden_size = in.integer_or("moe_ffn_hidden_size", ffn_hidden_size);
  moe.shared_ffn_hidden_size = in.integer_or("moe_shared_expert_intermediate_size", 0);
  moe.shared_expert_gate = in.boolean("moe_shared_expert_gate");
  // SequentialMLP hands all tokens to a card's only expert: what is kept is that of grouped GEMM.
  if (!in.boolean("moe_grouped_gemm") && num_experts != in.degree("expert_model_parallel_size")) {
    in.refuse("moe_grouped_gemm", "False",
              "True, or one expert a card (several one by one are not modelled)");
  }
  return moe;
}

PositionEmbedding read_position_embedding(ArgumentReader& in) {
  const std::string otherwise =
      in.boolean("use_rotary_position_embeddings") ? "rope" : "learned_absolute";
  auto type = in.choice<PositionEmbedding>("position_embedding_type",
                                           {{"learned_absolute", PositionEmbedding::kLearned},
                                            {"rope", PositionEmbedding::kRope},
                                            {"yarn", PositionEmbedding::kYarn},
                                            {"none", PositionEmbedding::kNone}},
                                           otherwise);
  if (in.boolean("use_rotary_position_embeddings")) type = PositionEmbedding::kRope;
  // MLATransformerConfig takes yarn unless told otherwise; common attention takes rope.
  const bool latent = in.boolean("multi_latent_attention");
  if (latent && type == PositionEmbedding::kRope && in.text("rope_type", "yarn") == "yarn") {
    type = PositionEmbedding::kYarn;
  }
  if (!in.boolean("add_position_embedding", true) && type == PositionEmbedding::kLearned) {
    in.refuse("add_position_embedding", "False", "position_embedding_type none beside it");
  }
  return type;
}

void read_vocabulary(ArgumentReader& in, const MegatronContext& context, ModelSpec& model) {
  model.make_vocab_size_divisible_by = in.integer_or("make_vocab_size_divisible_by", 128, 1);
  std::optional<std::int64_t> padded = context.padded_vocab_size;
  std::optional<std::int64_t> size = context.vocab_size;
  if (!padded && !size) padded = in.integer("padded_vocab_size", 1);
  if (!padded && !size) {
    size = in.integer("vocab_size", 1);
    // "Size of vocab before EOD or padding": of all tokenizers only this one adds its own EOD.
    if (size && in.text("tokenizer_type", "") == "NullTokenizer") ++*size;
  }
  if (!padded && size) {
    const std::int64_t extra = in.integer_or("extra_vocab_size", 0);
    if (in.boolean("use_bridge")) {
      padded = size;  // Megatron-Bridge takes the Hugging Face vocabulary as it is
    } else if (in.text("tokenizer_type", "") == "DeepSeekV2Tokenizer") {
      // Pai-Megatron-Patch, megatron_patch/tokenizer: `len(tokenizer) + extra_vocab_size - 2`, not
      // padded (128815 + 467 - 2 = 129280 = 4 * 32320 rows in the DeepSeek-V3 log).
      padded = *size + extra - 2;
    } else {
      *size += extra;
    }
  }
  if (padded) {
    model.vocab_size = *padded;
    model.make_vocab_size_divisible_by = 1;
  } else if (size) {
    model.vocab_size = *size;
  } else {
    in.refuse("vocab_size", "not in the arguments",
              "--vocab-size: the tokenizer's size, which only the tokenizer's files say");
  }
}

ModelSpec read_model(ArgumentReader& in, const MegatronContext& context) {
  ModelSpec m;
  m.num_layers = in.required("num_layers", kLargestDegree);
  m.hidden_size = in.required("hidden_size");
  m.activation = in.boolean("swiglu")         ? Activation::kSwiglu
                 : in.boolean("squared_relu") ? Activation::kSquaredRelu
                                              : Activation::kGelu;
  if (m.gated() && in.boolean("squared_relu")) {
    in.refuse("squared_relu", "True", "False beside swiglu");
  }
  if (m.gated() && !in.boolean("bias_swiglu_fusion", true)) {
    in.refuse("bias_swiglu_fusion", "False", "True (the unfused SwiGLU is not modelled)");
  }
  // int((4 * h * 2 / 3) / 64) * 64 keeps a gated layer's parameters near those of 4 * h.
  const std::int64_t ffn = m.gated() ? m.hidden_size * 8 / 3 / 64 * 64 : 4 * m.hidden_size;
  m.ffn_hidden_size = in.integer_or("ffn_hidden_size", ffn, 1);
  m.attention = read_attention(in, m.hidden_size);
  m.moe_layer.assign(static_cast<std::size_t>(m.num_layers), false);
  const std::int64_t num_experts = in.integer_or("num_experts", 0);
  if (num_experts > 0) {
    m.moe = read_moe(in, num_experts, m.ffn_hidden_size);
    const std::string frequency = in.text("moe_layer_freq", "1");
    if (const auto pattern = moe_layer_pattern(frequency, m.num_layers)) {
      m.moe_layer = *pattern;
    } else {
      in.refuse("moe_layer_freq", frequency,
                "an integer >= 1, or a list of " + std::to_string(m.num_layers) + " times 0 or 1");
    }
  }
  m.normalization = in.choice<Normalization>(
      "normalization",
      {{"RMSNorm", Normalization::kRmsNorm}, {"LayerNorm", Normalization::kLayerNorm}},
      "LayerNorm");
  m.position_embedding = read_position_embedding(in);
  m.rotary_percent = in.number_or("rotary_percent", 1);
  if (m.rotary_percent <= 0 || m.rotary_percent > 1) {
    in.refuse("rotary_percent", in.text("rotary_percent", ""), "a number from 0 (excluded) to 1");
  }
  m.mtp_num_layers = in.integer_or("mtp_num_layers", 0);
  m.add_bias_linear = in.boolean("add_bias_linear", true);
  m.untie_embeddings_and_output_weights = in.boolean("untie_embeddings_and_output_weights");
  m.max_position_embeddings = in.integer_or("max_position_embeddings", 0);
  read_vocabulary(in, context, m);
  return m;
}

std::int64_t read_cards(ArgumentReader& in, const MegatronContext& context, Job& job) {
  // "$WORLD_SIZE": the launcher sets it, so the script does not say.
  const bool stated = in.given("world_size") && in.text("world_size", "").front() != '$';
  std::optional<std::int64_t> cards;
  if (stated) cards = in.integer("world_size", 1, kLargestDegree);
  if (!cards && !context.cards && in.given("nproc_per_node")) {
    // torchrun's flags.
    cards = in.degree("nproc_per_node") * in.degree("nnodes");
    job.warnings.push_back("world size from --nproc_per_node and --nnodes: " +
                           std::to_string(*cards));
  }
  if (cards && context.cards && *cards != *context.cards) {
    in.refuse("world_size", std::to_string(*cards),
              std::to_string(*context.cards) + ", the number of cards given");
  }
  if (!cards) cards = context.cards;
  if (!cards && !stated) {
    in.refuse("world_size", "not in the arguments", "--cards: how many cards the job has");
  }
  return cards.value_or(0);
}

// "Et*3|(tt|)*29m|L".
void read_pipeline_layout(ArgumentReader& in, const ModelSpec& model, ParallelLayout& l) {
  const std::string key = "pipeline_model_parallel_layout";
  const std::string text = in.text(key, "");
  const std::optional<PipelineLayout> layout = parse_pipeline_layout(text);
  if (!layout) {
    in.refuse(key, text,
              "E, t, m, L, | and repetitions, from E to L, such as \"Et*3|(tt|)*29m|L\"");
    return;
  }
  const std::int64_t stages = std::ssize(layout->decoder_layers);
  if (stages % l.pipeline != 0) {
    in.refuse(key, std::to_string(stages) + " stages",
              "a multiple of pipeline_model_parallel_size = " + std::to_string(l.pipeline));
    return;
  }
  const std::int64_t last = layout->mtp_layers.back();
  const std::int64_t all =
      std::accumulate(layout->mtp_layers.begin(), layout->mtp_layers.end(), std::int64_t{0});
  if (all != model.mtp_num_layers) {
    in.refuse(key, std::to_string(all) + " layers m",
              "mtp_num_layers = " + std::to_string(model.mtp_num_layers));
  } else if (last != all) {
    in.refuse(key, text, "m in the last stage (MTP layers elsewhere are not modelled)");
  }
  l.virtual_pipeline = stages / l.pipeline;
  l.listed_layers = layout->decoder_layers;
}

// Chunks of a stage. Megatron has three ways to ask for them, of which one may be used, and prints
// what follows as virtual_pipeline_model_parallel_size.
void read_virtual_stages(ArgumentReader& in, const ModelSpec& model, ParallelLayout& l) {
  const std::string kLayersEach = "num_layers_per_virtual_pipeline_stage";
  const std::string kStagesEach = "num_virtual_stages_per_pipeline_rank";
  const std::string kLayout = "pipeline_model_parallel_layout";
  const std::string kSize = "virtual_pipeline_model_parallel_size";
  l.account_for_embedding = in.boolean("account_for_embedding_in_pipeline_split");
  l.account_for_loss = in.boolean("account_for_loss_in_pipeline_split");
  l.microbatch_group = in.integer_or("microbatch_group_size_per_vp_stage", 0, 1);
  std::string first_way;
  for (const std::string& way : {kLayout, kStagesEach, kLayersEach}) {
    if (!in.given(way)) continue;
    if (!first_way.empty()) {
      in.refuse(way, in.text(way, ""), "not beside " + first_way);
      continue;
    }
    first_way = way;
    if (way == kLayout) {
      read_pipeline_layout(in, model, l);
    } else if (way == kStagesEach) {
      l.virtual_pipeline = in.degree(kStagesEach);
    } else {
      if (l.first_stage_layers > 0 || l.last_stage_layers > 0) {
        in.refuse(way, in.text(way, ""),
                  "num_virtual_stages_per_pipeline_rank beside decoder_first_pipeline_num_layers "
                  "or decoder_last_pipeline_num_layers");
      }
      const std::int64_t each = in.degree(kLayersEach);
      const std::int64_t layers =
          model.num_layers + (l.account_for_embedding ? 1 : 0) + (l.account_for_loss ? 1 : 0);
      if (layers % (l.pipeline * each) != 0) {
        in.refuse(way, std::to_string(each),
                  "a divisor of the layers of a stage: " + std::to_string(layers) + " over " +
                      std::to_string(l.pipeline) + " stages");
      } else {
        l.virtual_pipeline = layers / (l.pipeline * each);
      }
    }
  }
  const std::int64_t printed = in.degree(kSize, l.virtual_pipeline);
  if (!first_way.empty() && printed != l.virtual_pipeline) {
    in.refuse(kSize, std::to_string(printed),
              std::to_string(l.virtual_pipeline) + ", which follows from " + first_way);
  }
  if (first_way.empty()) l.virtual_pipeline = printed;
}

ParallelLayout read_layout(ArgumentReader& in, const MegatronContext& context, Job& job) {
  const bool experts = job.model.moe.has_value();
  ParallelLayout l;
  l.cards = read_cards(in, context, job);
  l.tensor = in.degree("tensor_model_parallel_size");
  l.sequence_parallel = l.tensor > 1 && in.boolean("sequence_parallel");
  l.context = in.degree("context_parallel_size");
  l.pipeline = in.degree("pipeline_model_parallel_size");
  l.expert = in.degree("expert_model_parallel_size");
  // Without experts Megatron still carries the default; it has no meaning then.
  l.expert_tensor = experts ? in.degree("expert_tensor_parallel_size", l.tensor) : 1;
  l.first_stage_layers = in.integer_or("decoder_first_pipeline_num_layers", 0);
  l.last_stage_layers = in.integer_or("decoder_last_pipeline_num_layers", 0);
  read_virtual_stages(in, job.model, l);
  const std::int64_t model_size = l.tensor * l.context * l.pipeline;
  if (const auto data = in.integer("data_parallel_size", 1);
      data && l.cards % model_size == 0 && *data != l.data()) {
    in.refuse("data_parallel_size", std::to_string(*data),
              std::to_string(l.data()) + " = world_size / (TP * CP * PP)");
  }
  return l;
}

OptimizerOptions read_optimizer(ArgumentReader& in, const FrameworkVersions& versions) {
  const std::map<std::string, std::int64_t> kBytes = {
      {"fp32", 4},          {"bf16", 2},           {"fp16", 2},          {"fp8", 1},
      {"torch.float32", 4}, {"torch.bfloat16", 2}, {"torch.float16", 2}, {"torch.uint8", 1}};
  OptimizerOptions o;
  o.distributed = in.boolean("use_distributed_optimizer");
  const bool bf16_grads = in.choice("main_grads_dtype", kBytes, "fp32") == 2;
  const bool fp32_reduce = in.boolean("accumulate_allreduce_grads_in_fp32") || !bf16_grads;
  o.main_grad_bytes = fp32_reduce && !in.boolean("grad_reduce_in_bf16") ? 4 : 2;
  o.fp32_grad_copies = o.distributed && o.main_grad_bytes < 4;
  if (!in.boolean("use_precision_aware_optimizer")) return o;
  if (!o.distributed) {
    in.refuse("use_precision_aware_optimizer", "True", "use_distributed_optimizer beside it");
  }
  o.exp_avg_bytes = in.choice("exp_avg_dtype", kBytes, "fp32");
  o.exp_avg_sq_bytes = in.choice("exp_avg_sq_dtype", kBytes, "fp32");
  o.main_param_bytes = in.choice("main_params_dtype", kBytes, "fp32");
  // OptimizerConfig.use_precision_aware_optimizer_no_fp8_or_ds_fp8, from core 0.13: with a recipe
  // of FP8 other than delayed scaling, named even if FP8 is off, Megatron keeps fp32 main
  // parameters.
  const std::string recipe = in.text("fp8_recipe", "delayed");
  if (o.main_param_bytes == 4 && versions.megatron_core >= Version{0, 13} && recipe != "delayed" &&
      recipe != "None") {
    return o;
  }
  o.fp32_grad_copies = false;
  // OptimizerConfig.store_param_remainders is on from TE 2.1: of a 32-bit main parameter only the
  // 16 bits are kept that the bf16 parameter lacks.
  if (o.main_param_bytes == 4 && versions.transformer_engine >= Version{2, 1}) {
    o.main_param_bytes = 2;
  }
  return o;
}

CrossEntropy read_cross_entropy(ArgumentReader& in) {
  const bool engine =
      in.choice<bool>("cross_entropy_fusion_impl", {{"native", false}, {"te", true}}, "native");
  // Megatron-Bridge's provider fuses natively whatever the arguments say (gpt_provider.py).
  if (in.boolean("use_bridge")) return CrossEntropy::kNativeFused;
  if (!in.boolean("cross_entropy_loss_fusion")) return CrossEntropy::kUnfused;
  return engine ? CrossEntropy::kTransformerEngine : CrossEntropy::kNativeFused;
}

bool read_aux_loss(ArgumentReader& in) {
  bool balanced = false;
  for (const std::string& type :
       list_items(in.text("moe_router_load_balancing_type", "aux_loss"))) {
    if (type == "sinkhorn") {
      in.refuse("moe_router_load_balancing_type", type,
                "aux_loss, seq_aux_loss, global_aux_loss or none");
    }
    balanced |= type != "none";
  }
  bool positive = false;
  for (const std::string& item : list_items(in.text("moe_aux_loss_coeff", "0.0"))) {
    const auto value = parse_number<double>(item);
    if (!value) in.refuse("moe_aux_loss_coeff", item, "a number");
    positive |= value.value_or(0) > 0;
  }
  return balanced && positive;
}

ContextParallelComm read_context_comm(ArgumentReader& in, std::int64_t context_parallel) {
  const std::vector<std::string> items = list_items(in.text("cp_comm_type", "p2p"));
  const bool uniform =
      !items.empty() && std::count(items.begin(), items.end(), items[0]) == std::ssize(items);
  if (uniform && items[0] == "a2a") return ContextParallelComm::kAllToAll;
  if (context_parallel > 1 && !(uniform && items[0] == "p2p")) {
    in.refuse("cp_comm_type", in.text("cp_comm_type", "p2p"), "p2p or a2a, in all layers");
  }
  return ContextParallelComm::kPointToPoint;
}

void read_offload(ArgumentReader& in, FineGrainedOffload& offload) {
  if (!in.boolean("fine_grained_activation_offloading")) return;
  const std::vector<std::string> names = list_items(in.text("offload_modules", ""));
  if (names.empty()) in.refuse("offload_modules", "missing", "modules to offload");
  for (const std::string& name : names) {
    const auto* known = std::find_if(std::begin(kOffloadModules), std::end(kOffloadModules),
                                     [&](OffloadModule m) { return name == name_of(m); });
    if (known != std::end(kOffloadModules)) {
      offload.modules.push_back(*known);
      continue;
    }
    std::string allowed;
    for (OffloadModule m : kOffloadModules) {
      allowed += (allowed.empty() ? "" : ", ") + std::string(name_of(m));
    }
    in.refuse("offload_modules", name, allowed);
  }
  offload.min_tensor_elements =
      in.integer_or("min_offloaded_tensor_size", offload.min_tensor_elements);
  offload.fraction = in.number_or("activation_offload_fraction", offload.fraction);
  offload.max_inflight = in.integer("fine_grained_offloading_max_inflight_offloads", 0);
}

// Hygon's: the function of dense MLPs, since in hcu_megatron neither TEGroupedMLP nor the shared
// experts get the layer_number that it asks for. Not beside what its validate_args refuses.
void read_activation_function(ArgumentReader& in, const ModelSpec& model,
                              SelectiveRecompute& recompute) {
  if (!in.boolean("recompute_activation_function")) return;
  recompute.activation_function = model.has_dense_layers();
  if (in.text("recompute_granularity", "None") == "selective") {
    in.refuse("recompute_activation_function", "True", "False with selective recomputation");
  }
  if (in.text("recompute_method", "None") == "uniform") {
    in.refuse("recompute_activation_function", "True", "False with uniform recomputation");
  }
}

// TransformerConfig.__post_init__: what goes with which granularity.
void read_recompute(ArgumentReader& in, TrainingOptions& o) {
  const std::string granularity = in.text("recompute_granularity", "None");
  if (granularity == "None") return;
  if (granularity == "full") {
    FullRecompute& full = o.full_recompute.emplace();
    full.method = in.choice<RecomputeMethod>(
        "recompute_method",
        {{"uniform", RecomputeMethod::kUniform}, {"block", RecomputeMethod::kBlock}}, "None");
    full.num_layers = in.required("recompute_num_layers", kLargestDegree);
    return;
  }
  if (granularity != "selective") {
    in.refuse("recompute_granularity", granularity, "None, full or selective");
    return;
  }
  for (const char* key : {"recompute_method", "recompute_num_layers"}) {
    if (in.given(key)) in.refuse(key, in.text(key, ""), "None with selective recomputation");
  }
  const std::map<std::string, bool SelectiveRecompute::*> kModules = {
      {"core_attn", &SelectiveRecompute::core_attn},
      {"mla_up_proj", &SelectiveRecompute::mla_up_proj},
      {"layernorm", &SelectiveRecompute::layernorm},
      {"mlp", &SelectiveRecompute::mlp},
      {"moe", &SelectiveRecompute::moe},
      {"moe_act", &SelectiveRecompute::moe_act},
      {"shared_experts", &SelectiveRecompute::shared_experts}};
  for (const std::string& module : list_items(in.text("recompute_modules", "core_attn"))) {
    const auto it = kModules.find(module);
    if (it != kModules.end()) {
      o.recompute.*it->second = true;
      continue;
    }
    std::string allowed;
    for (const auto& [name, member] : kModules) allowed += (allowed.empty() ? "" : ", ") + name;
    in.refuse("recompute_modules", module, allowed);
  }
}

MoeDispatcher read_dispatcher(ArgumentReader& in) {
  const auto dispatcher = in.choice<MoeDispatcher>(
      "moe_token_dispatcher_type",
      {{"alltoall", MoeDispatcher::kAllToAll}, {"flex", MoeDispatcher::kHybridEp}}, "allgather");
  if (dispatcher == MoeDispatcher::kHybridEp &&
      in.text("moe_flex_dispatcher_backend", "deepep") != "hybridep") {
    in.refuse("moe_flex_dispatcher_backend", in.text("moe_flex_dispatcher_backend", "deepep"),
              "hybridep (what DeepEP receives is not modelled)");
  }
  return dispatcher;
}

// Accepted although they are not, or not all, modelled.
void warn_of_approximations(ArgumentReader& in, Job& job) {
  const auto warn = [&](const std::string& text) { job.warnings.push_back(text); };
  if (in.text("fp8", "None") != "None") {
    // Each linear keeps its input in one byte of two. What bf16 shares, the attention's output with
    // the projection, is kept twice, but the two inputs of the MLP save more than that.
    if (in.text("fp8_recipe", "delayed") != "tensorwise" || !in.boolean("fp8_param_gather")) {
      in.refuse("fp8", in.text("fp8", ""),
                "None, or fp8_recipe tensorwise with fp8_param_gather (otherwise weights are kept "
                "in FP8 too, which is not modelled)");
    }
    warn("FP8 is not modelled: memory as in bf16, which bounds what is kept from above");
  }
  if (in.boolean("use_intra_ep")) {
    warn("use_intra_ep is not in public sources: taken to change nothing");
  }
  if (in.boolean("tp_comm_overlap")) {
    warn("tp_comm_overlap is not modelled: memory and time as without it");
  }
  if (in.boolean("recompute_activation_function") && job.model.moe) {
    warn("recompute_activation_function: of dense layers; Hygon's code does not reach experts");
  }
  if (in.boolean("overlap_ep_comm_with_split_attn")) {
    warn("overlap_ep_comm_with_split_attn: attention is not split, operators alternate without it");
  }
}

// "0:384 200B:768": the batch grows with the tokens seen; the first iterations are simulated.
void read_batch_schedule(ArgumentReader& in, Job& job) {
  const std::string key = "step_batch_size_schedule";
  if (!in.given(key)) return;
  const std::string text = in.text(key, "");
  const std::string first = text.substr(0, text.find(' '));
  const auto size = first.rfind("0:", 0) == 0
                        ? parse_number<std::int64_t>(std::string_view(first).substr(2))
                        : std::nullopt;
  if (!size || *size < 1 || *size > kLargestSize) {
    in.refuse(key, text, "thresholds and batch sizes such as \"0:384 200B:768\"");
    return;
  }
  job.batch.global_batch_size = *size;
  job.warnings.push_back("global batch size " + std::to_string(*size) + ", the first of " + key);
}

TrainingOptions read_options(ArgumentReader& in, const Job& job) {
  TrainingOptions o;
  o.optimizer = read_optimizer(in, job.versions);
  o.gradient_accumulation_fusion = in.boolean("gradient_accumulation_fusion", true);
  o.overlap_grad_reduce = in.boolean("overlap_grad_reduce");
  o.overlap_param_gather = in.boolean("overlap_param_gather");
  o.ddp_bucket_size = in.integer("ddp_bucket_size", 1);
  o.check_for_nan_in_loss_and_grad = in.boolean("check_for_nan_in_loss_and_grad", true);
  o.cross_entropy = read_cross_entropy(in);
  if (in.given("parallel_linear_impl")) {
    o.linear_impl = in.choice<LinearImpl>("parallel_linear_impl",
                                          {{"flux", LinearImpl::kFluxKeepGather}}, "flux");
    if (!in.boolean("save_flux_gather_input")) {
      in.refuse("save_flux_gather_input", "False", "True (gathering again is not modelled)");
    }
  }
  o.attention_backend =
      in.choice<AttentionBackend>("attention_backend",
                                  {{"AttnBackend.auto", AttentionBackend::kAuto},
                                   {"auto", AttentionBackend::kAuto},
                                   {"AttnBackend.flash", AttentionBackend::kFlash},
                                   {"flash", AttentionBackend::kFlash},
                                   {"AttnBackend.fused", AttentionBackend::kFused},
                                   {"fused", AttentionBackend::kFused},
                                   {"AttnBackend.unfused", AttentionBackend::kUnfused},
                                   {"unfused", AttentionBackend::kUnfused}},
                                  "auto");
  o.cp_comm = read_context_comm(in, job.layout.context);
  const bool rotary = job.model.position_embedding == PositionEmbedding::kRope ||
                      job.model.position_embedding == PositionEmbedding::kYarn;
  o.apply_rope_fusion = rotary && in.boolean("apply_rope_fusion", true);
  o.create_attention_mask_in_dataloader = in.boolean("create_attention_mask_in_dataloader", true);
  o.hidden_dropout = in.number_or("hidden_dropout", 0.1);
  read_recompute(in, o);
  read_activation_function(in, job.model, o.recompute);
  read_offload(in, o.offload);
  const ParallelLayout& l = job.layout;
  if (l.virtual_pipeline > 1) {
    o.overlap_p2p_comm = in.boolean("overlap_p2p_comm", true);
    if (!o.overlap_p2p_comm && l.pipeline == 2) {
      in.refuse("overlap_p2p_comm", "False", "True with virtual stages of 2 pipeline stages");
    }
  }
  if (!job.model.moe) return o;

  o.overlap_moe_expert_parallel_comm = in.boolean("overlap_moe_expert_parallel_comm");
  if (o.overlap_moe_expert_parallel_comm && l.virtual_pipeline == 1) {
    in.refuse("overlap_moe_expert_parallel_comm", "True",
              "False without virtual stages (their schedule alone is modelled)");
  }
  o.delay_wgrad_compute = in.boolean("delay_wgrad_compute");
  o.ep_overlap_early_attn_memory_release = in.boolean("ep_overlap_early_attn_memory_release");
  if (in.boolean("overlap_ep_comm_with_split_attn") && !o.overlap_moe_expert_parallel_comm) {
    in.refuse("overlap_ep_comm_with_split_attn", "True",
              "overlap_moe_expert_parallel_comm beside it");
  }
  o.moe_dispatcher = read_dispatcher(in);
  o.moe_permute_fusion = in.boolean("moe_permute_fusion");
  o.moe_router_fusion = in.boolean("moe_router_fusion");
  o.moe_router_fp32 =
      in.choice<bool>("moe_router_dtype", {{"None", false}, {"fp32", true}}, "None");
  o.moe_aux_loss = read_aux_loss(in);
  const double capacity = in.number_or("moe_expert_capacity_factor", -1);
  if (capacity >= 0) o.moe_expert_capacity_factor = capacity;  // negative: none, as Megatron says
  o.moe_pad_expert_input_to_capacity = in.boolean("moe_pad_expert_input_to_capacity");
  o.moe_shared_expert_overlap =
      job.model.moe->shared_ffn_hidden_size > 0 && in.boolean("moe_shared_expert_overlap");
  o.moe_router_force_load_balancing = in.boolean("moe_router_force_load_balancing");
  if (in.boolean("use_quantize_comm")) {
    o.quantize_comm_bits = in.choice<std::int64_t>("quant_comm_bits", {{"8", 8}}, "8");
  }
  return o;
}

// Megatron never calls torch.cuda.set_per_process_memory_fraction, without which PyTorch collects
// nothing (`set_fraction` in CUDACachingAllocator.cpp).
void read_allocator_conf(const MegatronArguments& arguments, Job& job,
                         std::vector<Violation>& violations) {
  if (!arguments.allocator_conf) return;
  const auto& [text, place] = *arguments.allocator_conf;
  AllocatorOptions& options = job.options.allocator;
  options = parse_allocator_conf(text, arguments.source, "PYTORCH_CUDA_ALLOC_CONF (" + place + ")",
                                 violations);
  if (options.garbage_collection_threshold == 0) return;
  options.garbage_collection_threshold = 0;
  job.warnings.push_back(
      "garbage_collection_threshold has no effect: nothing sets a memory fraction");
}

}  // namespace

Job job_from_megatron(const MegatronArguments& arguments, const MegatronContext& context) {
  ArgumentReader in(arguments);
  Job job;
  job.source = arguments.source;
  job.name =
      context.name.empty() ? std::filesystem::path(arguments.source).stem().string() : context.name;
  job.hardware = context.hardware;
  job.warnings = arguments.warnings;
  if (context.versions) {
    job.versions = *context.versions;
  } else {
    job.warnings.push_back("framework versions not given: Megatron core " +
                           job.versions.megatron_core.text() + " and Transformer Engine " +
                           job.versions.transformer_engine.text() + " are assumed");
  }
  job.model = read_model(in, context);
  job.layout = read_layout(in, context, job);
  job.batch.micro_batch_size = in.required("micro_batch_size");
  job.batch.seq_length = in.required("seq_length");
  const std::int64_t one_each =
      job.batch.micro_batch_size * std::max<std::int64_t>(1, job.layout.data());
  job.batch.global_batch_size = in.integer_or("global_batch_size", one_each, 1);
  read_batch_schedule(in, job);
  job.options = read_options(in, job);
  warn_of_approximations(in, job);
  if (!in.boolean("bf16")) in.refuse("bf16", "False", "True (other precisions are not modelled)");
  refuse_not_modelled(in, job);
  std::vector<Violation> violations = in.violations();
  read_allocator_conf(arguments, job, violations);
  throw_if_any(violations);

  try {
    validate(job, "");
  } catch (const InputError& error) {
    std::vector<Violation> placed = error.violations();
    for (Violation& v : placed) v.place = in.place(v.place);
    throw InputError(std::move(placed));
  }
  return job;
}

}  // namespace tidemark
