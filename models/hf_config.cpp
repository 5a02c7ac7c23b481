#include "models/hf_config.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <iterator>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include <nlohmann/json.hpp>

#include "models/input_error.h"
#include "models/json_fields.h"

namespace tidemark {
namespace {

using nlohmann::json;

json without_nulls(const json& config) {
  json out = config;
  for (auto it = out.begin(); out.is_object() && it != out.end();) {
    it = it->is_null() ? out.erase(it) : std::next(it);
  }
  return out;
}

// One config.json while it is read.
struct Reading {
  const json& config;  // as it is
  JsonReader& in;      // without the keys that are null
  ModelSpec& model;
  std::vector<std::string>& warnings;

  bool is_null(const char* key) const { return config.contains(key) && config.at(key).is_null(); }

  // A size that may be null, "none", but not missing: Transformers' default is not none.
  std::int64_t size_or_none(const char* key) const {
    return is_null(key) ? 0 : in.integer(key, kSize);
  }

  void refuse_switch(const char* key, const std::string& why) const {
    if (in.optional_boolean(key).value_or(false)) in.violate(key, "true", "false (" + why + ")");
  }

  void warn(const std::string& key, const std::string& found, const std::string& what) const {
    warnings.push_back(key + " " + found + ": " + what);
  }
};

// --- attention ----------------------------------------------------------------------------------

// Megatron's add_bias_linear gives biases to all four projections and to the MLP.
void refuse_biases(Reading& r) {
  r.refuse_switch("attention_bias", "a bias of the output projection is not modelled on its own");
  r.refuse_switch("mlp_bias", "biases of the MLP are not modelled on their own");
}

// Attention within a window of tokens. Sequences no longer than the window do not notice it.
void refuse_window(Reading& r, std::optional<std::int64_t> window) {
  const std::int64_t longest = r.model.max_position_embeddings;
  if (!window || (longest > 0 && *window >= longest)) return;
  r.in.violate("sliding_window", std::to_string(*window),
               "null (attention within a window is not modelled; sequences that are not longer "
               "need none)");
}

void read_heads(Reading& r) {
  AttentionSpec& a = r.model.attention;
  a.num_heads = r.in.integer("num_attention_heads", kPositive);
  a.num_query_groups = r.in.integer("num_key_value_heads", kPositive);
}

void read_head_dim(Reading& r) { r.model.attention.head_dim = r.in.integer("head_dim", kPositive); }

// Families whose heads share the hidden size evenly unless told otherwise.
void read_optional_head_dim(Reading& r) {
  std::int64_t& head_dim = r.model.attention.head_dim;
  const std::int64_t heads = std::max<std::int64_t>(1, r.model.attention.num_heads);
  if (const auto given = r.in.optional_integer("head_dim", kPositive)) {
    head_dim = *given;
  } else if (r.model.hidden_size % heads == 0) {
    head_dim = r.model.hidden_size / heads;
  } else {
    r.in.violate("head_dim", "missing",
                 "an integer, as hidden_size is no multiple of num_attention_heads");
  }
}

void llama_attention(Reading& r) {
  AttentionSpec& a = r.model.attention;
  a.num_heads = r.in.integer("num_attention_heads", kPositive);
  a.num_query_groups = a.num_heads;
  read_size(r.in, "num_key_value_heads", kPositive, a.num_query_groups);
  read_optional_head_dim(r);
  const auto on = [&](const char* key) { return r.in.has(key) && r.in.raw(key) == true; };
  if (on("attention_bias") && on("mlp_bias")) {
    r.model.add_bias_linear = true;
    a.add_qkv_bias = true;
  } else {
    refuse_biases(r);
  }
}

void mistral_attention(Reading& r) {
  constexpr std::int64_t kDefaultWindow = 4096;  // configuration_mistral.py
  read_heads(r);
  read_optional_head_dim(r);
  refuse_biases(r);
  std::optional<std::int64_t> window = r.in.optional_integer("sliding_window", kPositive);
  if (!r.config.contains("sliding_window")) window = kDefaultWindow;
  refuse_window(r, window);
}

void mixtral_attention(Reading& r) {
  read_heads(r);
  read_optional_head_dim(r);
  refuse_biases(r);
  refuse_window(r, r.in.optional_integer("sliding_window", kPositive));
}

void qwen2_attention(Reading& r) {
  read_heads(r);
  read_optional_head_dim(r);
  r.model.attention.add_qkv_bias = r.in.optional_boolean("qkv_bias").value_or(true);
  refuse_biases(r);
  r.refuse_switch("use_sliding_window", "attention within a window is not modelled");
}

void qwen3_attention(Reading& r) {
  read_heads(r);
  read_head_dim(r);
  r.model.attention.qk_layernorm = true;
  refuse_biases(r);
  r.refuse_switch("use_sliding_window", "attention within a window is not modelled");
}

void glm4_attention(Reading& r) {
  read_heads(r);
  read_head_dim(r);
  // Here the output projection never has a bias.
  read_switch(r.in, "attention_bias", r.model.attention.add_qkv_bias);
  read_switch(r.in, "use_qk_norm", r.model.attention.qk_layernorm);
}

// num_key_value_heads and head_dim mean nothing here.
void latent_attention(Reading& r) {
  AttentionSpec& a = r.model.attention;
  a.kind = AttentionKind::kMultiLatent;
  a.num_heads = r.in.integer("num_attention_heads", kPositive);
  a.num_query_groups = a.num_heads;
  a.q_lora_rank = r.size_or_none("q_lora_rank");
  a.kv_lora_rank = r.in.integer("kv_lora_rank", kPositive);
  a.qk_head_dim = r.in.integer("qk_nope_head_dim", kPositive);
  a.qk_pos_emb_head_dim = r.in.integer("qk_rope_head_dim", kPositive);
  a.v_head_dim = r.in.integer("v_head_dim", kPositive);
  a.qk_layernorm = true;
  refuse_biases(r);
}

// --- experts ------------------------------------------------------------------------------------

template <class Predicate>
void mark_moe_layers(ModelSpec& model, Predicate is_moe) {
  for (std::int64_t layer = 0; layer < model.num_layers; ++layer) {
    model.moe_layer[static_cast<std::size_t>(layer)] = is_moe(layer);
  }
}

void no_experts(Reading&) {}

MoeSpec& read_experts(Reading& r, const char* count, const char* ffn_size) {
  MoeSpec& moe = r.model.moe.emplace();
  moe.num_experts = r.in.integer(count, kPositive);
  moe.topk = r.in.integer("num_experts_per_tok", kPositive);
  moe.ffn_hidden_size = r.in.integer(ffn_size, kPositive);
  return moe;
}

void mixtral_experts(Reading& r) {
  read_experts(r, "num_local_experts", "intermediate_size");
  mark_moe_layers(r.model, [](std::int64_t) { return true; });
}

// Experts in every decoder_sparse_step-th layer, counted from 1, but for mlp_only_layers.
void qwen_experts(Reading& r) {
  // Transformers 5 writes num_local_experts.
  read_experts(r, r.in.has("num_local_experts") ? "num_local_experts" : "num_experts",
               "moe_intermediate_size");
  const std::int64_t step = r.in.optional_integer("decoder_sparse_step", kDegree).value_or(1);
  const json& list = r.in.raw("mlp_only_layers");
  std::set<std::int64_t> dense_layers;
  const auto is_layer = [&](const json& item) {
    return item.is_number_integer() && item >= 0 && item < r.model.num_layers;
  };
  if (list.is_array() && std::all_of(list.begin(), list.end(), is_layer)) {
    for (const json& item : list) dense_layers.insert(item.get<std::int64_t>());
  } else if (!list.is_null()) {
    r.in.violate("mlp_only_layers", list.dump().substr(0, 60),
                 "an array of layers from 0 to " + std::to_string(r.model.num_layers - 1));
  }
  mark_moe_layers(r.model, [&](std::int64_t layer) {
    return !dense_layers.contains(layer) && (layer + 1) % step == 0;
  });
}

void qwen2_experts(Reading& r) {
  qwen_experts(r);
  r.model.moe->shared_ffn_hidden_size = r.in.integer("shared_expert_intermediate_size", kPositive);
  r.model.moe->shared_expert_gate = true;
}

// Experts from layer first_k_dense_replace on, in every moe_layer_freq-th layer, counted from 0.
void deepseek_experts(Reading& r) {
  MoeSpec& moe = read_experts(r, "n_routed_experts", "moe_intermediate_size");
  moe.shared_ffn_hidden_size = r.size_or_none("n_shared_experts") * moe.ffn_hidden_size;
  const std::int64_t first = r.in.integer("first_k_dense_replace", kSize);
  const std::int64_t step = r.in.optional_integer("moe_layer_freq", kDegree).value_or(1);
  mark_moe_layers(r.model, [&](std::int64_t layer) { return layer >= first && layer % step == 0; });
}

// --- families -----------------------------------------------------------------------------------

struct Family {
  std::string_view model_type;
  std::string_view architecture;
  void (*read_attention)(Reading&);
  void (*read_experts)(Reading&);
};

constexpr std::array<Family, 11> kFamilies = {{
    {"llama", "LlamaForCausalLM", llama_attention, no_experts},
    {"mistral", "MistralForCausalLM", mistral_attention, no_experts},
    {"mixtral", "MixtralForCausalLM", mixtral_attention, mixtral_experts},
    {"qwen2", "Qwen2ForCausalLM", qwen2_attention, no_experts},
    {"qwen2_moe", "Qwen2MoeForCausalLM", qwen2_attention, qwen2_experts},
    {"qwen3", "Qwen3ForCausalLM", qwen3_attention, no_experts},
    {"qwen3_moe", "Qwen3MoeForCausalLM", qwen3_attention, qwen_experts},
    {"deepseek_v2", "DeepseekV2ForCausalLM", latent_attention, deepseek_experts},
    {"deepseek_v3", "DeepseekV3ForCausalLM", latent_attention, deepseek_experts},
    {"kimi_k2", "DeepseekV3ForCausalLM", latent_attention, deepseek_experts},
    {"glm4_moe", "Glm4MoeForCausalLM", glm4_attention, deepseek_experts},
}};

const Family* find_family(JsonReader& in) {
  std::string allowed = "one of";
  for (const Family& family : kFamilies) allowed += " \"" + std::string(family.model_type) + "\"";
  const std::string type = in.string("model_type");
  for (const Family& family : kFamilies) {
    if (family.model_type == type) return &family;
  }
  if (type == "gpt_oss") {
    allowed +=
        " (of gpt_oss, attention sinks, windows in every other layer, the clamped SwiGLU and the "
        "biases of experts are not modelled)";
  }
  if (in.has("model_type")) in.violate("model_type", "\"" + type + "\"", allowed);
  return nullptr;
}

// --- what all families share --------------------------------------------------------------------

// A sequence classifier or a draft model has the same model_type and other weights.
void check_architecture(Reading& r, std::string_view expected) {
  const json& found = r.in.raw("architectures");
  const json allowed = json::array({expected});
  if (!found.is_null() && found != allowed) {
    r.in.violate("architectures", found.dump().substr(0, 60), allowed.dump());
  }
}

// Only YaRN has a module of its own; the other types change the frequencies.
void read_rope(Reading& r) {
  static const std::set<std::string> kTypes = {"default", "linear", "dynamic", "llama3", "yarn"};
  // Transformers 5 writes rope_parameters.
  const char* key = r.in.has("rope_parameters") ? "rope_parameters" : "rope_scaling";
  const json& rope = r.in.raw(key);
  if (rope.is_object()) {
    const char* type_key = rope.contains("rope_type") ? "rope_type" : "type";
    const json type = rope.value(type_key, json());
    if (!type.is_string() || !kTypes.contains(type.get<std::string>())) {
      std::string allowed = "one of";
      for (const std::string& name : kTypes) allowed += " \"" + name + "\"";
      r.in.violate(std::string(key) + "/" + type_key, type.is_null() ? "missing" : type.dump(),
                   allowed);
    } else if (type == "yarn") {
      r.model.position_embedding = PositionEmbedding::kYarn;
    }
  } else if (!rope.is_null()) {
    r.in.violate(key, rope.dump().substr(0, 60), "an object or null");
  }
  const json in_rope = rope.is_object() ? rope.value("partial_rotary_factor", json()) : json();
  const double rotated = r.in.optional_number("partial_rotary_factor", {0, 1})
                             .value_or(in_rope.is_number() ? in_rope.get<double>() : 1);
  if (rotated < 1) {
    r.warn("partial_rotary_factor", json(rotated).dump(), "RoPE is simulated on whole heads");
  }
}

void check_layer_types(Reading& r) {
  const json& types = r.in.raw("layer_types");
  for (std::size_t i = 0; types.is_array() && i < types.size(); ++i) {
    if (types[i] == "full_attention") continue;
    r.in.violate("layer_types/" + std::to_string(i), types[i].dump(),
                 "\"full_attention\" in every layer (other kinds are not modelled)");
    return;
  }
}

void read_rest(Reading& r) {
  if (r.in.has("hidden_act")) r.in.choice("hidden_act", {"silu"});
  read_rope(r);
  check_layer_types(r);
  r.model.untie_embeddings_and_output_weights =
      !r.in.optional_boolean("tie_word_embeddings").value_or(false);
  const std::int64_t mtp = r.in.optional_integer("num_nextn_predict_layers", kSize).value_or(0);
  if (mtp > 0) {
    r.warn("num_nextn_predict_layers", std::to_string(mtp),
           "the layers of multi-token prediction are left out");
  }
  if (r.in.has("quantization_config")) {
    const json& quantization = r.in.raw("quantization_config");
    const json method =
        quantization.is_object() ? quantization.value("quant_method", json()) : json();
    r.warn("quantization_config", method.dump(),
           "the format of the checkpoint's weights; training is simulated in bf16");
  }
}

// `validate` speaks of Megatron's arguments.
std::string hf_key(const std::string& argument) {
  if (argument == "num_query_groups") return "num_key_value_heads";
  if (argument == "moe_router_topk") return "num_experts_per_tok";
  return argument;
}

}  // namespace

bool is_hf_config(const json& file) {
  return file.is_object() && (file.contains("model_type") || file.contains("architectures"));
}

HfConfig model_from_hf_config(const json& config, const std::string& file) {
  std::vector<Violation> violations;
  HfConfig out;
  ModelSpec& m = out.model;
  const json given = without_nulls(config);
  JsonReader in(given, file, "", violations);
  const Family* family = find_family(in);
  if (family == nullptr) throw InputError(violations);

  Reading r{config, in, m, out.warnings};
  check_architecture(r, family->architecture);
  m.num_layers = in.integer("num_hidden_layers", kDegree);
  m.hidden_size = in.integer("hidden_size", kPositive);
  m.ffn_hidden_size = in.integer("intermediate_size", kPositive);
  m.vocab_size = in.integer("vocab_size", kPositive);
  m.make_vocab_size_divisible_by = 1;
  m.moe_layer.assign(static_cast<std::size_t>(m.num_layers), false);
  read_size(in, "max_position_embeddings", kPositive, m.max_position_embeddings);
  family->read_attention(r);
  family->read_experts(r);
  read_rest(r);
  throw_if_any(violations);

  violations = validate(m, file, "");
  for (Violation& v : violations) v.place = "/" + hf_key(v.place);
  throw_if_any(violations);
  return out;
}

}  // namespace tidemark
