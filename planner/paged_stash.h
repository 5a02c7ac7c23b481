// Megatron-Core's paged stash as a policy of runs: the closest that Megatron has to memory that
// adapts to tokens. Source: NVIDIA/Megatron-LM docs/user-guide/features/paged_stash.md,
// core/transformer/moe/{paged_stash,token_dispatcher}.py.
//
//   Capacity   whatever experts read and write is allocated for int(F * balanced) rows, F being
//              --moe-expert-rank-capacity-factor and `balanced` what a rank receives of a layer
//              when routing is balanced. So the CPU never waits for counts, and the card's memory
//              does not depend on the routing.
//   Stash      what grouped products keep for backward is copied, as many rows as there are in
//              pages of 64, into a buffer for tensors of that width, and is gone until its
//              backward. A buffer has pages for int(B * n) rows, n the most that it holds under
//              balanced routing, B --moe-paged-stash-buffer-size-factor-cuda.
//   Overflow   when any card has received more rows than its capacity, or run out of pages, the
//              step is run once more, dropless and without stash: it takes the time of both passes
//              and the memory of the second.
//
// Left out: the spill to host memory, which is off by default; that the first iteration measures
// instead of stashing; that the last stage does not stash a layer whose backward comes next;
// CUDA graphs. In its favour: stashed tensors are freed at once, in Megatron when the next layer's
// experts begin; copies run beside everything else. Not so: the first pass computes on rows beyond
// the capacity, too, which Megatron drops. Megatron asks for HybridEP; here the job's own
// dispatcher serves.
#pragma once

#include <cstdint>
#include <vector>

#include "hw_profiles/hardware_profile.h"
#include "models/job.h"
#include "planner/managed_run.h"
#include "sim/training_run.h"
#include "traces/lane_rows.h"

namespace tidemark {

constexpr std::int64_t kStashPageRows = 64;

struct PagedStash {
  double capacity_factor = 1;   // F
  double buffer_factor = 1.10;  // B, Megatron's default
};

// A buffer on every card of a stage.
struct StashBuffer {
  std::int64_t row_bytes = 0;
  std::vector<std::vector<std::int64_t>> moe_layers;  // [chunk]: of each tensor that it takes
  std::int64_t pages = 0;
};

// What the cards of a job hold for it, and when that is too little.
struct StashLimits {
  Schedule schedule;
  std::int64_t moe_layers = 0;                   // of the model
  std::int64_t capacity_rows = 0;                // of a card, of one layer and microbatch
  std::vector<std::vector<StashBuffer>> stages;  // by width

  // Pages that some card of a stage needs at once.
  std::int64_t pages_in_use(std::size_t stage, const StashBuffer& buffer,
                            const LaneRows& rows) const;
  // Of a unit.
  bool exceeded_by(const LaneRows& rows) const;
};

struct PagedStashRun {
  ManagedRun first;  // decides the same always
  StashLimits limits;
  Rerun rerun;
};

// Requires: a job with experts that neither pads nor drops; factors > 0.
PagedStashRun paged_stash_run(const Job& job, const HardwareProfile& profile,
                              const PagedStash& stash);

}  // namespace tidemark
