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
    if (r != SelectiveRecompute{}) {
      refuse("recompute_modules", "given", "no modules beside recompute_granularity full");
    }
  }
  if (r.mla_up_proj && job.model.attention.kind != AttentionKind::kMultiLatent) {
    refuse("recompute_modules", "mla_up_proj", "no such module without multi_latent_attention");
  }
  if (r.shared_experts && job.options.moe_shared_expert_overlap) {
    refuse("recompute_modules", "shared_experts", "moe_shared_expert_overlap off beside it");
  }
  if (!has_moe && (r.moe || r.moe_act)) {
    refuse("recompute_modules", r.moe ? "moe" : "moe_act", "no such module without experts");
  }
  if (r.shared_experts && !shares) {
    refuse("recompute_modules", "shared_experts", "moe_shared_expert_intermediate_size beside it");
  }
}

}  // namespace

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
  // Megatron's reason: several sends and receives of the same two ranks in one batch.
  if (job.layout.virtual_pipeline > 1 && job.layout.pipeline == 2 && !o.overlap_p2p_comm) {
    refuse("overlap_p2p_comm", "false", "true for virtual stages on two pipeline stages");
  }
  validate_recompute(job, refuse);
  throw_if_any(all);
}

}  // namespace tidemark
