#include "models/megatron_job.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <map>
#include <utility>

#include "models/input_error.h"
#include "models/json_reader.h"
#include "models/megatron_argument_table.h"

namespace tidemark {
namespace {

// Far above any job; they keep products of sizes within 64 bits.
constexpr std::int64_t kLargestSize = std::int64_t{1} << 31;
constexpr std::int64_t kLargestDegree = std::int64_t{1} << 20;

template <class T>
std::optional<T> parse_number(std::string_view text) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return value;
}

// Typed access to arguments by name; problems are collected.
class ArgumentReader {
 public:
  explicit ArgumentReader(const MegatronArguments& arguments) : arguments_(arguments) {}

  // Python's None, and an empty value, count as not given.
  bool given(const std::string& name) const {
    const auto it = arguments_.values.find(name);
    return it != arguments_.values.end() && it->second.text != "None" && !it->second.text.empty();
  }

  std::string text(const std::string& name, const std::string& otherwise) const {
    return given(name) ? arguments_.values.at(name).text : otherwise;
  }

  std::optional<std::int64_t> integer(const std::string& name, std::int64_t low = 0,
                                      std::int64_t high = kLargestSize) {
    if (!given(name)) return std::nullopt;
    const std::string& found = arguments_.values.at(name).text;
    const auto value = parse_number<std::int64_t>(found);
    if (value && *value >= low && *value <= high) return value;
    refuse(name, found, "an integer from " + std::to_string(low) + " to " + std::to_string(high));
    return std::nullopt;
  }

  // A number of cards or layers, or a degree of parallelism.
  std::int64_t degree(const std::string& name, std::int64_t otherwise = 1) {
    return integer(name, 1, kLargestDegree).value_or(otherwise);
  }

  std::int64_t integer_or(const std::string& name, std::int64_t otherwise, std::int64_t low = 0) {
    return integer(name, low).value_or(otherwise);
  }

  std::int64_t required(const std::string& name, std::int64_t high = kLargestSize) {
    if (!given(name)) refuse(name, "missing", "an integer >= 1");
    return integer(name, 1, high).value_or(0);
  }

  double number_or(const std::string& name, double otherwise) {
    if (!given(name)) return otherwise;
    const auto value = parse_number<double>(arguments_.values.at(name).text);
    if (value) return *value;
    refuse(name, arguments_.values.at(name).text, "a number");
    return otherwise;
  }

  bool boolean(const std::string& name, bool otherwise = false) {
    if (!given(name)) return otherwise;
    const std::string& found = arguments_.values.at(name).text;
    if (found == "True" || found == "true") return true;
    if (found == "False" || found == "false") return false;
    refuse(name, found, "True or False");
    return otherwise;
  }

  template <class T>
  T choice(const std::string& name, const std::map<std::string, T>& choices,
           const std::string& otherwise) {
    const auto it = choices.find(text(name, otherwise));
    if (it != choices.end()) return it->second;
    std::string allowed;
    for (const auto& [key, value] : choices) allowed += (allowed.empty() ? "" : ", ") + key;
    refuse(name, text(name, otherwise), allowed);
    return T{};
  }

  void refuse(const std::string& name, const std::string& found, const std::string& allowed) {
    violations_.push_back({arguments_.source, place(name), found, allowed});
  }

  std::string place(const std::string& name) const {
    const auto it = arguments_.values.find(name);
    if (it == arguments_.values.end()) return name;
    const std::string& where = it->second.place;
    return where.rfind('/', 0) == 0 ? where : name + " (" + where + ")";
  }

  const MegatronArguments& arguments() const { return arguments_; }
  const std::vector<Violation>& violations() const { return violations_; }

 private:
  const MegatronArguments& arguments_;
  std::vector<Violation> violations_;
};

// [expr], (expr), sums and repetitions of lists of 0 and 1, as Megatron's _eval_pattern accepts.
class PatternParser {
 public:
  explicit PatternParser(std::string_view text) : text_(text) {}

  std::optional<std::vector<bool>> parse() {
    std::optional<std::vector<bool>> all = sum();
    return peek() == '\0' ? all : std::nullopt;
  }

 private:
  static constexpr std::size_t kLongest = 100'000;
  static constexpr int kDeepest = 100;

  char peek() {
    while (at_ < text_.size() && std::isspace(static_cast<unsigned char>(text_[at_])) != 0) ++at_;
    return at_ < text_.size() ? text_[at_] : '\0';
  }

