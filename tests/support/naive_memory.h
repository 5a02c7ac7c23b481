// Two more ways to a card's memory, sharing no code with sim/memory_sequence and
// sim/memory_profile.
//
// `replay` walks a memory sequence with a map of what is live. `run_schedule` does not look at the
// sequence at all: it runs Megatron's forward_backward_pipelining_without_interleaving with objects
// that give their bytes back when the last name for them goes, as Python's do.
#pragma once

#include <cstdint>
#include <vector>

#include "models/operator_graph.h"
#include "sim/decisions.h"
#include "sim/memory_sequence.h"
#include "traces/lane_rows.h"

namespace tidemark {

struct NaiveMemory {
  std::int64_t peak = 0;         // of an iteration that follows another
  std::int64_t first_peak = 0;   // of the first one
  std::int64_t left_behind = 0;  // bytes live after an iteration
  std::int64_t first_peak_event =
      -1;  // replay only: where `peak` is first reached; -1: at the start
  // run_schedule only: the most bytes live during each operator, [step][operator of the slot]; an
  // exchange has one "operator".
  std::vector<std::vector<std::int64_t>> high_water;
};

// Throws: std::logic_error when something is allocated twice or freed without being live.
NaiveMemory replay(const Job& job, const OperatorGraph& graph, const MemorySequence& sequence,
                   const LaneRows& rows, std::int64_t lane);

// The events of actions that are taken, as if nothing had been optional.
MemorySequence decided(const MemorySequence& sequence, const StageDecisions& decisions);

NaiveMemory run_schedule(const Job& job, const OperatorGraph& graph, std::int64_t stage,
                         const LaneRows& rows, std::int64_t lane);

}  // namespace tidemark
