// Building blocks of layers: normalizations and tensor-parallel linears as Transformer Engine runs
// and saves them. Activations are [tokens, features] in bf16; between tensor-parallel regions a
// card holds `sharded` tokens, inside them all `rank` tokens of its context-parallel rank.
#pragma once

#include <cstdint>
#include <string>

#include "models/operator_graph.h"

namespace tidemark {

constexpr std::int64_t kBf16 = 2;
constexpr std::int64_t kFp32 = 4;

// Tokens of a microbatch on one card: [sequence of a context-parallel rank] x [micro batch].
inline std::int64_t rank_tokens(const Job& job) {
  return job.rank_sequence() * job.batch.micro_batch_size;
}

// A normalization over [rows, width]. Saved: its input and 1/std (fp32; LayerNorm also the mean).
StorageId norm(GraphBuilder& g, const std::string& name, StorageId input, std::int64_t rows,
               std::int64_t width);

// A norm over the hidden states that is a module by itself: --recompute-modules layernorm discards
// its output once the branch of the layer that it begins has run.
class RecomputedNorm {
 public:
  RecomputedNorm(GraphBuilder& g, const std::string& name, OffloadModule module, StorageId input);
  StorageId output() const { return output_; }
  // The branch has run.
  void discard();

 private:
  GraphBuilder& g_;
  bool recomputes_;
  GraphBuilder::DiscardedOutput discarded_;
  StorageId output_;
};

// Column-parallel: [sharded, in] -> [rank, out_shard]. The input is gathered for the product, saved
// sharded and gathered again in the backward (TE module/linear.py, layernorm_linear.py); the second
// gather runs beside the input-gradient product, the reduce-scatter of that gradient beside the
// weight-gradient product.
StorageId column_linear(GraphBuilder& g, const std::string& name, StorageId input, std::int64_t in,
                        std::int64_t out_shard);

// Row-parallel: [rank, in_shard] -> [sharded, out]. Saved: the input.
StorageId row_linear(GraphBuilder& g, const std::string& name, StorageId input,
                     std::int64_t in_shard, std::int64_t out);

// A linear with the whole weight on every rank, on `tokens` rows.
StorageId replicated_linear(GraphBuilder& g, const std::string& name, StorageId input,
                            std::int64_t tokens, std::int64_t in, std::int64_t out);

// residual + dropout(branch): the gradient of both is the incoming gradient itself, unless dropout
// is on (then a mask of one byte an element is saved).
StorageId bias_dropout_add(GraphBuilder& g, const std::string& name, StorageId branch,
                           StorageId residual);

// One elementwise kernel forward and one backward: [in bytes] -> [out bytes], `in` saved if asked.
struct Elementwise {
  std::string name;
  Size out_bytes;
  Size forward_traffic;  // bytes read plus written in HBM
  Size backward_traffic;
  bool saves_input = false;
  StorageRole out_role = StorageRole::kActivation;
};
StorageId elementwise(GraphBuilder& g, const Elementwise& op, StorageId input);

// The weight gradient of Transformer Engine's linears that a version returns to autograd although
// the product was accumulated into the fp32 buffer: bf16, dead at once.
bool makes_temporary_weight_gradient(const FrameworkVersions& versions, bool grouped);

// The same of the output layer, which is Megatron's own linear: core 0.14 and later borrow TE's
// get_dummy_wgrad where that exists (core/tensor_parallel/layers.py).
bool makes_temporary_output_gradient(const FrameworkVersions& versions);

// A matrix product of a linear layer; weight gradients go to the job's gradient buffer.
GemmWork gemm(const Job& job, std::int64_t out, std::int64_t tokens, std::int64_t in, Pass pass);

}  // namespace tidemark
