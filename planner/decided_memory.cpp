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
                                       const UnitDecisions& decisions, CpuPace pace,
                                       const std::vector<bool>& wanted) {
  const bool has_clocks =
      pace == CpuPace::kAhead;  // decisions may copy, wherever collectives record
  std::vector<std::int64_t> watched(program.stages.size(), 0);
  for (std::size_t s = 0; s < wanted.size(); ++s) watched[s] = wanted[s] ? 0 : -1;
  ClockRecorder clocks(program, watched, nullptr);
  Recorder* const recorders[] = {&clocks};
  if (has_clocks) run_units(program, {&rows, 1}, recorders, {&decisions, 1});
  std::vector<CardMemory> out(program.stages.size());
  parallel_for(out.size(), [&](std::size_t s) {
    if (!wanted.empty() && !wanted[s]) return;
    const StageProgram& p = program.stages[s];
    const auto stage = static_cast<std::int32_t>(s);
    const MemorySequence sequence =
        build_memory_sequence(p.graph, program.schedule, stage, p.offload);
    const std::vector<ResidentItem> resident = resident_items(job, profile, p, stage);
    const Card card{
        .job = job,
        .stage = stage,
        .graph = p.graph,
        .steps = program.schedule.stages[s],
        .sequence = sequence,
        .resident = resident,
        .rows = rows,
        .lane = 0,
        .collectives_record_streams =
            profile.allocator_for(job.versions.dtk).collectives_record_streams,
        .clock = has_clocks ? &clocks.clock(s) : nullptr,
        .capacity = profile.capacity(),
        .decisions = &decisions[s],
    };
    out[s] = replay_card(card, CachingAllocator::kNoLimit).memory;
  });
  return out;
}

std::vector<CardMemory> steady_memory(const Job& job, const HardwareProfile& profile,
                                      const Program& program, const LaneRows& rows,
                                      const UnitDecisions& decisions, CpuPace pace,
                                      const std::vector<bool>& wanted) {
  const std::int64_t microbatches = enough_microbatches(program.schedule);
  if (microbatches == program.schedule.microbatches) {
    return decided_memory(job, profile, program, rows, decisions, pace, wanted);
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
  return decided_memory(shorter, profile, same, rows, first, pace, wanted);
}

}  // namespace tidemark
