// Zero-bubble pipelines with one chunk a stage (Qi et al., arXiv 2401.10241, section 3.1): 1F1B
// with the backward in two, where the gradients of weights fill what would be bubbles. F, B and W
// are the times of a stage's forward, input gradient and weight gradient.
//
//         microbatches in flight   weight gradients owed   bubble
//   H1    p - r                    up to r                 (p - 1)(F + B - W)
//   H2    2 (p - r) - 1            up to 2 r               (p - 1)(F + B - 2 W)
//
// In flight: forwards run minus input gradients finished. H2's bubble is that within a stage, from
// its first slot to its last: stages begin and end one after the other, the optimizer must not wait
// for all of them.
#pragma once

#include "sim/schedule.h"

namespace tidemark {

// Require: stages >= 1, microbatches >= 1.
SlotOrders build_zb_h1(std::int32_t stages, std::int32_t microbatches);
SlotOrders build_zb_h2(std::int32_t stages, std::int32_t microbatches);

}  // namespace tidemark
