// Plans of a stage from keeping everything to giving up all that can be: what a policy chooses from
// while a job runs.
//
// Each holds less than the one before; rung r at most its share of what one microbatch keeps under
// balanced routing, evenly spaced from everything to the least, at the least exposed time
// (planner/provision.h; where its search ends at the work limit, the greedy plan of
// planner/greedy_ladder.h if that exposes less) and within the host memory. A share that host
// memory does not allow has no rung. One that holds little enough for the next share too stands for
// both.
//
// A pipeline of m microbatches takes what all its stages take once (fill and drain), and m - 1
// times what the slowest one takes. So of what a microbatch computes again 1/m is exposed in any
// case, and the rest beyond its stage's slack: the time by which the slowest stage's forward and
// backward are longer than its own. Copies of a microbatch have one such period in each direction.
#pragma once

#include <cstdint>
#include <vector>

#include "planner/action_catalogue.h"

namespace tidemark {

struct LadderRung {
  std::vector<std::int32_t> choice;  // [entry of the catalogue]: an action of the entry
  std::int64_t exposed_ns = 0;       // of a forward and its backward under balanced routing
};

// More than any host has, and few enough for sums to be exact (planner/provision.h).
constexpr std::int64_t kUnlimitedHostBytes = std::int64_t{1} << 41;

struct LadderOptions {
  std::int64_t rungs = 17;
  std::int64_t balanced_rows = 0;
  std::int64_t period_ns = 0;  // of the slowest stage's forward and backward
  std::int64_t slack_ns = 0;
  std::int64_t microbatches = 1;  // times chunks: passes that fill the pipeline once
  std::int64_t host_bytes = kUnlimitedHostBytes;  // that a microbatch may pin, balanced
};

// Of what a microbatch computes again.
inline Size exposed_in_fill(Size compute_ps, const LadderOptions& options) {
  return {compute_ps.fixed / options.microbatches, compute_ps.per_row / options.microbatches};
}
// Beyond that, in ps.
inline std::int64_t slack_in_steady_state(const LadderOptions& options) {
  return options.slack_ns * kPsPerNs / options.microbatches * (options.microbatches - 1);
}

std::vector<LadderRung> build_ladder(const ActionCatalogue& catalogue,
                                     const LadderOptions& options);

// Of one microbatch, on a lane with so many rows.
std::int64_t held_by(const LadderRung& rung, const ActionCatalogue& catalogue, std::int64_t rows);

// What an entry holds between its last forward and first backward user under an action.
Size held(const CatalogueEntry& entry, std::int32_t action);

}  // namespace tidemark
