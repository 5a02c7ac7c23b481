// One job under several pipeline schedules: time, bubble, microbatches in flight, memory.
#pragma once

#include "tools/command.h"

namespace tidemark {

// `--schedules A,B,C`: names of job files, "interleaved" (Megatron's virtual stages) and "combined"
// (those with --overlap-moe-expert-parallel-comm). Combined slots come in both orders
// (combined_slot_order). Routing is balanced. A schedule that the job cannot have is a line that
// says why.
Report compare_schedules(const Arguments& arguments);

}  // namespace tidemark
