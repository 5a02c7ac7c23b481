// The parameters one card holds, weight by weight, as Megatron-LM registers them.
//
// Shapes are the card's shard, [out features, in features]; vectors are [n, 1].
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "models/job.h"

namespace tidemark {

enum class WeightKind {
  kWordEmbedding,
  kPositionEmbedding,
  kNorm,           // scales (and shifts) of a normalization
  kLinear,         // Transformer Engine linear
  kGroupedLinear,  // one expert's matrix of a grouped linear
  kRouter,
  kBias,
  kOutput,  // the output layer: Megatron's own linear
};

struct Weight {
  std::string name;
  WeightKind kind = WeightKind::kLinear;
  std::int64_t rows = 0;
  std::int64_t cols = 1;
  std::int64_t layer = -1;  // global index; -1 outside layers
  bool expert = false;      // reduced over expert-data parallel ranks instead of DP * CP

  std::int64_t count() const { return rows * cols; }
};

// Weights of one card of a virtual pipeline stage, in registration order. Every card of a stage
// holds the same shapes. Requires: a validated job, 0 <= virtual_stage < PP * chunks.
// Source: Megatron-LM gpt_model.py, gpt_layer_specs.py, attention.py, multi_latent_attention.py,
// mlp.py, experts.py (TEGroupedMLP), router.py; the counts equal those the logs print.
std::vector<Weight> chunk_weights(const Job& job, std::int64_t virtual_stage);
// Of all chunks of a stage, one after the other.
std::vector<Weight> stage_weights(const Job& job, std::int64_t stage);

struct ParameterCount {
  std::int64_t dense = 0;   // sharded by the optimizer over DP * CP
  std::int64_t expert = 0;  // sharded over expert-DP
  std::int64_t total() const { return dense + expert; }
};

ParameterCount count_parameters(const std::vector<Weight>& weights);

// Of the whole model, as one card would hold it.
struct ModelParameters {
  std::int64_t total = 0;
  std::int64_t activated = 0;  // that one token passes through: its top-k experts of each layer
};

ModelParameters model_parameters(const ModelSpec& model);

// MLA's down-projections: split over TP before core 0.14 (TEColumnParallelLinear, see the module
// tree that the DeepSeek-V3 log prints), replicated on every rank since (TELinear "duplicated").
bool mla_down_projection_is_split(const FrameworkVersions& versions);

}  // namespace tidemark
