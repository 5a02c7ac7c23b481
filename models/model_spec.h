// What the network is, apart from how it is spread over cards: the decoder-only transformers that
// Megatron-LM's GPTModel builds. Names are Megatron's argument names where it has one.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "models/input_error.h"

namespace tidemark {

enum class AttentionKind {
  kGrouped,      // MHA (groups == heads), GQA, MQA
  kMultiLatent,  // DeepSeek's MLA: low-rank query and key-value
};

struct AttentionSpec {
  AttentionKind kind = AttentionKind::kGrouped;
  std::int64_t num_heads = 0;
  std::int64_t num_query_groups = 0;  // key-value heads; == num_heads for MHA and MLA
  std::int64_t head_dim = 0;          // kv_channels; unused by MLA
  bool qk_layernorm = false;          // GQA: a norm per head; MLA: fused into the up-projections
  bool add_qkv_bias = false;

  // MLA only.
  std::int64_t q_lora_rank = 0;  // 0: the query is projected directly
  std::int64_t kv_lora_rank = 0;
  std::int64_t qk_head_dim = 0;          // part without position
  std::int64_t qk_pos_emb_head_dim = 0;  // part that RoPE rotates
  std::int64_t v_head_dim = 0;

  std::int64_t query_dim() const;  // of one head, as the attention kernel sees it
  std::int64_t value_dim() const;  // of one head
};

struct MoeSpec {
  std::int64_t num_experts = 0;
  std::int64_t topk = 0;
  std::int64_t ffn_hidden_size = 0;         // of one expert
  std::int64_t shared_ffn_hidden_size = 0;  // of all shared experts together; 0: none
  bool shared_expert_gate = false;
};

enum class Activation { kSwiglu, kGelu, kSquaredRelu };
enum class Normalization { kRmsNorm, kLayerNorm };
enum class PositionEmbedding { kRope, kYarn, kLearned, kNone };

struct ModelSpec {
  std::string name;
  std::int64_t num_layers = 0;
  std::int64_t hidden_size = 0;
  std::int64_t ffn_hidden_size = 0;  // of dense layers
  AttentionSpec attention;
  std::optional<MoeSpec> moe;
  std::vector<bool> moe_layer;  // [layer]: true where the MLP is a mixture of experts
  // Multi-token prediction: so many layers more, like the last one, each with a loss of its own.
  std::int64_t mtp_num_layers = 0;
  Activation activation = Activation::kSwiglu;
  Normalization normalization = Normalization::kRmsNorm;
  PositionEmbedding position_embedding = PositionEmbedding::kRope;
  double rotary_percent = 1;  // of a head's dimensions that RoPE rotates
  bool add_bias_linear = false;
  bool untie_embeddings_and_output_weights = true;
  std::int64_t max_position_embeddings = 0;  // rows of a learned position table
  std::int64_t vocab_size = 0;               // the tokenizer's, before padding
  std::int64_t make_vocab_size_divisible_by = 128;

  bool gated() const { return activation == Activation::kSwiglu; }
  // Layers of multi-token prediction follow the decoder's.
  std::int64_t total_layers() const { return num_layers + mtp_num_layers; }
  bool is_moe(std::int64_t layer) const {
    return moe_layer[static_cast<std::size_t>(layer < num_layers ? layer : num_layers - 1)];
  }
  std::int64_t num_moe_layers() const;  // of all
  bool has_dense_layers() const { return num_moe_layers() < total_layers(); }
  // Of a head that RoPE rotates; of grouped attention.
  std::int64_t rotary_dim() const;

  // Megatron's `_vocab_size_with_padding`: the next multiple of make_vocab_size_divisible_by * TP.
  std::int64_t padded_vocab_size(std::int64_t tensor_parallel) const;
};

// Rules within the model itself. Returns: every violation, with `file` and `pointer` as place.
std::vector<Violation> validate(const ModelSpec& model, const std::string& file,
                                const std::string& pointer);

}  // namespace tidemark
