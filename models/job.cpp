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
  if (!o.offload.modules.empty()) {
    const SelectiveRecompute& r = o.recompute;
    const auto both = [&](OffloadModule module, bool recomputed, const std::string& name) {
      if (!recomputed || !o.offload.offloads(module)) return;
      refuse("offload_modules", name, "modules that recompute_modules does not name");
    };
    if (o.full_recompute) refuse("offload_modules", "given", "no full recomputation beside it");
    both(OffloadModule::kCoreAttn, r.core_attn, "core_attn");
    both(OffloadModule::kAttnNorm, r.layernorm, "attn_norm");
    both(OffloadModule::kMlpNorm, r.layernorm, "mlp_norm");
    both(OffloadModule::kQkvLinear, r.mla_up_proj, "qkv_linear");
    both(OffloadModule::kMoeAct, r.moe_act || r.moe, "moe_act");
    both(OffloadModule::kExpertFc1, r.moe, "expert_fc1");
    // transformer_config.py: "attn_proj cannot be set to offload_modules alone without core_attn".
    if (o.offload.offloads(OffloadModule::kAttnProj) &&
        !o.offload.offloads(OffloadModule::kCoreAttn)) {
      refuse("offload_modules", "attn_proj", "core_attn beside it");
    }
    if (o.offload.fraction < 0 || o.offload.fraction > 1) {
      refuse("activation_offload_fraction", std::to_string(o.offload.fraction),
             "a number from 0 to 1");
    }
  }
  if (o.attention_backend == AttentionBackend::kUnfused && job.layout.context > 1) {
    refuse("attention_backend", "unfused", "flash or fused with context parallelism");
  }
  if (o.moe_dispatcher == MoeDispatcher::kHybridEp) {
    if (job.layout.expert_tensor > 1) {
      refuse("expert_tensor_parallel_size", std::to_string(job.layout.expert_tensor),
             "1 with the flex dispatcher");
    }
    if (o.moe_shared_expert_overlap) {
      refuse("moe_shared_expert_overlap", "True", "False with the flex dispatcher");
    }
  }
  throw_if_any(all);
}

}  // namespace tidemark
