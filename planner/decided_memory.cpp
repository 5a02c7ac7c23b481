#include "planner/decided_memory.h"

#include "sim/caching_allocator.h"
#include "sim/issue_clock.h"
#include "sim/lane_engine.h"
#include "sim/parallel.h"
#include "sim/simulation.h"

namespace tidemark {

std::vector<CardMemory> decided_memory(const Job& job, const HardwareProfile& profile,
                                       const Program& program, const LaneRows& rows,
                                       const UnitDecisions& decisions) {
  ClockRecorder clocks(program, std::vector<std::int64_t>(program.stages.size(), 0), nullptr);
  Recorder* const recorders[] = {&clocks};
  run_units(program, {&rows, 1}, recorders, {&decisions, 1});
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
                    records_streams(job, profile) ? &clocks.clock(s) : nullptr};
    out[s] = replay_card(card, CachingAllocator::kNoLimit).memory;
  });
  return out;
}

}  // namespace tidemark
