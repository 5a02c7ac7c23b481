#include "models/job.h"

namespace tidemark {

void validate(const Job& job, const std::string& pointer) {
  std::vector<Violation> all = validate(job.model, job.source, pointer);
  if (all.empty()) {
    const std::vector<Violation> layout =
        validate(job.model, job.layout, job.batch, job.source, pointer);
    all.insert(all.end(), layout.begin(), layout.end());
  }
  const auto refuse = [&](const std::string& key, const std::string& found,
                          const std::string& allowed) {
    all.push_back({job.source, pointer + key, found, allowed});
  };
  const TrainingOptions& o = job.options;
  if (o.moe_pad_expert_input_to_capacity && !o.moe_expert_capacity_factor) {
    refuse("moe_pad_expert_input_to_capacity", "true", "moe_expert_capacity_factor beside it");
  }
  if (o.moe_expert_capacity_factor && *o.moe_expert_capacity_factor <= 0) {
    refuse("moe_expert_capacity_factor", std::to_string(*o.moe_expert_capacity_factor),
           "a number > 0");
  }
  if (o.overlap_param_gather && !(o.overlap_grad_reduce && o.optimizer.distributed)) {
    refuse("overlap_param_gather", "true",
           "overlap_grad_reduce and use_distributed_optimizer beside it");
  }
  if (o.moe_shared_expert_overlap && job.model.moe && job.model.moe->shared_ffn_hidden_size == 0) {
    refuse("moe_shared_expert_overlap", "true", "moe_shared_expert_intermediate_size beside it");
  }
  const bool kwai = job.versions.fork == Fork::kKwai;
  if (!kwai && o.recompute.mlp_act) {
    refuse("kaimm_recompute_mlp_activation_func", "true", "the fork \"kwai\"");
  }
  if (!kwai && o.offload_ratio > 0) {
    refuse("kaimm_offload_activation_ratio", std::to_string(o.offload_ratio), "the fork \"kwai\"");
  }
  const AttentionSpec& a = job.model.attention;
  const bool multi_head =
      a.kind == AttentionKind::kGrouped && a.num_query_groups == a.num_heads && !a.qk_layernorm;
  if (kwai &&
      !(multi_head && !job.model.moe && job.model.activation == Activation::kSwiglu &&
        job.model.position_embedding == PositionEmbedding::kRope && job.layout.splits_sequence() &&
        job.layout.context > 1 && job.layout.virtual_pipeline > 1)) {
    refuse("fork", "\"kwai\"",
           "only for dense models with multi-head attention, RoPE and SwiGLU, on tensor with "
           "sequence, context and virtual pipeline parallelism");
  }
  throw_if_any(all);
}

}  // namespace tidemark
