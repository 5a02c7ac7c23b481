// Zero-bubble pipelines with two chunks a stage in a V (Placement::kV): the last stage turns a
// microbatch around by itself, and what a stage holds evens out over the stages.
//
// ZB-V (Qi et al., arXiv 2401.10241, section 6): each stage runs what it can, backwards before
// forwards before weight gradients, within the memory of 1F1B: p microbatches, or 2 p chunks. An
// input gradient gives back half of what its chunk holds, the weight gradient the rest. No bubble
// when F = B = W.
//
// V-Half and V-Min (Qi et al., arXiv 2405.15362, section 3): one microbatch's passes keep fixed
// distances, so that its neighbours, six slots later, fit in between; the distances set the memory.
// Half and a third of 1F1B's memory, half and two thirds of its bubble when F = B = W.
#pragma once

#include "sim/schedule.h"

namespace tidemark {

// Require: stages >= 2, microbatches >= 1.
SlotOrders build_zb_v(std::int32_t stages, std::int32_t microbatches);
SlotOrders build_v_half(std::int32_t stages, std::int32_t microbatches);
SlotOrders build_v_min(std::int32_t stages, std::int32_t microbatches);

}  // namespace tidemark
