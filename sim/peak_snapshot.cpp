#include "sim/peak_snapshot.h"

#include <vector>

#include "sim/issue_clock.h"

namespace tidemark {

AllocatorSnapshot snapshot_at_peak(const Job& given, const HardwareProfile& profile,
                                   const Simulation& simulation, std::int64_t stage) {
  const Job job = on_platform(given, profile);
  const auto index = static_cast<std::size_t>(stage);
  const StageResult& result = simulation.result.stages[index];
  const bool collectives = profile.allocator_for(job.versions.dtk).collectives_record_streams;
  const bool records = collectives || !job.options.offload.modules.empty();
  const std::vector<std::int64_t> lanes(simulation.result.stages.size(), result.hottest_lane);
  ClockRecorder clocks(simulation.program, lanes, nullptr);
  Recorder* const recorders[] = {&clocks};
  if (records) run_units(simulation.program, {&simulation.rows, 1}, recorders);
  const Card card{
      .job = job,
      .stage = stage,
      .graph = simulation.program.stages[index].graph,
      .steps = simulation.program.schedule.stages[index],
      .sequence = result.sequence,
      .resident = result.resident,
      .rows = simulation.rows,
      .lane = result.hottest_lane,
      .collectives_record_streams = collectives,
      .clock = records ? &clocks.clock(index) : nullptr,
      .capacity = simulation.result.capacity,
  };
  return snapshot_card(card,
                       result.memory.lanes[static_cast<std::size_t>(result.hottest_lane)].event);
}

}  // namespace tidemark
