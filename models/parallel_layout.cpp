#include "models/parallel_layout.h"

#include <algorithm>
#include <charconv>
#include <functional>
#include <numeric>

namespace tidemark {

std::int64_t ParallelLayout::lanes_per_stage() const {
  return std::max(tensor * context, expert * expert_tensor);
}

Placement ParallelLayout::placement() const {
  switch (schedule) {
    case PipelineSchedule::kZbV:
    case PipelineSchedule::kVHalf:
    case PipelineSchedule::kVMin:
    case PipelineSchedule::kDualPipeV:
      return Placement::kV;
    case PipelineSchedule::kDualPipe:
      return Placement::kBidirectional;
    default:
      return Placement::kRing;
  }
}

std::int64_t ParallelLayout::required_chunks() const {
  if (is_megatrons()) return 0;
  return placement() == Placement::kRing ? 1 : 2;
}

std::int64_t ParallelLayout::split_share(std::int64_t virtual_stage,
                                         std::int64_t num_layers) const {
  // The first and last stage may be given; the others share the rest evenly.
  const std::int64_t stage = place_after(placement(), pipeline, {0, 0}, virtual_stage).stage;
  std::int64_t others = pipeline;
  std::int64_t rest = num_layers + (account_for_embedding ? 1 : 0) + (account_for_loss ? 1 : 0);
  if (first_stage_layers > 0) --others, rest -= first_stage_layers;
  if (last_stage_layers > 0) --others, rest -= last_stage_layers;
  std::int64_t share = others > 0 ? rest / others : 0;
  if (stage == 0 && first_stage_layers > 0) share = first_stage_layers;
  if (stage == pipeline - 1 && last_stage_layers > 0) share = last_stage_layers;
  share /= virtual_stages() / pipeline;
  if (account_for_embedding && virtual_stage == 0) --share;
  if (account_for_loss && virtual_stage == virtual_stages() - 1) --share;
  return share;
}

ParallelLayout::LayerRange ParallelLayout::chunk_layers(std::int64_t virtual_stage,
                                                        std::int64_t num_layers) const {
  LayerRange range;
  for (std::int64_t vs = 0; vs <= virtual_stage; ++vs) {
    range.begin = range.end;
    range.end += listed_layers.empty() ? split_share(vs, num_layers)
                                       : listed_layers[static_cast<std::size_t>(vs)];
  }
  return range;
}

std::vector<std::int64_t> ParallelLayout::stage_layers(std::int64_t stage,
                                                       std::int64_t num_layers) const {
  std::vector<std::int64_t> layers;
  for (std::int64_t chunk = 0; chunk < virtual_pipeline; ++chunk) {
    const LayerRange range = chunk_layers(virtual_stage(stage, chunk), num_layers);
    for (std::int64_t layer = range.begin; layer < range.end; ++layer) layers.push_back(layer);
  }
  return layers;
}

namespace {

// "Et*3|(tt|)*2mL" -> "Ettt|tt|tt|mL". Returns: empty if malformed.
std::optional<std::string> expand_layout(std::string_view text, std::size_t& at, int depth) {
  constexpr std::size_t kLongest = 100'000;
  constexpr int kDeepest = 20;
  std::string out;
  while (at < text.size() && text[at] != ')') {
    std::string item(1, text[at++]);
    if (item == "," || item == " ") continue;
    if (item == "(") {
      if (depth == kDeepest) return std::nullopt;
      const std::optional<std::string> inner = expand_layout(text, at, depth + 1);
      if (!inner || at == text.size()) return std::nullopt;
      ++at;  // )
      item = *inner;
    } else if (std::string_view("EtmL|").find(item[0]) == std::string_view::npos) {
      return std::nullopt;
    }
    std::size_t times = 1;
    if (at < text.size() && text[at] == '*') {
      const char* begin = text.data() + at + 1;
      const auto [end, error] = std::from_chars(begin, text.data() + text.size(), times);
      if (error != std::errc{}) return std::nullopt;
      at = static_cast<std::size_t>(end - text.data());
    }
    if (times > kLongest || out.size() + item.size() * times > kLongest) return std::nullopt;
    for (std::size_t i = 0; i < times; ++i) out += item;
  }
  return out;
}

}  // namespace

std::optional<PipelineLayout> parse_pipeline_layout(std::string_view text) {
  std::size_t at = 0;
  const std::optional<std::string> expanded = expand_layout(text, at, 0);
  if (!expanded || at < text.size()) return std::nullopt;
  if (expanded->empty() || expanded->front() != 'E' || expanded->back() != 'L') return std::nullopt;
  PipelineLayout layout{{0}, {0}};
  for (std::size_t i = 0; i < expanded->size(); ++i) {
    const char c = (*expanded)[i];
    const bool inside = i > 0 && i + 1 < expanded->size();
    if (inside && (c == 'E' || c == 'L')) return std::nullopt;
    if (c == 't') ++layout.decoder_layers.back();
    if (c == 'm') ++layout.mtp_layers.back();
    if (c == '|') {
      layout.decoder_layers.push_back(0);
      layout.mtp_layers.push_back(0);
    }
  }
  return layout;
}

std::string pipeline_layout_text(const std::vector<std::int64_t>& decoder_layers) {
  std::string text = "E";
  for (std::size_t i = 0; i < decoder_layers.size(); ++i) {
    if (i > 0) text += "|";
    if (decoder_layers[i] > 0) text += "t*" + std::to_string(decoder_layers[i]);
  }
  return text + "L";
}

namespace {

using Refuse = std::function<void(const std::string& key, const std::string& found,
                                  const std::string& allowed)>;

// How layers are split over (virtual) stages, and what interleaving needs.
void validate_stages(const ModelSpec& model, const ParallelLayout& layout, const Batch& batch,
                     const Refuse& refuse) {
  const auto text = [](std::int64_t v) { return std::to_string(v); };
  const std::int64_t p = layout.pipeline;
  const std::int64_t v = layout.virtual_pipeline;
  if (layout.required_chunks() > 0) {
    const std::int64_t m = batch.num_microbatches(layout);
    if (v != layout.required_chunks()) {
      refuse("virtual_pipeline_model_parallel_size", text(v),
             text(layout.required_chunks()) + " with this pipeline_schedule");
      return;
    }
    if (p == 1) refuse("pipeline_schedule", "given", "none without pipeline stages");
    if (layout.is_dual_pipe() && m < 2 * p) {
      refuse("global_batch_size", text(batch.global_batch_size),
             "at least 2 PP = " + text(2 * p) + " microbatches with DualPipe");
    }
    if (layout.schedule == PipelineSchedule::kDualPipe && (p % 2 != 0 || m % 2 != 0)) {
      refuse("pipeline_schedule", "\"dualpipe\"", "an even number of stages and microbatches");
    }
  } else if (v > 1) {
    const std::int64_t m = batch.num_microbatches(layout);
    const std::int64_t n = layout.microbatches_in_a_row();
    if (p == 1) {
      refuse("virtual_pipeline_model_parallel_size", text(v), "1 without pipeline stages");
    } else if (n < p || n > m) {
      refuse("microbatch_group_size_per_vp_stage", text(n),
             "from PP = " + text(p) + " to the " + text(m) + " microbatches of an iteration");
    } else if (m % n != 0 && m % n < p) {
      refuse("global_batch_size", text(batch.global_batch_size),
             "microbatches (" + text(m) + ") that leave none, or at least PP = " + text(p) +
                 ", over groups of " + text(n));
    }
  }
  const bool given = layout.first_stage_layers > 0 || layout.last_stage_layers > 0;
  if (!layout.listed_layers.empty()) {
    if (std::ssize(layout.listed_layers) != layout.virtual_stages()) {
      refuse("pipeline_model_parallel_layout", text(std::ssize(layout.listed_layers)) + " stages",
             "PP * virtual stages = " + text(layout.virtual_stages()));
      return;
    }
    const std::int64_t sum =
        std::accumulate(layout.listed_layers.begin(), layout.listed_layers.end(), std::int64_t{0});
    if (sum != model.num_layers) {
      refuse("pipeline_model_parallel_layout", text(sum) + " decoder layers",
             "num_layers = " + text(model.num_layers));
    }
    if (given || layout.account_for_embedding || layout.account_for_loss) {
      refuse("pipeline_model_parallel_layout", "given",
             "no other way to split the layers beside it");
    }
    return;
  }
  if (p == 1 && given) {
    refuse("decoder_first_pipeline_num_layers", text(layout.first_stage_layers),
           "no first or last stage layers without pipeline stages");
    return;
  }
  if (given && (layout.account_for_embedding || layout.account_for_loss)) {
    refuse("account_for_embedding_in_pipeline_split", "True",
           "False beside decoder_first_pipeline_num_layers or decoder_last_pipeline_num_layers");
    return;
  }
  const std::int64_t parts = layout.virtual_stages() / p;  // of a stage's share
  const auto even = [&](std::int64_t layers, const std::string& key) {
    if (layers > 0 && layers % parts != 0) {
      refuse(key, text(layers), "a multiple of the " + text(v) + " virtual stages of a stage");
    }
  };
  even(layout.first_stage_layers, "decoder_first_pipeline_num_layers");
  even(layout.last_stage_layers, "decoder_last_pipeline_num_layers");
  std::int64_t others = p;
  std::int64_t rest =
      model.num_layers + (layout.account_for_embedding ? 1 : 0) + (layout.account_for_loss ? 1 : 0);
  if (layout.first_stage_layers > 0) --others, rest -= layout.first_stage_layers;
  if (layout.last_stage_layers > 0) --others, rest -= layout.last_stage_layers;
  if (rest < 0 || (others > 0 && (rest % (others * parts) != 0 || rest == 0)) ||
      (others == 0 && rest != 0)) {
    refuse(v > 1 ? "virtual_pipeline_model_parallel_size" : "pipeline_model_parallel_size",
           text(v > 1 ? v : p),
           "stages that share the remaining " + text(rest) + " layers of " +
               text(model.num_layers) + " evenly, at least one each");
  }
}

}  // namespace

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
  if (model.has_dense_layers()) {
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

  if (layout.data() > 0) validate_stages(model, layout, batch, refuse);
  return out;
}

}  // namespace tidemark
