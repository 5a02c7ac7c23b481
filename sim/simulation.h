// One training iteration of a job on a hardware profile: how long it takes, what each stage holds,
// when it peaks, and whether it fits. Steady state: the iteration after others like it; the first
// iteration's peak is kept beside it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sim/lane_engine.h"
#include "sim/memory_profile.h"
#include "sim/program.h"
#include "sim/resident_memory.h"

namespace tidemark {

struct StageResult {
  std::int64_t parameters = 0;            // of one card
  std::int64_t optimizer_parameters = 0;  // whose optimizer state the first card keeps
  std::int32_t in_flight_peak = 0;
  std::vector<ResidentItem> resident;
  Bytes resident_bytes;  // with optimizer moments
  Bytes moment_bytes;    // made in the first optimizer step
  Bytes carried_over;    // activations and state that the last microbatch leaves behind
  MemorySequence sequence;
  StageMemory memory;  // [lane], without the resident memory
  std::int64_t hottest_lane = 0;
  std::int64_t peak_time_ns = 0;  // when the hottest lane's peak is reached, in the iteration
  StageTimes times;

  Bytes allocated_after_iteration() const { return resident_bytes + carried_over; }
  // The highest of all lanes.
  Bytes peak_allocated() const;
  // Of an iteration before the moments exist, or what its optimizer step leaves if that is more.
  Bytes peak_allocated_first_iteration() const;
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
  Bytes capacity;          // of a card
  Bytes reserved_outside;  // context of the driver, outside the allocator

  // The stage with the highest peak.
  std::int64_t tightest_stage() const;
  // Capacity left at that peak; negative if the job does not fit.
  Bytes headroom() const;
};

// A simulation with the program it ran, so that reports can look operators and storages up.
struct Simulation {
  Program program;
  LaneRows rows;
  SimulationResult result;
};

// The job with what it leaves to the platform filled in: the attention backend.
Job on_platform(Job job, const HardwareProfile& profile);

// Requires: a validated job. `recorder` sees every operator of the run.
Simulation simulate(const Job& job, const HardwareProfile& profile, const RoutingCounts& routing,
                    Recorder* recorder = nullptr);

}  // namespace tidemark
