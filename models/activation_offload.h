// Megatron's fine-grained activation offloading
// (core/pipeline_parallel/fine_grained_activation_offload.py) as a change of a finished graph.
//
// A group is a module in one layer. When its forward is done, what it saved for backward is copied
// to the host; on the card it dies with its last user in the forward, Python's names for it
// included. It comes back into storages of their own, in reverse order: one group whenever the
// backward of a group is done, so that each is on its way one group early.
//
//   forward:   attn | offload | mlp ..          backward:  .. mlp.backward | reload | attn.backward
//
// The first reload of a chunk is issued when its backward begins. Megatron issues it when the
// backward before ends: a slot earlier, so one group's bytes are missing here in the slot between.
// With a limit of copies in flight, compute waits after each copy for the one so many before it, of
// the same module; Megatron counts on across slots, here each slot begins with none.
// On the last virtual stage, whose backward follows at once, the last group of each module stays.
#pragma once

#include <vector>

#include "models/operator_graph.h"

namespace tidemark {

// `stage`: the pipeline stage that `graph` is of; `groups`: in the order of the forward.
OperatorGraph offload_activations(OperatorGraph graph, const std::vector<OffloadGroup>& groups,
                                  const Job& job, std::int64_t stage);

}  // namespace tidemark
