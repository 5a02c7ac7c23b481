// BaGuaLu-2's published list of what one MoE layer keeps for backward, for comparison only: it is
// known not to be what the frameworks keep. It counts, for one, the output of the attention
// projection, which nothing reads in backward, and leaves out shared experts and context
// parallelism. Nothing else in the simulator uses it; models/operator_graph.h derives what is kept.
//
//   bytes = floor(product of the shape * bytes per element * (1 - offload ratio)); 0 if recomputed
//
// Source: github.com/thu-pacman/BaGuaLu 8672ee5, bgl2/core/models/gpt/gpt_activation.py; names of
// tensors, offload groups and options are theirs.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "models/job.h"

namespace tidemark {

// Part of a group's bytes that is copied to the host.
struct BaGuaLu2Offload {
  std::string group;  // or the name of a tensor
  double ratio = 0;   // from 0 to 1
};

// What their list asks for and a job does not say.
struct BaGuaLu2Options {
  double max_vio = 0;                       // the card receives 1 + max_vio times the balanced rows
  std::optional<double> dispatched_tokens;  // rows received at run time, instead of max_vio
  bool fp8 = false;
  bool activation_func_fp8_input_store = false;
  bool unfused_attention = false;  // attention_backend "unfused" or "local"
  // Heads narrower than this run flash attention when the job's backend is kAuto.
  std::int64_t flash_attention_kv_threshold = 192;
  bool recompute_full = false;
  std::set<std::string> recompute_modules;  // Megatron's names; unknown ones change nothing
  std::vector<BaGuaLu2Offload> offload;     // the last one that names a tensor counts
};

// Bytes per element are those of bf16 (or fp16) unless the list says otherwise. Extents that TP or
// the imbalance divides may be fractions.
struct BaGuaLu2Tensor {
  int id = 0;  // position in the layer; tensors of one module share it
  std::string name;
  std::vector<double> shape;  // [batch, sequence, ...]; routed ones [rows, ...]
  std::int64_t element_bytes = 0;
  std::set<std::string> groups;
  Bytes bytes;  // resident, after recompute and offload
};

struct BaGuaLu2Activations {
  std::vector<BaGuaLu2Tensor> tensors;  // in the order of the layer

  Bytes total() const;
  // Of the tensors that belong to any of these groups, each once.
  Bytes in_groups(const std::set<std::string>& groups) const;
};

// --bgl2-offload-modules when it is not given.
const std::set<std::string>& bagualu2_default_offload_groups();

// One MoE layer on one card, one microbatch. Requires: a validated job with experts.
BaGuaLu2Activations bagualu2_activations(const Job& job, const BaGuaLu2Options& options);

}  // namespace tidemark
