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
// (tests/property/reserved_bound_test.cpp); nine tenths of that is the last term. On all 6,136
// lanes of 250 such jobs it was below on 11, by up to 2.1 %: luck has a long tail (of one stage's
// lanes with 33 GiB each most leave 2 to 4 GiB unused, one 7.2 GiB), so that a smaller last term is
// wrong more often, and one that covers all of these lanes, 14 routed requests, lies 4.7 % above.
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
  std::int64_t lane = 0;
  Bytes peak_allocated;
  Bytes peak_reserved;
};

// `peak_allocated`: [lane], with the resident memory. Returns: [lane].
std::vector<Bytes> reserved_bounds(const Job& job, const OperatorGraph& graph, const LaneRows& rows,
                                   std::span<const Bytes> peak_allocated,
                                   const EmulatedLane& emulated);

}  // namespace tidemark
