// AdaPipe (Sun et al., ASPLOS 2024): which units of each stage to recompute, and which layers each
// stage gets, both by dynamic knowledge of 1F1B's memory.
//
// Stage s of p keeps p - s microbatches. Of its layers it saves the units
//
//   maximize sum of saved forward times   subject to (p - s) * sum of saved bytes <= M - static
//
// a knapsack; its forward then takes F = sum of forward times, its backward B = sum of backward
// times + forward times of what is not saved. Layers are dealt to stages from the last to the
// first, for each the split with the least T = W + E + (n - p + s) * S:
//
//   W_s = F_s + max(W_s+1 + B_s+1, (p - s - 1) * F_s)      warm-up
//   E_s = B_s + max(E_s+1 + F_s+1, (p - s - 1) * B_s)      ending
//   S_s = max(S_s+1, F_s + B_s)                            steady
//
// The budget is the same whatever the routing: nothing reacts, so a spike needs `capacity_bytes`
// for it in advance.
#pragma once

#include <cstdint>
#include <vector>

namespace tidemark {

struct AdaPipeUnit {
  std::int64_t forward_ns = 0;
  std::int64_t backward_ns = 0;
  std::int64_t bytes = 0;  // that saving it keeps, a microbatch
  bool always_saved = false;
};

struct AdaPipeLayer {
  std::vector<AdaPipeUnit> units;
  std::int64_t static_bytes = 0;  // parameters, gradients, optimizer
};

struct AdaPipeProblem {
  std::vector<AdaPipeLayer> layers;
  std::int64_t stages = 1;
  std::int64_t microbatches = 1;  // at least `stages`
  std::int64_t capacity_bytes = 0;
};

struct AdaPipeStage {
  std::int64_t first_layer = 0;
  std::int64_t end_layer = 0;
  std::vector<std::vector<bool>> saved;  // [layer of the stage][unit]
  std::int64_t forward_ns = 0;
  std::int64_t backward_ns = 0;
};

struct AdaPipePlan {
  std::vector<AdaPipeStage> stages;  // empty: no split fits
  std::int64_t iteration_ns = 0;
};

// Saves of layers [first, end) on stage `stage`. Returns: `end_layer` == `first_layer` if even the
// least does not fit.
AdaPipeStage adapipe_stage(const AdaPipeProblem& problem, std::int64_t stage, std::int64_t first,
                           std::int64_t end);

// Requires: at least as many layers as stages.
AdaPipePlan solve_adapipe(const AdaPipeProblem& problem);

}  // namespace tidemark
