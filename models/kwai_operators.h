// Decoder layers of Kuaishou's fork of Megatron-LM (Megatron-Kwai, tag atc24ae), older than
// Megatron core's. What differs from layer_operators.h:
//
// - Linears gather their input, and the gradient of their output, into buffers that are kept for
//   ever, so no storage of a microbatch holds them.
// - Only the shared table of RoPE is saved, by none of the layers.
// - Context parallelism: V, K and Q are three products. K and V are gathered over the ranks, and a
//   clone of the rank's own shard is what the layer keeps; the backward gathers again. Each rank
//   has two pieces of the sequence, one call of the attention kernel each.
// - Without it: one product of which Q, K and V are views; the layer keeps Q and K after RoPE and a
//   copy of V.
// - SwiGLU is eager: silu and the product save views of fc1's output, and silu's output.
// - --kaimm-recompute-norm runs the norms inside the linears and once more in their backwards,
//   --kaimm-recompute-mlp-activation-func SwiGLU inside the second linear.
//
// Source: Megatron-Kwai megatron/model/transformer.py, core/tensor_parallel/layers.py,
// core/context_parallel/dattention.py.
#pragma once

#include "models/operator_graph.h"

namespace tidemark {

// Attention, then MLP, each with its norm and residual sum. [sharded tokens, hidden] in bf16.
StorageId kwai_layer(GraphBuilder& g, StorageId input);

}  // namespace tidemark