  bool accept(char c) {
    if (peek() != c) return false;
    ++at_;
    return true;
  }

  std::optional<std::size_t> count() {
    peek();
    std::size_t value = 0;
    const char* begin = text_.data() + at_;
    const auto [end, error] = std::from_chars(begin, text_.data() + text_.size(), value);
    if (error != std::errc{}) return std::nullopt;
    at_ += static_cast<std::size_t>(end - begin);
    return value;
  }

  std::optional<std::vector<bool>> sum() {
    std::optional<std::vector<bool>> all = product();
    while (all && accept('+')) {
      const std::optional<std::vector<bool>> more = product();
      if (!more || all->size() + more->size() > kLongest) return std::nullopt;
      all->insert(all->end(), more->begin(), more->end());
    }
    return all;
  }

  std::optional<std::vector<bool>> product() {
    std::optional<std::vector<bool>> part = atom();
    while (part && accept('*')) {
      const std::optional<std::size_t> times = count();
      if (!times || *times > kLongest || part->size() * *times > kLongest) return std::nullopt;
      std::vector<bool> repeated;
      for (std::size_t i = 0; i < *times; ++i) {
        repeated.insert(repeated.end(), part->begin(), part->end());
      }
      part = std::move(repeated);
    }
    return part;
  }

  std::optional<std::vector<bool>> atom() {
    if (accept('(')) {
      if (++depth_ > kDeepest) return std::nullopt;
      std::optional<std::vector<bool>> inner = sum();
      --depth_;
      return accept(')') ? inner : std::nullopt;
    }
    if (!accept('[')) return std::nullopt;
    std::vector<bool> items;
    while (!accept(']')) {
      if (!items.empty() && !accept(',')) return std::nullopt;
      const std::optional<std::size_t> item = count();
      if (!item || *item > 1) return std::nullopt;
      items.push_back(*item == 1);
    }
    return items;
  }

  std::string_view text_;
  std::size_t at_ = 0;
  int depth_ = 0;
};

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
  a.qk_layernorm = in.boolean("qk_layernorm");
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
  if (!in.boolean("moe_grouped_gemm")) {
    in.refuse("moe_grouped_gemm", "False", "True (experts one by one are not modelled)");
  }
  in.choice<bool>("moe_token_dispatcher_type", {{"alltoall", true}}, "allgather");
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
  m.activation = in.boolean("swiglu") ? Activation::kSwiglu : Activation::kGelu;
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
  if (!in.boolean("use_precision_aware_optimizer")) return o;
  if (!o.distributed) {
    in.refuse("use_precision_aware_optimizer", "True", "use_distributed_optimizer beside it");
  }
  o.exp_avg_bytes = in.choice("exp_avg_dtype", kBytes, "fp32");
  o.exp_avg_sq_bytes = in.choice("exp_avg_sq_dtype", kBytes, "fp32");
  o.main_param_bytes = in.choice("main_params_dtype", kBytes, "fp32");
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
                                   {"fused", AttentionBackend::kFused}},
                                  "auto");
  o.cp_comm = read_context_comm(in, job.layout.context);
  const bool rotary = job.model.position_embedding == PositionEmbedding::kRope ||
                      job.model.position_embedding == PositionEmbedding::kYarn;
  o.apply_rope_fusion = rotary && in.boolean("apply_rope_fusion", true);
  o.create_attention_mask_in_dataloader = in.boolean("create_attention_mask_in_dataloader", true);
  o.hidden_dropout = in.number_or("hidden_dropout", 0.1);
  if (!job.model.moe) return o;

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

}  // namespace

std::optional<std::vector<bool>> moe_layer_pattern(std::string_view frequency,
                                                   std::int64_t num_layers) {
  std::vector<bool> layers(static_cast<std::size_t>(std::max<std::int64_t>(0, num_layers)));
  if (const auto every = parse_number<std::size_t>(frequency)) {
    if (*every == 0) return std::nullopt;
    for (std::size_t i = 0; i < layers.size(); i += *every) layers[i] = true;
    return layers;
  }
  std::optional<std::vector<bool>> pattern = PatternParser(frequency).parse();
  if (!pattern || pattern->size() != layers.size()) return std::nullopt;
  return pattern;
}

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
  job.options = read_options(in, job);
  if (!in.boolean("bf16")) in.refuse("bf16", "False", "True (other precisions are not modelled)");
  refuse_not_modelled(in, job);
  throw_if_any(in.violations());

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
