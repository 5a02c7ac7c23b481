#include "planner/decided_memory.h"

#include <gtest/gtest.h>

#include "planner/action_program.h"
#include "planner/interleaved_run.h"
#include "sim/simulation.h"
#include "tests/support/jobs.h"

namespace tidemark::decided_memory_test {
namespace {

// 1F1B of two stages and 32 microbatches, of which two in flight and eight more are enough.
TEST(SteadyMemory, AllocatesAsMuchAsTheWholeIteration) {
  const HardwareProfile profile = load_hardware_profile("bw1000");
  const ActionProgram p =
      build_action_program(small_moe_job(4, 32), profile, ActionKind::kRecompute);
  const LaneRows rows(p.job, scaled(balanced_routing(p.job), 1.5));
  for (const bool gives_up : {false, true}) {
    const UnitDecisions decisions =
        gives_up ? p.everything() : UnitDecisions{StageDecisions(), StageDecisions()};
    const auto whole = decided_memory(p.job, profile, p.program, rows, decisions);
    const auto steady = steady_memory(p.job, profile, p.program, rows, decisions);
    for (std::size_t s = 0; s < whole.size(); ++s) {
      // Whether a request finds a block of its size or a larger one differs by chance.
      const double peak = to_gib(whole[s].peak);
      const double reserved = to_gib(whole[s].reserved);
      EXPECT_NEAR(to_gib(steady[s].peak), peak, 1e-5 * peak);
      EXPECT_NEAR(to_gib(steady[s].reserved), reserved, 0.01 * reserved);
    }
  }
}

// Of combined slots, whose CPU does not wait at transfers.
TEST(DecidedMemory, NeedsLessWhereTheCpuWaits) {
  const HardwareProfile profile = load_hardware_profile("bw1000");
  const Job job = with_combined_slots(small_moe_job(8, 16)).value();
  const ActionProgram p = build_action_program(job, profile, ActionKind::kOffload);
  const LaneRows rows(p.job, balanced_routing(p.job));
  const UnitDecisions all = p.everything();
  const auto ahead = decided_memory(p.job, profile, p.program, rows, all);
  const auto waits = decided_memory(p.job, profile, p.program, rows, all, CpuPace::kWaits);
  for (std::size_t s = 0; s < ahead.size(); ++s) {
    EXPECT_LT(waits[s].reserved, ahead[s].reserved);
    EXPECT_GE(waits[s].reserved, waits[s].peak);
  }
}

}  // namespace
}  // namespace tidemark::decided_memory_test
