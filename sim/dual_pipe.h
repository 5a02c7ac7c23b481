// DualPipe and DualPipeV (deepseek-ai/DualPipe, dualpipe/dualpipe.py and dualpipev.py): a forward
// and a backward of two microbatches run as one slot for most of the iteration.
//
// DualPipe: two copies of the model (Placement::kBidirectional), p even, m even, m >= 2 p; half the
// microbatches enter at each end. At most p + 1 chunks of 1/p in flight on every stage, bubble
// (p/2 - 1)(F&B + B - 3 W), where B is a whole backward. DualPipeV: one copy in a V, m >= 2 p; at
// most 2 p + 1 half-stages, the same bubble with 2 p for p.
//
// A backward that the sources run whole beside a forward is the fused slot and, right after it, its
// weight gradients.
#pragma once

#include "sim/schedule.h"

namespace tidemark {

SlotOrders build_dual_pipe(std::int32_t stages, std::int32_t microbatches);
SlotOrders build_dual_pipe_v(std::int32_t stages, std::int32_t microbatches);

}  // namespace tidemark
