// BaGuaLu-2's published OffloadManager as a policy of runs: the first baseline that adapts.
//
// When the first MoE layer of a chunk's forward has shown the rows of a microbatch, the
// microbatch's bytes are predicted as if all its layers received as many, and
// planner/bagualu2_offload.h says which part of them to offload. Offloaded are, until that part is
// reached, storages of at least 1 MiB that are contiguous and saved by one of the default modules
// (GroupedLinear, LayerNormLinear, swiglu, permutation): the largest first, or the smallest first
// if the part is more than a half. Nothing is of the last chunk of the last stage. Nothing is
// recomputed. The limit is what the card leaves for activations under balanced routing.
//
// Idealized in its favour: the part is copied, where the published code copies a fixed budget of
// bytes; storages of the first layer that left before its gate are decided with the others; a lane
// that holds less does as the fullest, for which the part is worked out; no ping-pong buffers.
// Storages go as a whole, there cut at the byte.
#pragma once

#include "hw_profiles/hardware_profile.h"
#include "models/job.h"
#include "planner/managed_run.h"

namespace tidemark {

ManagedRun bagualu2_offload_run(const Job& job, const HardwareProfile& profile);

}  // namespace tidemark
