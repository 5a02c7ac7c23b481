#include "planner/bagualu2_policy.h"

#include <algorithm>

#include <gtest/gtest.h>

#include "hw_profiles/hardware_profile.h"
#include "planner/action_program.h"
#include "planner/decided_memory.h"
#include "sim/simulation.h"
#include "tests/support/jobs.h"
#include "traces/routing.h"

namespace tidemark::bagualu2_policy_test {
namespace {

const Job& small_job() {
  static const Job job = small_moe_job(8, 6);
  return job;
}

HardwareProfile card_of(Bytes segments) {
  HardwareProfile profile = load_hardware_profile("bw1000");
  const Bytes outside = profile.capacity() - segment_limit(small_job(), profile);
  profile.capacity_gib.value =
      static_cast<double>((segments + outside).value) / static_cast<double>(kGiB.value);
  return profile;
}

LaneRows rows_at(double load) {
  return LaneRows(small_job(), scaled(balanced_routing(small_job()), load));
}

// What the first stage reserves, with nothing or everything offloaded.
Bytes reserved(double load, bool offloads) {
  const HardwareProfile wide = card_of(1000 * kGiB);
  const ActionProgram p = build_action_program(small_job(), wide, ActionKind::kOffload);
  const UnitDecisions none{StageDecisions(), StageDecisions()};
  return decided_memory(p.job, wide, p.program, rows_at(load), offloads ? p.everything() : none)[0]
      .reserved;
}

std::int64_t taken(const StageDecisions& decisions) {
  return std::count(decisions.taken.begin(), decisions.taken.end(), 1);
}

TEST(BaGuaLu2Policy, OffloadsNothingWhereEverythingFits) {
  const ManagedRun run = bagualu2_offload_run(small_job(), card_of(1000 * kGiB));
  EXPECT_EQ(taken(run.policy->decide(0, rows_at(2))), 0);
}

TEST(BaGuaLu2Policy, OffloadsMoreInASpikeAndNothingOfItInTheCalmAfter) {
  const ManagedRun run = bagualu2_offload_run(small_job(), card_of(reserved(1.5, false)));
  const std::int64_t calm = taken(run.policy->decide(0, rows_at(1)));
  EXPECT_LT(calm, taken(run.policy->decide(0, rows_at(2))));
  EXPECT_EQ(taken(run.policy->decide(0, rows_at(1))), calm);
}

TEST(BaGuaLu2Policy, KeepsTheFirstStageWithinACardThatLacksSome) {
  const Bytes all = reserved(1, false);
  const Bytes least = reserved(1, true);
  ASSERT_LT(least, all);
  // The default modules do not keep all that could be offloaded.
  const HardwareProfile card = card_of(all - Bytes((all - least).value / 4));
  const ManagedRun run = bagualu2_offload_run(small_job(), card);
  const UnitDecisions decisions{run.policy->decide(0, rows_at(1)),
                                run.policy->decide(1, rows_at(1))};
  const auto memory = decided_memory(small_job(), card, run.program, rows_at(1), decisions);
  EXPECT_LE(memory[0].reserved, segment_limit(small_job(), card));
}

TEST(BaGuaLu2Policy, LeavesTheLastChunkAlone) {
  const ManagedRun run = bagualu2_offload_run(small_job(), card_of(Bytes(0)));
  EXPECT_GT(taken(run.policy->decide(0, rows_at(1))), 0);
  EXPECT_EQ(taken(run.policy->decide(1, rows_at(3))), 0);
}

}  // namespace
}  // namespace tidemark::bagualu2_policy_test
