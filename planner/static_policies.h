// Policies that are settings of the job: what people run today.
//
//   as-given             the job's own flags
//   keep-everything      nothing recomputed, nothing offloaded
//   full-recompute       every layer a checkpoint (--recompute-granularity full)
//   block-recompute:N    the first N layers of each chunk (--recompute-method block)
//   selective:MODULES    Megatron's --recompute-modules, joined by +
//   offload:MODULES      Megatron's --offload-modules (fine-grained activation offloading)
//   ratio-offload:A      a ratio A of what a microbatch keeps to the host, as Megatron-Kwai does
//   capacity:F           experts padded to a capacity factor F; rows above it are dropped
#pragma once

#include <string>
#include <vector>

#include "models/job.h"

namespace tidemark {

struct StaticPolicy {
  std::string name;       // as given: "selective:core_attn+moe_act"
  std::string describes;  // in words
  Job job;
};

// Throws: InputError for a policy that does not exist, a module that the model lacks, or settings
// that contradict the job's.
StaticPolicy static_policy(const Job& job, const std::string& text);

// "name" or "name:ARGUMENT", for help texts.
std::vector<std::string> static_policy_forms();

}  // namespace tidemark
