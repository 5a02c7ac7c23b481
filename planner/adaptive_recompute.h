// The vendor's adaptive recompute: which modules each of a stage's equal layers runs again, solved
// after some profiled steps. What it swaps out when that was not enough: sim/rescue_swap.h.
//
// Options of a layer, from the modules that keep at least their input:
//
//   none       keeps everything, costs nothing
//   selective  a set of modules without a parent and its child: each keeps its input only and
//              costs its forward time
//   full       keeps the layer's input, costs the layer's forward time
//
// The cheapest mix of options for all layers with bytes of a microbatch at most
// max(device - static, 0) / pipeline stages. The same share for every stage, no overlap, no skew of
// tokens: weaknesses of the method, kept.
//
// Source: HYGON-AI/Megatron-LM-das, hcu_megatron/core/memory/adaptive_recomputing. There the mix is
// found by a table over options and counts that keeps one state a cell; here it is the optimum.
#pragma once

#include <cstdint>
#include <vector>

namespace tidemark {

struct RecomputeModule {
  std::int64_t forward_ns = 0;
  std::int64_t bytes = 0;        // kept for backward
  std::int64_t input_bytes = 0;  // kept if it runs again
  std::int32_t parent = -1;      // module that contains it
};

struct AdaptiveRecomputeProblem {
  std::vector<RecomputeModule> modules;  // of a layer, at most 16
  std::int64_t layer_ns = 0;             // forward
  std::int64_t layer_bytes = 0;          // kept if nothing runs again
  std::int64_t layer_input_bytes = 0;
  std::int64_t layers = 1;  // of the stage
  std::int64_t stages = 1;
  std::int64_t device_bytes = 0;
  std::int64_t static_bytes = 0;
};

struct LayerRecompute {
  std::int64_t layers = 0;
  bool full = false;
  std::vector<std::int32_t> modules;  // run again, if not full
};

struct AdaptiveRecomputePlan {
  std::vector<LayerRecompute> options;  // those used
  std::int64_t cost_ns = 0;             // of a microbatch
  std::int64_t bytes = 0;               // of a microbatch
  bool fits = false;                    // false: everything in full, which is too much
};

AdaptiveRecomputePlan solve_adaptive_recompute(const AdaptiveRecomputeProblem& problem);

}  // namespace tidemark
