#include "models/flops.h"

namespace tidemark {
namespace {

// Three multiplies with two operations each: forward, gradient of the input, of the weight.
constexpr std::int64_t kPerMultiply = 6;

// Per token and layer: the projections around attention.
Flops attention_linear(const ModelSpec& m) {
  const AttentionSpec& a = m.attention;
  const std::int64_t h = m.hidden_size;
  const std::int64_t heads = a.num_heads;
  if (a.kind == AttentionKind::kGrouped) {
    const std::int64_t q = heads * a.head_dim;
    const std::int64_t kv = a.num_query_groups * a.head_dim;
    return kPerMultiply * Flops(h * (q + 2 * kv) + q * h);
  }
  const std::int64_t query = heads * a.query_dim();
  // The "+ 1" are the norms of the low-rank projections, as Megatron counts them.
  const std::int64_t q_term = a.q_lora_rank > 0 ? a.q_lora_rank * (h + query + 1) : h * query;
  const std::int64_t kv_term = a.kv_lora_rank * (h + heads * (a.qk_head_dim + a.v_head_dim) + 1);
  return kPerMultiply *
         Flops(q_term + kv_term + h * a.qk_pos_emb_head_dim + heads * a.v_head_dim * h);
}

// Per pair of positions and layer; half of the pairs are masked.
Flops attention_core(const AttentionSpec& a) {
  return kPerMultiply * Flops(a.num_heads * (a.query_dim() + a.value_dim()) / 2);
}

}  // namespace

Flops model_flops_per_iteration(const Job& job) {
  const ModelSpec& m = job.model;
  const std::int64_t matrices = m.gated() ? 3 : 2;
  Flops per_token = 0;
  for (std::int64_t layer = 0; layer < m.total_layers(); ++layer) {
    std::int64_t ffn = m.ffn_hidden_size;
    if (m.is_moe(layer)) {
      ffn = m.moe->topk * m.moe->ffn_hidden_size + m.moe->shared_ffn_hidden_size;
    }
    per_token += kPerMultiply * Flops(matrices * m.hidden_size) * ffn + attention_linear(m);
  }
  const Flops h = m.hidden_size;
  // Multi-token prediction: two norms before and one after, as Megatron counts them, the projection
  // of both inputs, and a loss of its own.
  per_token += kPerMultiply * m.mtp_num_layers * (3 * h + 2 * h * h);
  per_token += kPerMultiply * h * m.padded_vocab_size(job.layout.tensor) * (m.mtp_num_layers + 1);
  const Flops sequences = job.batch.global_batch_size;
  const Flops s = job.batch.seq_length;
  return sequences * (s * per_token + s * s * m.total_layers() * attention_core(m.attention));
}

}  // namespace tidemark
