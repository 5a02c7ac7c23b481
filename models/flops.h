// Model FLOPs of an iteration as Megatron-LM counts them (training.py,
// num_floating_point_operations): forward and backward, causal attention counted half, the router
// and any recompute left out. TFLOP/s per card in Megatron's logs are this over time and cards.
#pragma once

#include "models/job.h"

namespace tidemark {

Flops model_flops_per_iteration(const Job& job);

}  // namespace tidemark
