#include "planner/adaptive_headroom.h"

#include <algorithm>

#include "planner/decided_memory.h"
#include "sim/simulation.h"
#include "traces/counter_hash.h"

namespace tidemark {
namespace {

// Calm: most rows of a card over the mean in all but 3 % of the iterations that BaGuaLu-2 reports.
constexpr double kCalmLoad = 1.2;

// Headrooms that are tried until cards do not wait for their devices in calm.
constexpr int kMostCalmTries = 4;

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
LaneRows calm_rows(const Job& job, double most) {
  const HashStream draws(0);
  return LaneRows::alike(job, [&](std::int64_t microbatch, std::int64_t moe_layer) {
    return 1 + (most - 1) * draws.inner(microbatch).uniform(moe_layer);
  });
}

}  // namespace

void measure_headroom(const Job& job, const HardwareProfile& profile, const Program& program,
                      const std::vector<LadderStage>& stages, AdaptivePlan& plan) {
  const std::vector<CardMemory> frugal =
      emulate(job, profile, program, stages, LaneRows::alike(job, plan.rows_bound), true);
  const std::vector<CardMemory> light =
      emulate(job, profile, program, stages, LaneRows::alike(job), false);
  const Bytes limit = segment_limit(job, profile);
  for (std::size_t s = 0; s < stages.size(); ++s) {
    const Bytes unused =
        std::max(frugal[s].reserved - frugal[s].peak, light[s].reserved - light[s].peak);
    plan.stages[s].headroom_bytes = (limit - frugal[s].peak - unused).value;
    plan.stages[s].run_ahead_bytes = 0;
  }
}

void leave_room_to_run_ahead(const Job& job, const HardwareProfile& profile, const Program& program,
                             std::vector<LadderStage> stages, AdaptivePlan& plan) {
  const LaneRows calm = calm_rows(job, std::min(plan.rows_bound, kCalmLoad));
  const Bytes limit = segment_limit(job, profile);
  std::vector<bool> lacking(stages.size(), true);
  const auto any = [&] { return std::ranges::any_of(lacking, [](bool lacks) { return lacks; }); };
  for (int i = 0; i < kMostCalmTries && any(); ++i) {
    for (std::size_t s = 0; s < stages.size(); ++s) stages[s].headroom = plan.stages[s].shared();
    const LadderPolicy policy(program.schedule, stages);
    const std::vector<CardMemory> memory =
        steady_memory(job, profile, program, calm, decide_unit(policy, stages.size(), calm),
                      CpuPace::kAhead, lacking);
    for (std::size_t s = 0; s < stages.size(); ++s) {
      AdaptivePlan::Stage& stage = plan.stages[s];
      const std::int64_t over = (memory[s].reserved - limit).value;
      lacking[s] = lacking[s] && over > 0 && stage.shared() > 0;
      if (!lacking[s]) continue;
      const std::int64_t kept = policy.most_excess(static_cast<std::int32_t>(s), calm);
      stage.run_ahead_bytes =
          stage.headroom_bytes - std::max<std::int64_t>(0, std::min(kept, stage.shared()) - over);
    }
  }
}

}  // namespace tidemark
