#include "planner/decided_memory.h"

#include <algorithm>

#include "sim/caching_allocator.h"
#include "sim/issue_clock.h"
#include "sim/lane_engine.h"
#include "sim/parallel.h"
#include "sim/simulation.h"

namespace tidemark {
namespace {

// That come and go once the pipeline is full.
constexpr std::int32_t kSteadyMicrobatches = 8;

std::int32_t enough_microbatches(const Schedule& schedule) {
  if (schedule.chunks > 1) return schedule.microbatches;
  std::int32_t in_flight = 0;
  for (std::size_t s = 0; s < schedule.stages.size(); ++s) {
    in_flight = std::max(in_flight, peak_in_flight(schedule, static_cast<std::int32_t>(s)));
  }
  return std::min(schedule.microbatches, in_flight + kSteadyMicrobatches);
}

}  // namespace

std::vector<CardMemory> decided_memory(const Job& job, const HardwareProfile& profile,
                                       const Program& program, const LaneRows& rows,
                                       const UnitDecisions& decisions, CpuPace pace) {
  const bool has_clocks =
      pace == CpuPace::kAhead;  // decisions may copy, wherever collectives record
  ClockRecorder clocks(program, std::vector<std::int64_t>(program.stages.size(), 0), nullptr);
  Recorder* const recorders[] = {&clocks};
  if (has_clocks) run_units(program, {&rows, 1}, recorders, {&decisions, 1});
  std::vector<CardMemory> out(program.stages.size());
  parallel_for(out.size(), [&](std::size_t s) {
    const StageProgram& p = program.stages[s];
    const auto stage = static_cast<std::int32_t>(s);
    const MemorySequence sequence =
        decided(build_memory_sequence(p.graph, program.schedule, stage, p.offload), decisions[s]);
    const std::vector<ResidentItem> resident = resident_items(job, profile, p, stage);
    const Card card{job,
                    stage,
                    p.graph,
                    program.schedule.stages[s],
                    sequence,
                    resident,
                    rows,
                    0,
                    profile.allocator_for(job.versions.dtk).collectives_record_streams,
                    has_clocks ? &clocks.clock(s) : nullptr};
    out[s] = replay_card(card, CachingAllocator::kNoLimit).memory;
  });
  return out;
}

std::vector<CardMemory> steady_memory(const Job& job, const HardwareProfile& profile,
                                      const Program& program, const LaneRows& rows,
                                      const UnitDecisions& decisions, CpuPace pace) {
  const std::int64_t microbatches = enough_microbatches(program.schedule);
  if (microbatches == program.schedule.microbatches) {
    return decided_memory(job, profile, program, rows, decisions, pace);
  }
  Job shorter = job;
  shorter.batch.global_batch_size =
      job.batch.global_batch_size / program.schedule.microbatches * microbatches;
  Program same = program;
  same.schedule = build_schedule(shorter);
  UnitDecisions first = decisions;
  for (StageDecisions& stage : first) {
    stage.taken.resize(static_cast<std::size_t>(microbatches * stage.actions));
  }
  return decided_memory(shorter, profile, same, rows, first, pace);
}

}  // namespace tidemark
