// One training iteration of a job on a hardware profile: how long it takes, what each stage holds,
// when it peaks, and whether it fits. Steady state: the iteration after others like it; the first
// iteration's peak is kept beside it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "sim/card_memory.h"
#include "sim/lane_engine.h"
#include "sim/memory_profile.h"
#include "sim/outside_memory.h"
#include "sim/program.h"
#include "sim/resident_memory.h"

namespace tidemark {

struct StageResult {
  std::int64_t parameters = 0;  // of one card
  std::int32_t in_flight_peak = 0;
  std::vector<ResidentItem> resident;
  Bytes resident_bytes;  // with optimizer moments
  Bytes moment_bytes;    // made in the first optimizer step
  Bytes carried_over;    // activations and state that the last microbatch leaves behind
  MemorySequence sequence;
  StageMemory memory;  // [lane], without the resident memory
  std::int64_t hottest_lane = 0;
  Bytes host_memory;              // pinned, for what the hottest lane offloads
  std::int64_t peak_time_ns = 0;  // when the hottest lane's peak is reached, in the iteration
  StageTimes times;

  // The hottest lane: on a card without limit if it does not fit, so that it shows what it needs.
  CardReplay card;
  bool gives_back = false;  // it fits because PyTorch gives cached blocks back
  // On what any lane reserves on a card without limit (sim/reserved_bound.h); none where none is
  // known.
  std::optional<Bytes> reserved_bound;
  std::optional<OutOfMemory> out_of_memory;

  Bytes allocated_after_iteration() const { return card.memory.after_iteration; }
  Bytes peak_allocated() const { return card.memory.peak; }
  Bytes peak_allocated_first_iteration() const { return card.memory.peak_first_iteration; }
  Bytes peak_reserved() const { return card.memory.reserved; }
  Bytes peak_reserved_first_iteration() const { return card.memory.reserved_first_iteration; }
  // Blocks' unsplit tails: what the allocator counts beyond the sums of requests.
  Bytes tails_after_iteration() const {
    return card.memory.after_iteration - resident_bytes - carried_over;
  }
  // Of one lane; exact for the hottest, the others differ from it by their activations.
  Bytes lane_peak(std::int64_t lane) const;
};

struct IterationResult {
  std::int64_t time_ns = 0;
  std::int64_t tokens = 0;
  Flops model_flops = 0;
  double tflops_per_card = 0;  // Megatron's figure
  double mfu = 0;              // of the profile's bf16 peak
  double bubble_fraction = 0;  // share of the pipeline's card time in which no slot runs
};

struct SimulationResult {
  IterationResult iteration;
  std::vector<StageResult> stages;
  Bytes capacity;                    // of a card
  std::vector<OutsideItem> outside;  // what PyTorch's allocator does not count

  // The stage that reserves most.
  std::int64_t tightest_stage() const { return static_cast<std::int64_t>(tightest()); }
  // What segments may take together.
  Bytes limit() const;
  // The limit less the most that a card reserves. Negative: the job does not fit.
  Bytes headroom() const { return limit() - stages[tightest()].card.memory.reserved; }
  bool fits() const;
  // It fits, and some stage only because PyTorch gives cached blocks back.
  bool gives_back() const;

 private:
  std::size_t tightest() const;
};

// A simulation with the program it ran, so that reports can look operators and storages up.
struct Simulation {
  Program program;
  LaneRows rows;
  SimulationResult result;
};

// What a card holds between iterations, reload buffers of offloading included.
std::vector<ResidentItem> resident_items(const Job& job, const HardwareProfile& profile,
                                         const StageProgram& program, std::int64_t stage,
                                         std::int64_t optimizer_rank = 0);
// What a card's segments may take together.
Bytes segment_limit(const Job& job, const HardwareProfile& profile);
// Whether the allocator keeps freed blocks until another stream is done with them.
bool records_streams(const Job& job, const HardwareProfile& profile);

// The job with what it leaves to the platform filled in: the attention backend.
// Throws: InputError for expandable segments of the allocator on ROCm.
Job on_platform(Job job, const HardwareProfile& profile);

// Requires: a validated job. `recorder` sees every operator of the run.
Simulation simulate(const Job& job, const HardwareProfile& profile, const RoutingCounts& routing,
                    Recorder* recorder = nullptr);
// Of a program of the job, on its platform.
Simulation simulate(const Job& job, const HardwareProfile& profile, const RoutingCounts& routing,
                    Program program, Recorder* recorder = nullptr);

// The highest peak allocated of all ranks: ranks that share a stage's weights own different pieces
// of its optimizer state, on which the allocator's blocks depend.
struct RankPeak {
  Bytes peak;
  std::int64_t stage = 0;
  std::int64_t optimizer_rank = 0;  // in the DP * CP group
};
// Blocks that collectives have recorded count as reusable at once. Requires: `simulation` of the
// job on the profile.
RankPeak highest_peak(const Job& job, const HardwareProfile& profile, const Simulation& simulation);

}  // namespace tidemark
