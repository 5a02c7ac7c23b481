#include "sim/resident_memory.h"

#include <algorithm>
#include <set>
#include <utility>

#include "models/gradient_buffers.h"
#include "models/linear_operators.h"
#include "models/parameters.h"

namespace tidemark {
namespace {

using Requests = std::vector<std::int64_t>;

// Transformer Engine's dummy weight gradients (module/base.py get_dummy_wgrad): one bf16 tensor for
// each distinct weight shape that a fused-accumulation linear has seen, for ever.
Requests dummy_gradients(const Job& job, const std::vector<Weight>& weights) {
  std::set<std::pair<std::int64_t, std::int64_t>> shapes;
  for (const Weight& w : weights) {
    const bool linear =
        w.kind == WeightKind::kLinear && !makes_temporary_weight_gradient(job.versions, false);
    const bool grouped = w.kind == WeightKind::kGroupedLinear &&
                         !makes_temporary_weight_gradient(job.versions, true);
    if (linear || grouped) shapes.insert({w.rows, w.cols});
  }
  Requests requests;
  for (const auto& [rows, cols] : shapes) requests.push_back(kBf16 * rows * cols);
  return requests;
}

std::int64_t from_mib(double mib) { return static_cast<std::int64_t>(mib * (1 << 20)); }

}  // namespace

Bytes fresh_block(std::int64_t bytes) {
  constexpr std::int64_t kLargeRequest = 10 << 20;
  constexpr std::int64_t kSegmentUnit = 2 << 20;
  constexpr std::int64_t kNotSplit = 1 << 20;
  const std::int64_t block = round_up(bytes, kAllocatorBlock);
  if (block < kLargeRequest) return Bytes(block);
  const std::int64_t segment = round_up(block, kSegmentUnit);
  return Bytes(segment - block <= kNotSplit ? segment : block);
}

std::vector<ResidentItem> resident_memory(const Job& job, const HardwareProfile& profile,
                                          std::int64_t stage, std::int64_t optimizer_rank) {
  const ModelSpec& m = job.model;
  const TrainingOptions& o = job.options;
  bool last = false;  // holds the output layer
  for (std::int64_t c = 0; c < job.layout.virtual_pipeline; ++c) {
    last |= job.layout.virtual_stage(stage, c) == job.layout.virtual_stages() - 1;
  }
  const bool kwai = job.versions.fork == Fork::kKwai;
  const std::vector<Weight> weights = stage_weights(job, stage);
  const std::int64_t h = m.hidden_size;
  std::vector<ResidentItem> items;
  const auto add = [&](std::string name, Requests requests, std::string source,
                       ResidentSince since = ResidentSince::kFirstUse, bool calibrated = false) {
    Bytes bytes;
    // The moments come from whatever is cached by then.
    const bool fresh = since != ResidentSince::kOptimizerStep;
    for (std::int64_t request : requests) {
      bytes += fresh ? fresh_block(request) : Bytes(round_up(request, 512));
    }
    if (bytes == Bytes()) return;
    items.push_back(
        {std::move(name), std::move(requests), bytes, since, std::move(source), calibrated});
  };

  Requests parameters;
  Requests gradients;
  Requests main_parameters;
  Requests moments;
  for (std::int64_t c = 0; c < job.layout.virtual_pipeline; ++c) {
    const std::int64_t virtual_stage = job.layout.virtual_stage(stage, c);
    if (kwai) {
      for (const Weight& w : chunk_weights(job, virtual_stage)) {
        parameters.push_back(kBf16 * w.count());
      }
    }
    for (const GradientBuffer& buffer : gradient_buffers(job, virtual_stage, optimizer_rank)) {
      if (!kwai) parameters.push_back(kBf16 * buffer.parameters);
      gradients.push_back(o.optimizer.main_grad_bytes * buffer.parameters);
      for (std::int64_t piece : buffer.owned_pieces) {
        main_parameters.push_back(o.optimizer.main_param_bytes * piece);
        moments.push_back(o.optimizer.exp_avg_bytes * piece);
        moments.push_back(o.optimizer.exp_avg_sq_bytes * piece);
      }
    }
  }
  add("parameters (bf16)", parameters, "Megatron param_and_grad_buffer.py",
      ResidentSince::kStartUp);
  add("gradient buffer", gradients, "Megatron param_and_grad_buffer.py", ResidentSince::kStartUp);
  add("main parameters", main_parameters, "Megatron distrib_optimizer.py", ResidentSince::kStartUp);
  add("optimizer moments", moments, "TE FusedAdam, first step", ResidentSince::kOptimizerStep);

  if (o.gradient_accumulation_fusion && !kwai) {  // Kwai's linears return no weight gradient
    add("dummy weight gradients", dummy_gradients(job, weights), "TE module/base.py",
        ResidentSince::kFirstGradient);
    if (last && !makes_temporary_output_gradient(job.versions)) {
      const std::int64_t vocabulary = m.padded_vocab_size(job.layout.tensor) / job.layout.tensor;
      add("output layer's dummy gradient", {kBf16 * vocabulary * h},
          "Megatron tensor_parallel/layers.py", ResidentSince::kFirstGradient);
    }
  }

  const AllocatorConstants& libraries = profile.allocator_for(job.versions.dtk);
  const std::vector<std::int64_t> layers = job.layout.stage_layers(stage, m.num_layers);
  const bool has_moe = std::any_of(layers.begin(), layers.end(),
                                   [&](std::int64_t layer) { return m.is_moe(layer); });
  const auto add_constant = [&](const std::string& name, const SourcedNumber& mib,
                                std::int64_t count, bool calibrated) {
    add(name, Requests(static_cast<std::size_t>(count), from_mib(mib.value)), mib.source,
        ResidentSince::kFirstUse, calibrated || mib.kind == NumberKind::kAssumed);
  };
  add_constant("GEMM workspace (TE)", libraries.te_base_workspace_mib, 1, false);
  if (has_moe) {
    add_constant("grouped GEMM workspaces (TE)", libraries.te_grouped_workspace_mib,
                 static_cast<std::int64_t>(libraries.te_grouped_streams.value), false);
    if (libraries.moe_stage_unexplained_mib) {
      add_constant("unexplained on stages with experts", *libraries.moe_stage_unexplained_mib, 1,
                   true);
    }
  }
  // Fused gather-GEMM kernels bring their own buffers, which the allocator does not see.
  if ((last || kwai) && o.linear_impl == LinearImpl::kDefault) {
    // torch.matmul of the output layer (Kwai: of all linears): one handle for the forward's thread,
    // one for autograd's.
    add_constant("GEMM workspaces (PyTorch)", libraries.torch_workspace_mib, 2, false);
    if (job.layout.splits_sequence()) {
      add("gathered input of the output layer", {kBf16 * rank_tokens(job) * h},
          "Megatron GlobalMemoryBuffer \"mpu\"");
    }
  }

  const std::int64_t s = job.rank_sequence();
  const std::int64_t rope_dim = m.attention.kind == AttentionKind::kMultiLatent
                                    ? m.attention.qk_pos_emb_head_dim
                                    : m.rotary_dim();
  if (m.attention.kind == AttentionKind::kMultiLatent) {
    // Each layer's module caches frequencies in fp32, and cos and sin in bf16.
    Requests caches;
    for (std::size_t layer = 0; layer < layers.size(); ++layer) {
      caches.insert(caches.end(),
                    {kFp32 * s * rope_dim, kBf16 * s * rope_dim, kBf16 * s * rope_dim});
    }
    add("rotary caches", caches, "Megatron yarn_rotary_pos_embedding.py");
  } else if (m.position_embedding == PositionEmbedding::kRope) {
    // Of each chunk's model.
    const auto chunks = static_cast<std::size_t>(job.layout.virtual_pipeline);
    add("rotary cache", Requests(chunks, kFp32 * s * rope_dim), "Megatron rotary_pos_embedding.py");
  }
  return items;
}

}  // namespace tidemark
