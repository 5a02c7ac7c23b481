#include "sim/running_peak.h"

#include <algorithm>
#include <cstddef>

#include "sim/lane_peaks.h"
#include "sim/memory_profile.h"

namespace tidemark {

std::vector<Bytes> running_peaks(const Job& job, const Simulation& simulation,
                                 const RoutingSource& routing, const CardId& card,
                                 std::int64_t iterations) {
  const OperatorGraph& graph =
      simulation.program.stages[static_cast<std::size_t>(card.stage)].graph;
  const StageResult& stage = simulation.result.stages[static_cast<std::size_t>(card.stage)];
  const auto lane = static_cast<std::size_t>(card.lane);
  const LanePeak& hottest = stage.memory.lanes[static_cast<std::size_t>(stage.hottest_lane)];
  const Bytes alike = stage.peak_allocated() - hottest.bytes;
  const LanePeaks compiled(job, graph, stage.sequence);
  const auto lanes = stage.memory.lanes.size();
  std::vector<std::int64_t> own(lanes);
  std::vector<std::int64_t> peak(lanes);
  RoutingCounts counts;
  LaneRows rows(job);
  std::vector<Bytes> out;
  for (std::int64_t i = 0; i < iterations; ++i) {
    routing.counts(i, card.unit, counts);
    rows.assign(counts);
    if (i == 0) {
      out.push_back(stage.peak_allocated_first_iteration() - hottest.first_iteration +
                    profile_memory(job, graph, stage.sequence, rows).lanes[lane].first_iteration);
      continue;
    }
    compiled.evaluate(rows, StageDecisions(), own, peak);
    out.push_back(std::max(out.back(), alike + Bytes(peak[lane])));
  }
  return out;
}

}  // namespace tidemark
