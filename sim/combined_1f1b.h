// 1F1B whose steady phase runs each forward and the backward after it as one slot, without virtual
// stages.
//
// Slot i of stage r runs backward i beside forward w(r) + i. Backward i needs slot i of stage
// r + 1; that needs the forward which stage r has run in slot w(r + 1) - w(r) + i. With the warm-up
// of 1F1B, one forward less a stage, neighbours would take turns: slot i of r after slot i of
// r + 1 after slot i - 1 of r. With two forwards less a stage it is after slot i - 2, and both are
// always busy. The last stage needs one, since a microbatch does not run forward and backward in
// one slot:
//
//   w(r) = 2 (p - r - 1) + 1 forwards of warm-up, 2 (p - r) microbatches in flight
//
// That is Megatron's interleaved warm-up with overlap_moe_expert_parallel_comm for one chunk;
// Megatron itself combines slots with virtual stages only. The vendor's three-way overlap and
// BaGuaLu-2 overlap in plain 1F1B; how many forwards they run ahead is not published.
#pragma once

#include "sim/schedule.h"

namespace tidemark {

// With `delays_weights` each fused slot leaves weight gradients to a slot of their own right behind
// it.
SlotOrders build_combined_1f1b(std::int32_t stages, std::int32_t microbatches, bool delays_weights);

}  // namespace tidemark
