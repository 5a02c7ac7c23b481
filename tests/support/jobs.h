// Jobs that several tests share: the vendor's runs whose logs are public, and one small enough to
// calculate by hand.
#pragma once

#include <cstdint>

#include "models/job.h"
#include "traces/routing.h"

namespace tidemark {

// DeepSeek-V3 671B on 1,024 BW1000: TP4 with sequence parallel, PP8 (5 + 7 * 8 layers), EP64, 64
// microbatches of 4,096 tokens, experts padded to their capacity, 8-bit all-to-all, core 0.13.
Job deepseek_v3_1024();

// Qwen3-30B-A3B on 8 BW1100: EP8, dropless.
Job qwen3_30b_a3b();

// Qwen3-32B on 32 BW1000: TP4 with sequence parallel, PP4, sequences of 8,192.
Job qwen3_32b();

// Qwen3-8B on 8 BW1000: TP2 with sequence parallel.
Job qwen3_8b();

// Llama-2 70B on 64 BW1000: TP4 with sequence parallel, PP8, fused gather-GEMM linears.
Job llama2_70b();

// Two stages of one dense layer, two microbatches of [16, 64] in bf16: 2,048 bytes an activation.
Job two_stage_job();

// Two stages on BW1000 of layers of Qwen3-30B-A3B, eight lanes each (EP8), one unit.
Job small_moe_job(std::int64_t layers, std::int64_t microbatches);

// Balanced, but the experts of the first expert-parallel rank receive `ratio` times as many rows,
// in every microbatch and layer.
RoutingCounts spiked_routing(const Job& job, double ratio);

}  // namespace tidemark
