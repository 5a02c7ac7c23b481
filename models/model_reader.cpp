#include "models/model_reader.h"

#include <cstddef>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "models/json_fields.h"
#include "models/layer_pattern.h"

namespace tidemark {
namespace {

const Names<Normalization> kNormalizations = {{Normalization::kRmsNorm, "RMSNorm"},
                                              {Normalization::kLayerNorm, "LayerNorm"}};
const Names<PositionEmbedding> kPositions = {{PositionEmbedding::kRope, "rope"},
                                             {PositionEmbedding::kYarn, "yarn"},
                                             {PositionEmbedding::kLearned, "learned_absolute"},
                                             {PositionEmbedding::kNone, "none"}};

// An integer, a list expression, or an array of 0 and 1. Returns: the text that Megatron would
// take.
std::string layer_frequency(const nlohmann::json& node) {
  if (node.is_null()) return "1";
  if (node.is_string()) return node.get<std::string>();
  if (node.is_number_integer()) return node.dump();
  if (!node.is_array()) return "?";
  std::string text = "[";
  for (const nlohmann::json& item : node) {
    text += (text.size() > 1 ? "," : "") + (item.is_number_integer() ? item.dump() : "?");
  }
  return text + "]";
}

void read_layer_pattern(JsonReader& in, ModelSpec& model) {
  const std::string text = layer_frequency(in.raw("moe_layer_freq"));
  if (const auto pattern = moe_layer_pattern(text, model.num_layers)) {
    model.moe_layer = *pattern;
  } else {
    in.violate("moe_layer_freq", text.substr(0, 60),
               "an integer >= 1, or " + std::to_string(model.num_layers) +
                   " times 0 or 1, as an array or as \"[0]*3+[1]*58\"");
  }
}

// Runs of equal entries: "[0]*3+[1]*58".
std::string compact_pattern(const std::vector<bool>& layers) {
  std::string out;
  for (std::size_t begin = 0; begin < layers.size();) {
    std::size_t end = begin;
    while (end < layers.size() && layers[end] == layers[begin]) ++end;
    out += (out.empty() ? "[" : "+[") + std::string(layers[begin] ? "1" : "0") + "]*" +
           std::to_string(end - begin);
    begin = end;
  }
  return out;
}

}  // namespace

void read_model(JsonReader& in, ModelSpec& m) {
  m.name = in.optional_string("name").value_or("");
  m.num_layers = in.integer("num_layers", kDegree);
  m.hidden_size = in.integer("hidden_size", kPositive);
  AttentionSpec& a = m.attention;
  a.num_heads = in.integer("num_attention_heads", kPositive);
  a.num_query_groups = a.num_heads;
  bool latent = false;
  read_switch(in, "multi_latent_attention", latent);
  if (latent) {
    a.kind = AttentionKind::kMultiLatent;
    read_size(in, "q_lora_rank", kSize, a.q_lora_rank);
    a.kv_lora_rank = in.integer("kv_lora_rank", kPositive);
    a.qk_head_dim = in.integer("qk_head_dim", kPositive);
    a.qk_pos_emb_head_dim = in.integer("qk_pos_emb_head_dim", kSize);
    a.v_head_dim = in.integer("v_head_dim", kPositive);
  } else {
    read_size(in, "num_query_groups", kPositive, a.num_query_groups);
    a.head_dim = in.integer("kv_channels", kPositive);
  }
  read_switch(in, "qk_layernorm", a.qk_layernorm);
  read_switch(in, "add_qkv_bias", a.add_qkv_bias);

  m.moe_layer.assign(static_cast<std::size_t>(m.num_layers), false);
  if (in.has("num_experts") || in.has("moe_router_topk") || in.has("moe_ffn_hidden_size")) {
    MoeSpec& moe = m.moe.emplace();
    moe.num_experts = in.integer("num_experts", kPositive);
    moe.topk = in.integer("moe_router_topk", kPositive);
    moe.ffn_hidden_size = in.integer("moe_ffn_hidden_size", kPositive);
    read_size(in, "moe_shared_expert_intermediate_size", kSize, moe.shared_ffn_hidden_size);
    read_switch(in, "moe_shared_expert_gate", moe.shared_expert_gate);
    read_layer_pattern(in, m);
  } else {
    in.optional_integer("num_experts");  // makes the key known
  }
  read_size(in, "ffn_hidden_size", kSize, m.ffn_hidden_size);
  bool swiglu = true;
  read_switch(in, "swiglu", swiglu);
  bool squared_relu = false;
  read_switch(in, "squared_relu", squared_relu);
  if (squared_relu && swiglu) {
    in.violate("squared_relu", "true", "swiglu false beside it");
  }
  m.activation = swiglu         ? Activation::kSwiglu
                 : squared_relu ? Activation::kSquaredRelu
                                : Activation::kGelu;
  read_choice(in, "normalization", kNormalizations, m.normalization);
  read_choice(in, "position_embedding_type", kPositions, m.position_embedding);
  m.rotary_percent = in.optional_number("rotary_percent", {0, 1}).value_or(m.rotary_percent);
  read_size(in, "mtp_num_layers", {0, 16}, m.mtp_num_layers);
  read_switch(in, "add_bias_linear", m.add_bias_linear);
  read_switch(in, "untie_embeddings_and_output_weights", m.untie_embeddings_and_output_weights);
  read_size(in, "max_position_embeddings", kSize, m.max_position_embeddings);
  m.vocab_size = in.integer("vocab_size", kPositive);
  read_size(in, "make_vocab_size_divisible_by", kPositive, m.make_vocab_size_divisible_by);
}

nlohmann::ordered_json to_json(const ModelSpec& m) {
  nlohmann::ordered_json j;
  if (!m.name.empty()) j["name"] = m.name;
  j["num_layers"] = m.num_layers;
  j["hidden_size"] = m.hidden_size;
  j["ffn_hidden_size"] = m.ffn_hidden_size;
  const AttentionSpec& a = m.attention;
  j["num_attention_heads"] = a.num_heads;
  if (a.kind == AttentionKind::kMultiLatent) {
    j["multi_latent_attention"] = true;
    j["q_lora_rank"] = a.q_lora_rank;
    j["kv_lora_rank"] = a.kv_lora_rank;
    j["qk_head_dim"] = a.qk_head_dim;
    j["qk_pos_emb_head_dim"] = a.qk_pos_emb_head_dim;
    j["v_head_dim"] = a.v_head_dim;
  } else {
    j["num_query_groups"] = a.num_query_groups;
    j["kv_channels"] = a.head_dim;
  }
  j["qk_layernorm"] = a.qk_layernorm;
  j["add_qkv_bias"] = a.add_qkv_bias;
  if (m.moe) {
    j["num_experts"] = m.moe->num_experts;
    j["moe_router_topk"] = m.moe->topk;
    j["moe_ffn_hidden_size"] = m.moe->ffn_hidden_size;
    j["moe_shared_expert_intermediate_size"] = m.moe->shared_ffn_hidden_size;
    j["moe_shared_expert_gate"] = m.moe->shared_expert_gate;
    j["moe_layer_freq"] = compact_pattern(m.moe_layer);
  }
  j["swiglu"] = m.gated();
  j["squared_relu"] = m.activation == Activation::kSquaredRelu;
  j["normalization"] = name_of(kNormalizations, m.normalization);
  j["position_embedding_type"] = name_of(kPositions, m.position_embedding);
  j["rotary_percent"] = m.rotary_percent;
  j["mtp_num_layers"] = m.mtp_num_layers;
  j["add_bias_linear"] = m.add_bias_linear;
  j["untie_embeddings_and_output_weights"] = m.untie_embeddings_and_output_weights;
  j["max_position_embeddings"] = m.max_position_embeddings;
  j["vocab_size"] = m.vocab_size;
  j["make_vocab_size_divisible_by"] = m.make_vocab_size_divisible_by;
  return j;
}

}  // namespace tidemark
