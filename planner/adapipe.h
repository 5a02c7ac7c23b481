// AdaPipe (Sun et al., ASPLOS 2024): which units of each stage to recompute, and which layers each
// stage gets, both by dynamic programming with knowledge of 1F1B's memory.
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
// Stages of isomorphic layers share their knapsack. The budget is the same whatever the routing:
// nothing reacts, so a spike needs room for it in advance.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace tidemark {

// What may be saved or run again.
struct AdaPipeUnit {
  std::int64_t forward_ns = 0;
  std::int64_t bytes = 0;  // that saving it keeps, a microbatch
  friend auto operator<=>(const AdaPipeUnit&, const AdaPipeUnit&) = default;
};

struct AdaPipeLayer {
  std::int64_t forward_ns = 0;    // of all of it, units included
  std::int64_t backward_ns = 0;   // with everything saved
  std::int64_t kept_bytes = 0;    // that are always saved, a microbatch
  std::int64_t static_bytes = 0;  // parameters, gradients, optimizer, buffers
  std::vector<AdaPipeUnit> units;
  friend auto operator<=>(const AdaPipeLayer&, const AdaPipeLayer&) = default;
};

struct AdaPipeSaves {
  std::vector<std::vector<bool>> saved;  // [layer][unit]
  std::int64_t recompute_ns = 0;         // forward times of what is not saved
};

// Of layers of which `in_flight` microbatches are kept. Returns: empty if even the least is too
// much.
std::optional<AdaPipeSaves> adapipe_saves(std::span<const AdaPipeLayer> layers,
                                          std::int64_t in_flight, std::int64_t capacity_bytes);

struct AdaPipeProblem {
  std::vector<AdaPipeLayer> layers;
  std::vector<std::int64_t> capacity_bytes;  // [stage]: for its layers
  std::int64_t microbatches = 1;             // at least as many as stages
};

struct AdaPipePlan {
  std::vector<std::int64_t> layers;  // [stage]; empty: no split fits
  std::int64_t iteration_ns = 0;     // T
};

// Requires: at least as many layers as stages.
AdaPipePlan solve_adapipe(const AdaPipeProblem& problem);

}  // namespace tidemark
