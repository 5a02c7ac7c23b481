// The allocations and frees of one card of a stage in one iteration, in issue order.
//
// PyTorch moves its counters on the CPU, in program order, whatever the device does meanwhile. So
// one sequence serves the allocated peak, `explain`, and an emulation of the allocator. Inside a
// slot it follows the lifetimes of the operator graph; between slots it follows the names that
// Megatron's schedules and modules hold:
//
//   input_tensor, output_tensor, output_tensor_grad, input_tensor_grad   locals of the schedule
//   input_tensors, output_tensors (interleaved: output_tensor_grads)     lists until the backward
//   decoder.input_tensor                                                 until the next forward
//   dispatcher state (StorageRole::kModuleState)                         until the next forward
//
// Megatron-Kwai's lists keep zero-byte stand-ins instead of inputs and outputs, which then die with
// what autograd saves; what is offloaded (sim/ratio_offload.h) is freed on the way.
//
// Schedules with weight gradients of their own (zero bubble, DualPipe) name less: an input from its
// arrival until its backward, an output until it is sent, gradients until they are used or sent,
// and what weight gradients read until they have run; nothing is carried over into the next
// iteration.
//
// An output's autograd graph refers to the stage's input, and the input to its gradient. An
// operator allocates all it writes, then frees what it was the last to refer to.
#pragma once

#include <cstdint>
#include <vector>

#include "models/large_vector.h"
#include "models/operator_graph.h"
#include "sim/ratio_offload.h"
#include "sim/schedule.h"

namespace tidemark {

// Microbatch of what the previous iteration left behind.
constexpr std::int32_t kPreviousIteration = -1;

struct MemoryEvent {
  std::int32_t step = 0;     // of the stage's schedule
  std::int32_t op = 0;       // position in the slot; 0 for transfers
  std::int32_t storage = 0;  // of the stage's graph
  std::int32_t microbatch = 0;
  bool allocates = false;
  std::int32_t action = -1;  // only where the microbatch takes this optional action; -1: always
};

struct MemorySequence {
  LargeVector<MemoryEvent> events;      // of an iteration
  std::vector<StorageId> carried_over;  // live when an iteration (but the first) begins, and ends
};

// `offload`: of each chunk, where lists keep stand-ins; empty: nothing is offloaded.
// Throws: std::logic_error if anything but what an iteration carries over would stay allocated.
MemorySequence build_memory_sequence(const OperatorGraph& graph, const Schedule& schedule,
                                     std::int32_t stage,
                                     const std::vector<ChunkOffload>& offload = {});

}  // namespace tidemark
