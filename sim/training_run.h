// A training run on every card of a job: iteration after iteration under a routing source, with
// out-of-memory errors, restarts and the work they lose.
//
// Each iteration, all units are evaluated side by side: peak allocated bytes of every card, then
// times. Of each stage the card with the highest peak is replayed through the emulated allocator,
// on two iterations of this routing (what the cache holds of earlier, different iterations is not
// carried over); if its segments do not fit, the run is out of memory there. Cards of one stage
// differ in their activations only. What the others reserve is bounded by a rule of thumb
// (sim/reserved_bound.h), but not where a policy decides: then orders of requests differ too.
//
// An iteration that runs out of memory ends at that moment. With a restart, the time until then,
// the restart, and the iterations since the last checkpoint, done again, are lost. A step that is
// run again (Rerun) is no loss: its iteration takes as long as both passes. Nor is one that swaps
// what an allocation lacks (sim/rescue_swap.h): it takes longer.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "models/job.h"
#include "sim/card_memory.h"
#include "sim/lane_engine.h"
#include "sim/lane_peaks.h"
#include "sim/policy.h"
#include "sim/program.h"
#include "traces/routing_source.h"

namespace tidemark {

// A card: of a unit, a stage and a lane.
struct CardId {
  std::int32_t unit = 0;
  std::int32_t stage = 0;
  std::int32_t lane = 0;
  friend auto operator<=>(const CardId&, const CardId&) = default;
};

struct RunOutOfMemory {
  std::int64_t iteration = 0;
  CardId card;
  std::int64_t time_ns = 0;      // in the iteration
  std::int32_t microbatch = -1;  // -1: outside a pass
  std::int32_t layer = -1;       // -1: outside layers
  std::string storage;
  Bytes requested;
  Bytes short_by;  // what it would reserve on a card without limit, less the limit
};

struct IterationRecord {
  std::int64_t iteration = 0;
  std::int64_t attempt = 0;        // more than 0: after it ran out of memory
  std::int64_t time_ns = 0;        // until its end, or until it ran out of memory
  Bytes peak_allocated;            // of all cards
  Bytes peak_reserved;             // of the emulated cards
  CardId hottest;                  // that reserves most
  std::int64_t alloc_retries = 0;  // most of an emulated card, see CardMemory
  double imbalance = 1;            // most rows of a card over the mean, of any microbatch and layer
  bool out_of_memory = false;
  bool run_again = false;    // see Rerun
  Bytes swapped;             // to the host and back, by all emulated cards: see sim/rescue_swap.h
  std::int64_t swap_ns = 0;  // of its time
};

// A step of which all cards find at its end that it did not hold what was routed: it is run once
// more with another program, in which nothing is optional.
struct Rerun {
  Program program;
  // Of all units.
  std::function<bool(const std::vector<LaneRows>&)> needed;
};

// Which iteration of the routing an attempt sees.
std::int64_t drawn_iteration(std::int64_t iteration, std::int64_t attempt);

// The most of any iteration.
struct StageReserved {
  Bytes emulated;              // of the stage's emulated cards
  std::optional<Bytes> bound;  // on all its cards; none where none is known
};

struct CardPeak {
  CardId card;
  Bytes peak;  // allocated
};

struct CardSummary {
  Bytes min, mean, max, p999;     // peak allocated over the run, of all cards
  std::vector<CardPeak> hottest;  // ten
  std::int64_t mean_wait_ns = 0;  // for later members of its groups, an iteration
  std::int64_t max_wait_ns = 0;
};

struct RunResult {
  std::int64_t units = 1;  // evaluated; one stands for all where all cards do the same work
  std::vector<IterationRecord> iterations;  // in the order they were run
  std::vector<RunOutOfMemory> out_of_memory;
  std::int64_t finished = 0;  // iterations, each once
  std::int64_t total_ns = 0;  // with everything that is lost
  std::int64_t lost_ns = 0;   // partial iterations, restarts, repeated iterations
  // Out of memory without a restart, on routing that would be the same again, or in one iteration
  // three times in a row: the run could not go on.
  bool stuck = false;
  bool interrupted = false;
  CardSummary cards;
  std::vector<StageReserved> stages;
  Bytes limit;  // of a card's segments

  // The stage with the highest bound; none where that of a stage is not known.
  std::optional<std::int64_t> highest_bound() const;

  double tokens_per_second(const Job& job) const;  // useful ones
};

class TrainingRun {
 public:
  // Of a program with optional actions; `policy`, which outlives this, decides about them.
  // `rescues`: a card whose allocation fails swaps.
  TrainingRun(const Job& job, const HardwareProfile& profile, const RoutingSource& routing,
              bool alike, Program program, const Policy& policy,
              std::optional<Rerun> rerun = std::nullopt, bool rescues = false);
  // Of a program in which nothing is optional.
  TrainingRun(const Job& job, const HardwareProfile& profile, const RoutingSource& routing,
              bool alike, Program program);
  // `alike`: all cards of a stage do the same work, so one unit stands for all. Requires: a
  // validated job; `routing` of its shape outlives this.
  TrainingRun(const Job& job, const HardwareProfile& profile, const RoutingSource& routing,
              bool alike);
  ~TrainingRun();

  // `on_iteration` sees each record; false stops the run.
  RunResult run(const RunSpec& spec,
                const std::function<bool(const IterationRecord&)>& on_iteration);
  // Peak allocated of every card in the last iteration that was run, by unit, stage and lane.
  std::vector<CardPeak> card_peaks() const;
  // Of the last iteration that was run, of each evaluated unit; none without a policy.
  const std::vector<UnitDecisions>& decisions() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Whether routing gives all cards of a stage the same work, whatever the iteration.
bool cards_are_alike(const Job& job, const RoutingInput& routing);

}  // namespace tidemark
