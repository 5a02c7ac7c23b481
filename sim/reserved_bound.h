// A bound from above on what the lanes of a stage reserve that are not emulated.
//
// Lanes differ in the rows that their experts receive, and so in the sizes of routed requests, but
// not in the order of requests. What a lane reserves beyond its peak allocated is the free space
// that no request of that moment fits into. All of a stage's lanes have the same pattern of it,
// that of the emulated lane, give or take luck: whether a working set (what one layer's experts
// hold at once, a handful of routed requests; of the stage with the loss: its logits) finds its
// hole again or takes new segments.
//
//   bound = peak allocated + (reserved - peak allocated of the emulated lane)
//           + max(10 largest routed requests of the lane, 1.5 largest other requests of the stage)
//
// The two factors are empirical, from 700 random cards; best fit has no useful bound that can be
// proved. On 1,000 others the bound was never below, by 3.6 % above in the median
// (tests/property/reserved_bound_test.cpp); nine tenths of that is the last term. Of all 10,916
// lanes of 500 such jobs that are not emulated it was below on 13, by up to 1.9 %, in the median
// 4.0 % above; as the most of any lane of a stage, on 2 stages, by up to 0.7 %. Of 160
// jobs with other schedules it was below on 13 of 683 lanes of DualPipe-V, by up to 1.7 %, on 2 of
// 384 of ZB-V, on 3 of 266 with offloading, and on none of 1,286 of ZB-H1 and combined-1f1b. With
// another setting of the allocator it was below by up to 8.9 %, so it is for the default ones only.
//
// What is left is luck with a long tail, of which little can be had for less than an emulation.
// With 12 routed requests one of those lanes was below, at 4.7 %. Statistics of a lane's rows
// (largest, mean, by layer, how much they vary) explain 17 % of the variance of what it leaves
// unused, for Qwen3 2 %. The mean of two emulated lanes and 12 routed requests: none below, at
// 4.6 %; of eight, the hottest and those whose rows vary most, and 10: one below, at 3.8 %.
//
// Of a lane with the same rows as the emulated one the sequence is the same, and so is what it
// reserves.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "models/operator_graph.h"
#include "traces/lane_rows.h"

namespace tidemark {

struct EmulatedLane {
  const LaneRows& rows;  // of its unit
  std::int64_t lane = 0;
  Bytes unused;    // reserved at most, less allocated at most, on a card without limit
  Bytes reserved;  // at most, on its own card: less where cached blocks had to be given back
};

// `rows`, `peak_allocated`: of a unit, the emulated lane's or another; the latter [lane], with the
// resident memory. Requires: all lanes run the same sequence.
// Returns: [lane]; kNoLimit where no bound is known.
std::vector<Bytes> reserved_bounds(const Job& job, const OperatorGraph& graph, const LaneRows& rows,
                                   std::span<const Bytes> peak_allocated,
                                   const EmulatedLane& emulated);

}  // namespace tidemark
