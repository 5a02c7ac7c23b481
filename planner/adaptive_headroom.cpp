#include "planner/adaptive_headroom.h"

#include <algorithm>

#include "planner/decided_memory.h"
#include "sim/simulation.h"
#include "traces/counter_hash.h"
#include "traces/routing.h"

namespace tidemark {
namespace {

// Calm: most rows of a card over the mean in all but 3 % of the iterations that BaGuaLu-2 reports.
constexpr double kCalmLoad = 1.2;

// All microbatches deciding alike, on a card that waits for its device before it runs out of
// memory.
std::vector<CardMemory> emulate(const Job& job, const HardwareProfile& profile,
                                const Program& program, const std::vector<LadderStage>& stages,
                                const LaneRows& rows, bool frugal) {
  UnitDecisions decisions;
  for (const LadderStage& stage : stages) {
    decisions.push_back(all_take(stage, program.schedule.microbatches, frugal));
  }
  return steady_memory(job, profile, program, rows, decisions, CpuPace::kWaits);
}

// Every card's load between the balanced and `most` times as much, other in each microbatch and
// layer: blocks of many sizes fit each other worse than equal ones.
RoutingCounts calm_routing(const Job& job, double most) {
  RoutingCounts counts = balanced_routing(job);
  const HashStream draws(0);
  for (std::int64_t mb = 0; mb < counts.microbatches; ++mb) {
    for (std::int64_t layer = 0; layer < counts.moe_layers; ++layer) {
      const double load = 1 + (most - 1) * draws.inner(mb).uniform(layer);
      for (std::int64_t& count : counts.row(mb, layer)) {
        count = static_cast<std::int64_t>(static_cast<double>(count) * load);
      }
    }
  }
  return counts;
}

}  // namespace

void measure_headroom(const Job& job, const HardwareProfile& profile, const Program& program,
                      const std::vector<LadderStage>& stages, AdaptivePlan& plan) {
  const RoutingCounts counts = balanced_routing(job);
  const std::vector<CardMemory> frugal =
      emulate(job, profile, program, stages, LaneRows(job, scaled(counts, plan.rows_bound)), true);
  const std::vector<CardMemory> light =
      emulate(job, profile, program, stages, LaneRows(job, counts), false);
  const Bytes limit = segment_limit(job, profile);
  for (std::size_t s = 0; s < stages.size(); ++s) {
    const Bytes unused =
        std::max(frugal[s].reserved - frugal[s].peak, light[s].reserved - light[s].peak);
    plan.stages[s].headroom_bytes = (limit - frugal[s].peak - unused).value;
    plan.stages[s].run_ahead_bytes = 0;
  }
}

bool leave_room_to_run_ahead(const Job& job, const HardwareProfile& profile, const Program& program,
                             const LadderPolicy& policy, AdaptivePlan& plan) {
  const LaneRows calm(job, calm_routing(job, std::min(plan.rows_bound, kCalmLoad)));
  const std::vector<CardMemory> memory =
      steady_memory(job, profile, program, calm, decide_unit(policy, program.stages.size(), calm));
  const Bytes limit = segment_limit(job, profile);
  bool lacked = false;
  for (std::size_t s = 0; s < memory.size(); ++s) {
    AdaptivePlan::Stage& stage = plan.stages[s];
    const std::int64_t over = (memory[s].reserved - limit).value;
    const std::int64_t left = stage.headroom_bytes - stage.run_ahead_bytes;
    if (over <= 0 || left <= 0) continue;
    const std::int64_t kept = policy.most_excess(static_cast<std::int32_t>(s), calm);
    stage.run_ahead_bytes =
        stage.headroom_bytes - std::max<std::int64_t>(0, std::min(kept, left) - over);
    lacked = true;
  }
  return lacked;
}

}  // namespace tidemark
