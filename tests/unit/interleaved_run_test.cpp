#include "planner/interleaved_run.h"

#include <algorithm>

#include <gtest/gtest.h>

#include "planner/decided_memory.h"
#include "sim/simulation.h"
#include "tests/support/jobs.h"

namespace tidemark::interleaved_run_test {
namespace {

constexpr double kBound = 1.5;

TEST(InterleavedRun, HidesExpertCommunicationWhereSlotsCanBeCombined) {
  const Job job = small_moe_job(4, 8);
  const HardwareProfile profile = load_hardware_profile("bw1000");
  const InterleavedRun run = interleaved_run(job, profile, kBound, balanced_routing(job));
  EXPECT_TRUE(run.job.combines_slots());
  EXPECT_LT(run.iteration_ns, run.own_schedule_ns);
  // Its program is that of the job it says.
  const LaneRows rows(run.job, balanced_routing(run.job));
  UnitDecisions decisions;
  for (std::int32_t s = 0; s < 2; ++s) decisions.push_back(run.run.policy->decide(s, rows));
  EXPECT_EQ(run_units(run.run.program, {&rows, 1}, {}, {&decisions, 1}).iteration_ns,
            run.iteration_ns);
}

TEST(InterleavedRun, KeepsTheSchedulesOfJobsThatCannotCombineSlots) {
  const Job job = two_stage_job();
  Job alone = job;
  alone.layout.pipeline = 1;
  EXPECT_FALSE(with_combined_slots(alone));
  const HardwareProfile profile = load_hardware_profile("bw1000");
  const InterleavedRun run = interleaved_run(alone, profile, 1, balanced_routing(alone));
  EXPECT_FALSE(run.job.combines_slots());
  EXPECT_EQ(run.iteration_ns, run.own_schedule_ns);
}

TEST(BaGuaLu2Run, CombinesSlotsInMegatronsOrderAndPlansForBalancedLoads) {
  const Job job = small_moe_job(4, 8);
  const HardwareProfile profile = load_hardware_profile("bw1000");
  const InterleavedRun run = bagualu2_run(job, profile, balanced_routing(job));
  EXPECT_TRUE(run.job.combines_slots());
  EXPECT_EQ(run.job.options.combined_slot_order, SlotOrder::kMegatron);
  EXPECT_EQ(run.run.plan.rows_bound, 1);
  const InterleavedRun ours = interleaved_run(job, profile, kBound, balanced_routing(job));
  EXPECT_LE(ours.iteration_ns, run.iteration_ns) << "an order is taken only where it is shorter";
}

// Room for nothing but the most frugal plan under the balanced load.
TEST(BaGuaLu2Run, IsNotRecoverableInASpike) {
  const Job job = small_moe_job(8, 6);
  HardwareProfile card = load_hardware_profile("bw1000");
  const AdaptivePlan roomy = heuristic_run(job, card).plan;
  card.capacity_gib.value -= to_gib(Bytes(roomy.least_headroom_bytes())) - 0.01;
  const AdaptiveRun run = heuristic_run(job, card);
  EXPECT_GE(run.plan.least_headroom_bytes(), 0);
  const LaneRows spike(job, scaled(balanced_routing(job), 2.6));
  const UnitDecisions decisions = decide_unit(*run.policy, run.program.stages.size(), spike);
  const auto memory = decided_memory(job, card, run.program, spike, decisions, CpuPace::kWaits);
  EXPECT_GT(std::ranges::max(memory, {}, &CardMemory::reserved).reserved, segment_limit(job, card));
}

TEST(InterleavedRun, CombinedSlotsCanBeTakenBack) {
  const Job job = small_moe_job(4, 8);
  const Job combined = with_combined_slots(job).value();
  const Job back = without_combined_slots(combined);
  EXPECT_FALSE(back.combines_slots());
  EXPECT_NO_THROW(validate(back, ""));
  EXPECT_EQ(back.layout.schedule, job.layout.schedule);
}

// Whatever an iteration routes, and within the card at the bound.
TEST(FixedRun, GivesUpTheSameInEveryIteration) {
  const Job job = on_platform(small_moe_job(8, 6), load_hardware_profile("bw1000"));
  const LaneRows worst(job, scaled(balanced_routing(job), kBound));
  const LaneRows calm(job, balanced_routing(job));
  HardwareProfile card = load_hardware_profile("bw1000");
  const AdaptivePlan roomy = adaptive_run(job, card, kBound).plan;
  // Room for half of what is not given up: something is, and not all.
  card.capacity_gib.value -= to_gib(Bytes(roomy.least_headroom_bytes())) - 0.5;
  const ManagedRun run = fixed_run(job, card, kBound);
  UnitDecisions decisions;
  std::int64_t taken = 0;
  for (std::int32_t s = 0; s < 2; ++s) {
    decisions.push_back(run.policy->decide(s, worst));
    EXPECT_EQ(run.policy->decide(s, calm).taken, decisions.back().taken);
    taken += std::ranges::count(decisions.back().taken, 1);
  }
  EXPECT_GT(taken, 0);
  for (const CardMemory& memory : decided_memory(job, card, run.program, worst, decisions)) {
    EXPECT_LE(memory.reserved, segment_limit(job, card));
  }
}

}  // namespace
}  // namespace tidemark::interleaved_run_test
