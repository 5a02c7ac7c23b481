#include "models/job.h"

#include <functional>

namespace tidemark {
namespace {

using Refuse = std::function<void(const std::string& key, const std::string& found,
                                  const std::string& allowed)>;

// What core/transformer/transformer_config.py refuses, and what it would silently ignore.
void validate_recompute(const Job& job, const Refuse& refuse) {
  const SelectiveRecompute& r = job.options.recompute;
  const bool has_moe = job.model.num_moe_layers() > 0;
  const bool shares = has_moe && job.model.moe->shared_ffn_hidden_size > 0;
  if (const auto& full = job.options.full_recompute) {
    if (full->num_layers < 1) {
      refuse("recompute_num_layers", std::to_string(full->num_layers), "an integer >= 1");
    }
    SelectiveRecompute modules = r;
    modules.activation_function = false;  // of the layers that are not checkpointed
    if (modules != SelectiveRecompute{}) {
      refuse("recompute_modules", "given", "no modules beside recompute_granularity full");
    }
  }
  if (r.mla_up_proj && job.model.attention.kind != AttentionKind::kMultiLatent) {
    refuse("recompute_modules", "mla_up_proj", "no such module without multi_latent_attention");
  }
  if (r.shared_experts && job.options.moe_shared_expert_overlap) {
    refuse("recompute_modules", "shared_experts", "moe_shared_expert_overlap off beside it");
  }
  if (r.activation_function && !job.model.has_dense_layers()) {
    refuse("recompute_activation_function", "true", "a model with dense layers");
  }
  if (!has_moe && (r.moe || r.moe_act)) {
    refuse("recompute_modules", r.moe ? "moe" : "moe_act", "no such module without experts");
  }
  if (r.shared_experts && !shares) {
    refuse("recompute_modules", "shared_experts", "moe_shared_expert_intermediate_size beside it");
  }
}

// What may be offloaded beside what is recomputed (transformer_config.py).
void validate_offload(const TrainingOptions& o, const Refuse& refuse) {
  if (o.offload.modules.empty()) return;
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

// What transformer_config.py refuses beside combined slots, and what is not modelled there.
void validate_combined_slots(const Job& job, const Refuse& refuse) {
  const TrainingOptions& o = job.options;
  const bool has_options =
      o.overlap_moe_expert_parallel_comm || job.layout.schedule == PipelineSchedule::kCombined1F1B;
  if (o.delay_wgrad_compute && !has_options) {
    refuse("delay_wgrad_compute", "true", "overlap_moe_expert_parallel_comm beside it");
  }
  if (o.ep_overlap_early_attn_memory_release && !has_options) {
    refuse("ep_overlap_early_attn_memory_release", "true",
           "overlap_moe_expert_parallel_comm beside it");
  }
  if (!job.layout.is_megatrons()) {
    if (o.overlap_moe_expert_parallel_comm) {
      refuse("overlap_moe_expert_parallel_comm", "true", "false with this pipeline_schedule");
    }
    if (!o.offload.modules.empty()) {
      refuse("offload_modules", "given", "none with this pipeline_schedule");
    }
    if (job.versions.fork == Fork::kKwai) {
      refuse("pipeline_schedule", "given", "none with the fork \"kwai\"");
    }
  }
  if (!job.combines_slots()) return;
  const auto not_beside = [&](const std::string& key, const std::string& found) {
    refuse(key, found, "nothing of the kind where a forward and a backward are one slot");
  };
  if (!job.model.moe && o.overlap_moe_expert_parallel_comm)
    refuse("overlap_moe_expert_parallel_comm", "true", "false without experts");
  if (o.moe_shared_expert_overlap) not_beside("moe_shared_expert_overlap", "true");
  if (o.full_recompute) not_beside("recompute_granularity", "full");
  if (o.recompute.moe) not_beside("recompute_modules", "moe");
  if (!o.offload.modules.empty()) not_beside("offload_modules", "given");
}

}  // namespace

const char* name_of(OffloadModule module) {
  switch (module) {
    case OffloadModule::kAttnNorm:
      return "attn_norm";
    case OffloadModule::kQkvLinear:
      return "qkv_linear";
    case OffloadModule::kCoreAttn:
      return "core_attn";
    case OffloadModule::kAttnProj:
      return "attn_proj";
    case OffloadModule::kMlpNorm:
      return "mlp_norm";
    case OffloadModule::kExpertFc1:
      return "expert_fc1";
    case OffloadModule::kMoeAct:
      return "moe_act";
  }
  return "";
}

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
  // Megatron's reason: several sends and receives of the same two ranks in one batch.
  if (job.layout.virtual_pipeline > 1 && job.layout.pipeline == 2 && !o.overlap_p2p_comm &&
      job.layout.is_megatrons()) {
    refuse("overlap_p2p_comm", "false", "true for virtual stages on two pipeline stages");
  }
  validate_recompute(job, refuse);
  validate_offload(o, refuse);
  validate_combined_slots(job, refuse);
  const bool kwai = job.versions.fork == Fork::kKwai;
  if (!kwai && o.recompute.mlp_act) {
    refuse("kaimm_recompute_mlp_activation_func", "true", "the fork \"kwai\"");
  }
  if (!kwai && o.offload_ratio > 0) {
    refuse("kaimm_offload_activation_ratio", std::to_string(o.offload_ratio), "the fork \"kwai\"");
  }
  const AttentionSpec& a = job.model.attention;
  const ParallelLayout& l = job.layout;
  const bool heads = a.kind == AttentionKind::kGrouped && !a.qk_layernorm &&
                     (l.context == 1 || a.num_query_groups == a.num_heads);
  const bool splits =
      l.virtual_pipeline > 1 && (l.splits_sequence() || (l.tensor == 1 && l.context == 1));
  if (kwai && !(heads && splits && !job.model.moe && job.model.activation == Activation::kSwiglu &&
                job.model.position_embedding == PositionEmbedding::kRope)) {
    refuse("fork", "\"kwai\"",
           "only for dense models with RoPE and SwiGLU, on virtual pipeline stages; with tensor "
           "parallelism also sequence parallelism; with context parallelism also that, and "
           "multi-head attention");
  }
  throw_if_any(all);
}

}  // namespace tidemark
