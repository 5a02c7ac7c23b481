#include "models/parallel_layout.h"

#include <algorithm>

namespace tidemark {

std::int64_t ParallelLayout::lanes_per_stage() const {
  return std::max(tensor * context, expert * expert_tensor);
}

ParallelLayout::LayerRange ParallelLayout::stage_layers(std::int64_t stage,
                                                        std::int64_t num_layers) const {
  // Megatron's get_num_layers_to_build: the first and last stage may be given; the other stages
  // share the rest evenly.
  std::int64_t others = pipeline;
  std::int64_t rest = num_layers;
  if (first_stage_layers > 0) --others, rest -= first_stage_layers;
  if (last_stage_layers > 0) --others, rest -= last_stage_layers;
  const std::int64_t share = others > 0 ? rest / others : 0;
  const std::int64_t first = first_stage_layers > 0 ? first_stage_layers : share;
  const std::int64_t last = last_stage_layers > 0 ? last_stage_layers : share;
  if (stage == 0) return {0, pipeline == 1 ? num_layers : first};
  const std::int64_t begin = first + (stage - 1) * share;
  return {begin, begin + (stage == pipeline - 1 ? last : share)};
}

std::vector<Violation> validate(const ModelSpec& model, const ParallelLayout& layout,
                                const Batch& batch, const std::string& file,
                                const std::string& pointer) {
  std::vector<Violation> out;
  const auto refuse = [&](const std::string& key, const std::string& found,
                          const std::string& allowed) {
    out.push_back({file, pointer + key, found, allowed});
  };
  const auto text = [](std::int64_t v) { return std::to_string(v); };
  const auto positive = [&](const std::string& key, std::int64_t value) {
    if (value < 1) refuse(key, text(value), "an integer >= 1");
    return value >= 1;
  };
  bool sizes = positive("world_size", layout.cards);
  sizes &= positive("tensor_model_parallel_size", layout.tensor);
  sizes &= positive("context_parallel_size", layout.context);
  sizes &= positive("pipeline_model_parallel_size", layout.pipeline);
  sizes &= positive("expert_model_parallel_size", layout.expert);
  sizes &= positive("expert_tensor_parallel_size", layout.expert_tensor);
  sizes &= positive("micro_batch_size", batch.micro_batch_size);
  sizes &= positive("global_batch_size", batch.global_batch_size);
  sizes &= positive("seq_length", batch.seq_length);
  if (!sizes) return out;

  const auto divides = [&](const std::string& key, std::int64_t divisor, std::int64_t value,
                           const std::string& of) {
    if (value % divisor != 0) {
      refuse(key, text(divisor), "a divisor of " + of + " = " + text(value));
      return false;
    }
    return true;
  };
  const auto multiple = [&](const std::string& key, std::int64_t value, std::int64_t unit,
                            const std::string& what) {
    if (value % unit != 0) refuse(key, text(value), "a multiple of " + what + " = " + text(unit));
    return value % unit == 0;
  };
  const std::int64_t tp = layout.tensor;
  divides("tensor_model_parallel_size", tp, model.attention.num_heads, "num_attention_heads");
  if (model.attention.kind == AttentionKind::kGrouped) {
    const std::int64_t groups = model.attention.num_query_groups;
    if (groups >= tp) {
      divides("tensor_model_parallel_size", tp, groups, "num_query_groups");
    } else {
      refuse("tensor_model_parallel_size", text(tp),
             "at most num_query_groups = " + text(groups) +
                 " (replicated key-value heads are not modelled)");
    }
  }
  if (model.num_moe_layers() < model.num_layers) {
    divides("tensor_model_parallel_size", tp, model.ffn_hidden_size, "ffn_hidden_size");
  }
  if (layout.sequence_parallel) {
    divides("tensor_model_parallel_size", tp,
            batch.seq_length / std::max<std::int64_t>(1, layout.context),
            "the sequence of one context-parallel rank");
  }
  if (layout.context > 1) {
    multiple("seq_length", batch.seq_length, 2 * layout.context,
             "two chunks a rank, 2 * context_parallel_size");
  }
  if (model.moe && model.num_moe_layers() > 0) {
    divides("expert_model_parallel_size", layout.expert, model.moe->num_experts, "num_experts");
    divides("expert_tensor_parallel_size", layout.expert_tensor, model.moe->ffn_hidden_size,
            "moe_ffn_hidden_size");
    if (model.moe->shared_ffn_hidden_size > 0) {
      divides("tensor_model_parallel_size", tp, model.moe->shared_ffn_hidden_size,
              "moe_shared_expert_intermediate_size");
    }
    if (tp > 1 && layout.expert > 1 && !layout.sequence_parallel) {
      refuse("sequence_parallel", "false",
             "true: Megatron requires it for experts with tensor and expert parallelism");
    }
  } else if (layout.expert > 1) {
    refuse("expert_model_parallel_size", text(layout.expert), "1 for a model without experts");
  }
  const bool dense_cards =
      multiple("world_size", layout.cards, tp * layout.context * layout.pipeline, "TP * CP * PP");
  multiple("world_size", layout.cards, layout.pipeline * layout.expert * layout.expert_tensor,
           "PP * EP * ETP");
  const std::int64_t lanes = layout.lanes_per_stage();
  if (lanes % (tp * layout.context) != 0 || lanes % (layout.expert * layout.expert_tensor) != 0) {
    refuse("expert_model_parallel_size", text(layout.expert),
           "EP * ETP and TP * CP of which one divides the other");
  }
  if (dense_cards) {
    multiple("global_batch_size", batch.global_batch_size, batch.micro_batch_size * layout.data(),
             "micro_batch_size * DP");
  }

  std::int64_t others = layout.pipeline;
  std::int64_t rest = model.num_layers;
  if (layout.first_stage_layers > 0) --others, rest -= layout.first_stage_layers;
  if (layout.last_stage_layers > 0) --others, rest -= layout.last_stage_layers;
  if (layout.pipeline == 1 && (layout.first_stage_layers > 0 || layout.last_stage_layers > 0)) {
    refuse("decoder_first_pipeline_num_layers", text(layout.first_stage_layers),
           "no first or last stage layers without pipeline stages");
  } else if (rest < 0 || (others > 0 && (rest % others != 0 || rest == 0)) ||
             (others == 0 && rest != 0)) {
    refuse("pipeline_model_parallel_size", text(layout.pipeline),
           "stages that share the remaining " + text(rest) + " layers of " +
               text(model.num_layers) + " evenly, at least one each");
  }
  return out;
}

}  // namespace tidemark
