// What PyTorch's counters show on one card: its start-up, two iterations and the optimizer step
// between them replayed through the emulated allocator. Later iterations repeat the second.
//
// Start-up as Megatron does it: every weight by itself, the contiguous buffers they move into, then
// the optimizer's main parameters, each cloned in bf16 first. What libraries and frameworks keep
// for ever is allocated when the first iteration begins, dummy gradients with the first gradient of
// a weight of their size, from what is free by then; the moments in its optimizer step, after
// the fp32 copies of gradients that an optimizer may make, which go when the next iteration begins.
//
// Where collectives record streams (see AllocatorConstants), a block that one has used is reused
// only at the first request that the CPU makes after the communicator has done all it was given
// when the block was freed. A CPU that runs ahead of the device therefore reserves more; before it
// runs out of memory it waits for the device.
#pragma once

#include <cstdint>
#include <optional>

#include "models/job.h"
#include "sim/allocator_snapshot.h"
#include "sim/caching_allocator.h"
#include "sim/decisions.h"
#include "sim/issue_clock.h"
#include "sim/memory_sequence.h"
#include "sim/resident_memory.h"
#include "traces/lane_rows.h"

namespace tidemark {

struct CardMemory {
  Bytes after_first_iteration;  // allocated
  Bytes after_iteration;        // of a later one
  Bytes peak_first_iteration;   // allocated, until the end of its optimizer step
  Bytes peak;                   // allocated, ever
  Bytes peak_in_pass;           // allocated, in a forward or backward of a later iteration
  Bytes gradient_copies;        // fp32, from the optimizer step to the next iteration
  Bytes reserved_first_iteration;
  Bytes reserved;  // ever
  // Requests of a later iteration that found no room before the CPU had waited for the device and
  // cached blocks had gone back (PyTorch's num_alloc_retries). No engine counts that time.
  std::int64_t alloc_retries = 0;

  bool peaks_in_optimizer_step() const { return gradient_copies > Bytes() && peak > peak_in_pass; }
};

struct OutOfMemory {
  std::int32_t iteration = 0;  // from 1; 0: at start-up
  std::int64_t event = -1;     // index in the memory sequence; -1: outside a pass
  Bytes requested;
  Bytes allocated;
  Bytes reserved;
};

struct CardReplay {
  CardMemory memory;
  std::optional<OutOfMemory> out_of_memory;  // the replay ended there
  Bytes swapped;  // to the host and back in a later iteration, see sim/rescue_swap.h
};

// One lane of a stage.
struct Card {
  const Job& job;
  std::int64_t stage = 0;
  const OperatorGraph& graph;
  const std::vector<Step>& steps;
  const MemorySequence& sequence;
  const std::vector<ResidentItem>& resident;
  const LaneRows& rows;
  std::int64_t lane = 0;
  bool collectives_record_streams = false;
  const StageClock* clock = nullptr;            // of that lane; null where no stream is recorded
  std::int64_t optimizer_rank = 0;              // see gradient_buffers
  Bytes capacity = CachingAllocator::kNoLimit;  // for the threshold of garbage collection
  const StageDecisions* decisions = nullptr;    // null: no optional action is taken
  bool rescues = false;                         // failed allocations: sim/rescue_swap.h
};

// Replays a card whose segments may take `limit` together.
CardReplay replay_card(const Card& card, Bytes limit);

// The allocator right after event `event` of the second iteration (-1: when it begins), with the
// trace of that iteration. On a card without limit.
AllocatorSnapshot snapshot_card(const Card& card, std::int64_t event);

}  // namespace tidemark
