#include "models/parameters.h"

namespace tidemark {
namespace {

class WeightList {
 public:
  explicit WeightList(const Job& job) : job_(job) {}

  void add(const std::string& name, WeightKind kind, std::int64_t rows, std::int64_t cols = 1) {
    weights.push_back({name, kind, rows, cols, layer, expert});
  }
  void norm(const std::string& name, std::int64_t width) {
    const bool shift = job_.model.normalization == Normalization::kLayerNorm;
    add(name + ".weight", WeightKind::kNorm, width);
    if (shift) add(name + ".bias", WeightKind::kNorm, width);
  }
  // `bias_rows`: a row-parallel linear's bias is replicated, a column-parallel one's is split.
  void linear(const std::string& name, std::int64_t rows, std::int64_t cols, bool bias,
              std::int64_t bias_rows) {
    add(name + ".weight", WeightKind::kLinear, rows, cols);
    if (bias) add(name + ".bias", WeightKind::kBias, bias_rows);
  }

  std::vector<Weight> weights;
  std::int64_t layer = -1;
  bool expert = false;

 private:
  const Job& job_;
};

void add_attention(const Job& job, WeightList& list) {
  const ModelSpec& m = job.model;
  const AttentionSpec& a = m.attention;
  const std::int64_t t = job.layout.tensor;
  const std::int64_t h = m.hidden_size;
  const bool bias = m.add_bias_linear;
  if (a.kind == AttentionKind::kGrouped) {
    const std::int64_t q = a.num_heads * a.head_dim / t;
    const std::int64_t kv = a.num_query_groups * a.head_dim / t;
    list.linear("self_attention.linear_proj", h, q, bias, h);
    list.norm("self_attention.linear_qkv.layer_norm", h);
    list.linear("self_attention.linear_qkv", q + 2 * kv, h, bias || a.add_qkv_bias, q + 2 * kv);
    if (a.qk_layernorm) {
      list.norm("self_attention.q_layernorm", a.head_dim);
      list.norm("self_attention.k_layernorm", a.head_dim);
    }
    return;
  }
  const std::int64_t down_split = mla_down_projection_is_split(job.versions) ? t : 1;
  const std::int64_t query = a.num_heads * a.query_dim() / t;
  const std::int64_t key_value = a.num_heads * (a.qk_head_dim + a.v_head_dim) / t;
  list.norm("input_layernorm", h);
  list.linear("self_attention.linear_proj", h, a.num_heads * a.v_head_dim / t, bias, h);
  if (a.q_lora_rank > 0) {
    list.linear("self_attention.linear_q_down_proj", a.q_lora_rank / down_split, h, false, 0);
    if (a.qk_layernorm) list.norm("self_attention.linear_q_up_proj.layer_norm", a.q_lora_rank);
    list.linear("self_attention.linear_q_up_proj", query, a.q_lora_rank, false, 0);
  } else {
    list.linear("self_attention.linear_q_proj", query, h, false, 0);
  }
  list.linear("self_attention.linear_kv_down_proj",
              (a.kv_lora_rank + a.qk_pos_emb_head_dim) / down_split, h, false, 0);
  if (a.qk_layernorm) list.norm("self_attention.linear_kv_up_proj.layer_norm", a.kv_lora_rank);
  list.linear("self_attention.linear_kv_up_proj", key_value, a.kv_lora_rank, false, 0);
}

void add_dense_mlp(const Job& job, WeightList& list) {
  const ModelSpec& m = job.model;
  const std::int64_t f = m.ffn_hidden_size / job.layout.tensor;
  const std::int64_t fc1 = m.gated() ? 2 * f : f;
  list.norm("mlp.linear_fc1.layer_norm", m.hidden_size);
  list.linear("mlp.linear_fc1", fc1, m.hidden_size, m.add_bias_linear, fc1);
  list.linear("mlp.linear_fc2", m.hidden_size, f, m.add_bias_linear, m.hidden_size);
}

void add_moe(const Job& job, WeightList& list) {
  const ModelSpec& m = job.model;
  const MoeSpec& moe = *m.moe;
  const std::int64_t h = m.hidden_size;
  list.norm("pre_mlp_layernorm", h);
  list.add("mlp.router.weight", WeightKind::kRouter, moe.num_experts, h);
  const std::int64_t f = moe.ffn_hidden_size / job.layout.expert_tensor;
  const std::int64_t local = moe.num_experts / job.layout.expert;
  list.expert = job.layout.expert > 1;
  for (std::int64_t e = 0; e < local; ++e) {
    list.add("mlp.experts.linear_fc1.weight" + std::to_string(e), WeightKind::kGroupedLinear,
             m.gated() ? 2 * f : f, h);
  }
  for (std::int64_t e = 0; e < local; ++e) {
    list.add("mlp.experts.linear_fc2.weight" + std::to_string(e), WeightKind::kGroupedLinear, h, f);
  }
  list.expert = false;
  if (moe.shared_ffn_hidden_size > 0) {
    const std::int64_t shared = moe.shared_ffn_hidden_size / job.layout.tensor;
    if (moe.shared_expert_gate) {
      list.add("mlp.shared_experts.gate_weight", WeightKind::kRouter, 1, h);
    }
    list.linear("mlp.shared_experts.linear_fc1", m.gated() ? 2 * shared : shared, h, false, 0);
    list.linear("mlp.shared_experts.linear_fc2", h, shared, false, 0);
  }
}

}  // namespace

bool mla_down_projection_is_split(const FrameworkVersions& versions) {
  return versions.megatron_core < Version{0, 14};
}

std::vector<Weight> chunk_weights(const Job& job, std::int64_t virtual_stage) {
  const ModelSpec& m = job.model;
  const bool first = virtual_stage == 0;
  const bool last = virtual_stage == job.layout.virtual_stages() - 1;
  const std::int64_t vocabulary = m.padded_vocab_size(job.layout.tensor) / job.layout.tensor;
  WeightList list(job);
  if (first) {
    list.add("embedding.word_embeddings.weight", WeightKind::kWordEmbedding, vocabulary,
             m.hidden_size);
    if (m.position_embedding == PositionEmbedding::kLearned) {
      list.add("embedding.position_embeddings.weight", WeightKind::kPositionEmbedding,
               m.max_position_embeddings, m.hidden_size);
    }
  }
  const auto add_layer = [&](std::int64_t layer) {
    list.layer = layer;
    add_attention(job, list);
    if (m.is_moe(layer)) {
      add_moe(job, list);
    } else {
      add_dense_mlp(job, list);
    }
  };
  const auto range = job.layout.chunk_layers(virtual_stage, m.num_layers);
  for (std::int64_t layer = range.begin; layer < range.end; ++layer) add_layer(layer);
  list.layer = -1;
  if (last) {
    list.norm("decoder.final_layernorm", m.hidden_size);
    for (std::int64_t layer = m.num_layers; layer < m.total_layers(); ++layer) {
      list.layer = layer;
      list.norm("mtp.enorm", m.hidden_size);
      list.norm("mtp.hnorm", m.hidden_size);
      list.linear("mtp.eh_proj", m.hidden_size / job.layout.tensor, 2 * m.hidden_size, false, 0);
      add_layer(layer);
      list.norm("mtp.final_layernorm", m.hidden_size);
    }
    list.layer = -1;
    // The next tokens are embedded here too.
    if (m.mtp_num_layers > 0 && !first) {
      list.add("mtp.embedding.word_embeddings.weight", WeightKind::kWordEmbedding, vocabulary,
               m.hidden_size);
    }
    // Tied weights share the embedding where both are on one stage; otherwise the last stage has a
    // copy.
    if (m.untie_embeddings_and_output_weights || job.layout.pipeline > 1) {
      list.add("output_layer.weight", WeightKind::kOutput, vocabulary, m.hidden_size);
    }
  }
  return list.weights;
}

std::vector<Weight> stage_weights(const Job& job, std::int64_t stage) {
  std::vector<Weight> weights;
  for (std::int64_t chunk = 0; chunk < job.layout.virtual_pipeline; ++chunk) {
    for (Weight& w : chunk_weights(job, job.layout.virtual_stage(stage, chunk))) {
      weights.push_back(std::move(w));
    }
  }
  return weights;
}

ParameterCount count_parameters(const std::vector<Weight>& weights) {
  ParameterCount count;
  for (const Weight& w : weights) (w.expert ? count.expert : count.dense) += w.count();
  return count;
}

ModelParameters model_parameters(const ModelSpec& model) {
  Job job;
  job.model = model;
  job.layout.cards = 1;
  ModelParameters parameters;
  std::int64_t experts = 0;
  for (const Weight& w : stage_weights(job, 0)) {
    parameters.total += w.count();
    if (w.kind == WeightKind::kGroupedLinear) experts += w.count();
  }
  parameters.activated = parameters.total;
  if (model.moe) {
    const std::int64_t idle = model.moe->num_experts - model.moe->topk;
    parameters.activated -= experts / model.moe->num_experts * idle;
  }
  return parameters;
}

}  // namespace tidemark
