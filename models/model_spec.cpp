#include "models/model_spec.h"

#include <algorithm>

#include "models/units.h"

namespace tidemark {

std::int64_t AttentionSpec::query_dim() const {
  return kind == AttentionKind::kMultiLatent ? qk_head_dim + qk_pos_emb_head_dim : head_dim;
}

std::int64_t AttentionSpec::value_dim() const {
  return kind == AttentionKind::kMultiLatent ? v_head_dim : head_dim;
}

std::int64_t ModelSpec::num_moe_layers() const {
  std::int64_t count = 0;
  for (std::int64_t layer = 0; layer < total_layers(); ++layer) count += is_moe(layer) ? 1 : 0;
  return count;
}

std::int64_t ModelSpec::rotary_dim() const {
  return static_cast<std::int64_t>(static_cast<double>(attention.head_dim) * rotary_percent);
}

std::int64_t ModelSpec::padded_vocab_size(std::int64_t tensor_parallel) const {
  return round_up(vocab_size, make_vocab_size_divisible_by * tensor_parallel);
}

std::vector<Violation> validate(const ModelSpec& model, const std::string& file,
                                const std::string& pointer) {
  std::vector<Violation> out;
  const auto require = [&](bool ok, const std::string& key, std::int64_t found,
                           const std::string& allowed) {
    if (!ok) out.push_back({file, pointer + key, std::to_string(found), allowed});
  };
  const AttentionSpec& a = model.attention;
  require(model.num_layers > 0, "num_layers", model.num_layers, "an integer >= 1");
  require(model.hidden_size > 0, "hidden_size", model.hidden_size, "an integer >= 1");
  require(model.vocab_size > 0, "vocab_size", model.vocab_size, "an integer >= 1");
  require(model.make_vocab_size_divisible_by > 0, "make_vocab_size_divisible_by",
          model.make_vocab_size_divisible_by, "an integer >= 1");
  require(a.num_heads > 0, "num_attention_heads", a.num_heads, "an integer >= 1");
  if (a.kind == AttentionKind::kMultiLatent) {
    require(a.kv_lora_rank > 0, "kv_lora_rank", a.kv_lora_rank, "an integer >= 1");
    require(a.qk_head_dim > 0, "qk_head_dim", a.qk_head_dim, "an integer >= 1");
    require(a.v_head_dim > 0, "v_head_dim", a.v_head_dim, "an integer >= 1");
  } else {
    require(a.head_dim > 0, "kv_channels", a.head_dim, "an integer >= 1");
    require(
        a.num_query_groups > 0 && a.num_heads % std::max<std::int64_t>(1, a.num_query_groups) == 0,
        "num_query_groups", a.num_query_groups,
        "a divisor of the " + std::to_string(a.num_heads) + " attention heads");
  }
  require(model.mtp_num_layers >= 0, "mtp_num_layers", model.mtp_num_layers, "an integer >= 0");
  require(std::ssize(model.moe_layer) == model.num_layers, "moe_layer_freq",
          std::ssize(model.moe_layer), "a pattern of num_layers entries");
  if (model.num_layers < 1 || std::ssize(model.moe_layer) != model.num_layers) return out;
  const bool any_moe = model.num_moe_layers() > 0;
  const bool any_dense = model.has_dense_layers();
  require(!any_dense || model.ffn_hidden_size > 0, "ffn_hidden_size", model.ffn_hidden_size,
          "an integer >= 1");
  if (any_moe && !model.moe) {
    out.push_back({file, pointer + "num_experts", "missing", "an integer >= 1 for MoE layers"});
  }
  if (any_moe && model.moe) {
    const MoeSpec& moe = *model.moe;
    require(moe.num_experts > 0, "num_experts", moe.num_experts, "an integer >= 1");
    require(moe.topk > 0 && moe.topk <= moe.num_experts, "moe_router_topk", moe.topk,
            "from 1 to the number of experts");
    require(moe.ffn_hidden_size > 0, "moe_ffn_hidden_size", moe.ffn_hidden_size, "an integer >= 1");
  }
  return out;
}

}  // namespace tidemark
