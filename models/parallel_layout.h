// How a model is spread over cards: tensor (TP), sequence, context (CP), pipeline (PP), expert (EP)
// and expert-tensor (ETP) parallelism; data parallelism (DP) is what remains.
//
//   With virtual pipeline stages a card holds several chunks of the model: chunk c of stage r is
//   virtual stage c * PP + r (other schedules place them otherwise: models/placement.h), and layers
//   follow the order of virtual stages.
//
//   cards = DP * CP * TP * PP. Experts fold over DP * CP * TP: expert-DP = cards / (PP * EP * ETP).
//   A unit (all stages of one expert-parallel group) has max(TP * CP, EP * ETP) lanes a stage.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "models/input_error.h"
#include "models/model_spec.h"
#include "models/placement.h"

namespace tidemark {

// The order in which a pipeline runs forwards and backwards.
enum class PipelineSchedule : std::uint8_t {
  kOneForwardOneBackward,  // Megatron's, interleaved with virtual stages
  kCombined1F1B,           // plain, forwards beside backwards
  kZbH1,
  kZbH2,
  kZbV,
  kVHalf,
  kVMin,
  kDualPipe,
  kDualPipeV,
};

struct ParallelLayout {
  std::int64_t cards = 0;
  std::int64_t tensor = 1;
  bool sequence_parallel = false;
  std::int64_t context = 1;
  std::int64_t pipeline = 1;
  std::int64_t virtual_pipeline = 1;  // chunks of a stage
  PipelineSchedule schedule = PipelineSchedule::kOneForwardOneBackward;
  // Microbatches of one chunk in a row (interleaved 1F1B); 0: PP, Megatron's default.
  std::int64_t microbatch_group = 0;
  std::int64_t expert = 1;
  std::int64_t expert_tensor = 1;
  std::int64_t first_stage_layers = 0;  // 0: an even share
  std::int64_t last_stage_layers = 0;   // 0: an even share
  // The embedding or the loss takes a layer's place in the even split.
  bool account_for_embedding = false;
  bool account_for_loss = false;
  // [virtual stage]: decoder layers of each, where they are listed (pipeline layout); empty: split
  // by the rules above.
  std::vector<std::int64_t> listed_layers;

  std::int64_t data() const { return cards / (tensor * context * pipeline); }
  std::int64_t expert_data() const { return cards / (pipeline * expert * expert_tensor); }
  std::int64_t lanes_per_stage() const;
  std::int64_t units() const { return cards / (pipeline * lanes_per_stage()); }
  Placement placement() const;
  // Chunks that a schedule needs; 0: any number.
  std::int64_t required_chunks() const;
  std::int64_t virtual_stages() const {
    return tidemark::virtual_stages(placement(), pipeline, virtual_pipeline);
  }
  std::int64_t virtual_stage(std::int64_t stage, std::int64_t chunk) const {
    return tidemark::virtual_stage(placement(), pipeline, {stage, chunk});
  }
  // Weight gradients run as slots of their own.
  bool splits_weight_gradients() const {
    return !is_megatrons() && schedule != PipelineSchedule::kCombined1F1B;
  }
  // A forward and a backward run as one slot.
  bool fuses_slots() const { return is_dual_pipe() || schedule == PipelineSchedule::kCombined1F1B; }
  bool is_megatrons() const { return schedule == PipelineSchedule::kOneForwardOneBackward; }
  bool is_dual_pipe() const {
    return schedule == PipelineSchedule::kDualPipe || schedule == PipelineSchedule::kDualPipeV;
  }
  std::int64_t microbatches_in_a_row() const {
    return microbatch_group > 0 ? microbatch_group : pipeline;
  }
  // Tokens are split over TP too between the tensor-parallel regions.
  bool splits_sequence() const { return sequence_parallel && tensor > 1; }

  // Half-open range of layers of a virtual stage. Requires: a layout that `validate` accepts.
  struct LayerRange {
    std::int64_t begin = 0;
    std::int64_t end = 0;
    std::int64_t size() const { return end - begin; }
  };
  LayerRange chunk_layers(std::int64_t virtual_stage, std::int64_t num_layers) const;
  // All layers of a stage, in the order of its chunks.
  std::vector<std::int64_t> stage_layers(std::int64_t stage, std::int64_t num_layers) const;

 private:
  // Layers of each virtual stage, as Megatron's get_num_layers_to_build splits them.
  std::int64_t split_share(std::int64_t virtual_stage, std::int64_t num_layers) const;
};

// Decoder layers of each virtual stage of a Megatron pipeline layout such as "Et*3|(tt|)*29m|L":
// E embedding, t decoder layer, m multi-token prediction, L loss, | between virtual stages, *n and
// (..)*n repeat. Returns: empty when the text is no such layout, or when its first stage lacks E or
// its last one L.
struct PipelineLayout {
  std::vector<std::int64_t> decoder_layers;  // [virtual stage]
  std::vector<std::int64_t> mtp_layers;      // [virtual stage]
};
std::optional<PipelineLayout> parse_pipeline_layout(std::string_view text);
// The same without multi-token prediction, runs as t*n: "Et*3|t*2L".
std::string pipeline_layout_text(const std::vector<std::int64_t>& decoder_layers);

struct Batch {
  std::int64_t micro_batch_size = 1;
  std::int64_t global_batch_size = 0;
  std::int64_t seq_length = 0;

  // Microbatches that one pipeline runs in an iteration.
  std::int64_t num_microbatches(const ParallelLayout& layout) const {
    return global_batch_size / (micro_batch_size * layout.data());
  }
};

// Every impossible combination of model, layout and batch, each with the argument's name.
std::vector<Violation> validate(const ModelSpec& model, const ParallelLayout& layout,
                                const Batch& batch, const std::string& file,
                                const std::string& pointer);

}  // namespace tidemark
