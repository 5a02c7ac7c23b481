// How a model is spread over cards: tensor (TP), sequence, context (CP), pipeline (PP), expert (EP)
// and expert-tensor (ETP) parallelism; data parallelism (DP) is what remains.
//
//   cards = DP * CP * TP * PP. Experts fold over DP * CP * TP: expert-DP = cards / (PP * EP * ETP).
//   A unit (all stages of one expert-parallel group) has max(TP * CP, EP * ETP) lanes a stage.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "models/input_error.h"
#include "models/model_spec.h"

namespace tidemark {

struct ParallelLayout {
  std::int64_t cards = 0;
  std::int64_t tensor = 1;
  bool sequence_parallel = false;
  std::int64_t context = 1;
  std::int64_t pipeline = 1;
  std::int64_t expert = 1;
  std::int64_t expert_tensor = 1;
  std::int64_t first_stage_layers = 0;  // 0: an even share
  std::int64_t last_stage_layers = 0;   // 0: an even share

  std::int64_t data() const { return cards / (tensor * context * pipeline); }
  std::int64_t expert_data() const { return cards / (pipeline * expert * expert_tensor); }
  std::int64_t lanes_per_stage() const;
  std::int64_t units() const { return cards / (pipeline * lanes_per_stage()); }
  // Tokens are split over TP too between the tensor-parallel regions.
  bool splits_sequence() const { return sequence_parallel && tensor > 1; }

  // Half-open range of layers of a stage. Requires: a layout that `validate` accepts.
  struct LayerRange {
    std::int64_t begin = 0;
    std::int64_t end = 0;
    std::int64_t size() const { return end - begin; }
  };
  LayerRange stage_layers(std::int64_t stage, std::int64_t num_layers) const;
};

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
