// Zero-bubble pipelines with two chunks a stage in a V (Placement::kV): the last stage turns a
// microbatch around by itself, and what a stage holds evens out over the stages.
//
// ZB-V (Qi et al., arXiv 2401.10241, section 6): each stage runs what it can, backwards before
// forwards before weight gradients, within the memory of 1F1B: p microbatches, or 2 p chunks. What
// a chunk holds counts until its weight gradients: those need nearly all of it (32 h of 34 h a
// token in the authors' own scheduler), and the gradients that they use besides. The paper's
// schedule, which has no bubble when F = B = W, lets input gradients give back half; then a stage
// of Llama-2 7B would allocate 30 % more than under 1F1B, where measured ZB-V takes 11 %
// (validation/schedules_primus).
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
