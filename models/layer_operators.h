// The modules of a decoder stage as Megatron-LM composes them. Each takes the storage of its input
// and returns that of its output, [sharded tokens, hidden size] in bf16.
#pragma once

#include <string>

#include "models/operator_graph.h"

namespace tidemark {

// Token (and learned position) embedding; the first stage's input.
StorageId embedding(GraphBuilder& g, const std::string& name = "embedding");

// One decoder layer: attention and MLP with their residual additions.
// Source: core/transformer/transformer_layer.py.
StorageId decoder_layer(GraphBuilder& g, std::int64_t layer, StorageId input);

// One layer of multi-token prediction on the hidden states before it: norms of both inputs, their
// projection, a decoder layer, a norm. Source: core/transformer/multi_token_prediction.py.
StorageId multi_token_prediction(GraphBuilder& g, std::int64_t layer, StorageId hidden);

// Grouped-query or multi-head attention with its fused input norm.
// Source: core/transformer/attention.py; kept bytes: input, norm output, roped q and k, contiguous
// v, attention output, log-sum-exp (and the inputs of the per-head norms).
StorageId grouped_attention(GraphBuilder& g, StorageId input);

// DeepSeek's multi-head latent attention. Source: core/transformer/multi_latent_attention.py.
StorageId multi_latent_attention(GraphBuilder& g, StorageId input);

// Norm, gated or plain MLP. Source: core/transformer/mlp.py, fused_bias_swiglu.py.
StorageId dense_mlp(GraphBuilder& g, StorageId input);

// Norm, router, all-to-all dispatch, grouped experts, combine, shared expert.
// Source: core/transformer/moe/{moe_layer,router,token_dispatcher,experts,shared_experts}.py.
StorageId moe_mlp(GraphBuilder& g, StorageId input);

// Token-expert rows that one card sends in one MoE layer and microbatch: tokens * top-k, or experts
// * capacity where every expert's input is padded to its capacity.
std::int64_t rows_sent(const Job& job);
// Rows that one card's experts compute on under balanced routing; 0 without experts.
std::int64_t balanced_lane_rows(const Job& job);

// Final norm, multi-token prediction if the model has it, output layer and vocabulary-parallel
// cross-entropy of the last stage. Returns: the loss. Source: core/models/gpt/gpt_model.py,
// core/tensor_parallel/{layers,cross_entropy}.py, core/fusions/fused_cross_entropy.py, TE
// cross_entropy.py.
StorageId loss_head(GraphBuilder& g, StorageId input);

// The attention of one microbatch on one card: causal, heads over TP, shared evenly by the
// context-parallel ranks.
AttentionWork attention_work(const Job& job, Direction direction);

// softmax(q k^T) v without materializing the scores; context parallelism around it.
// Returns: the attention output, [rank tokens, heads/TP * v dim].
StorageId core_attention(GraphBuilder& g, StorageId query, StorageId key, StorageId value);

}  // namespace tidemark
