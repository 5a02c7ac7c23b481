// Random jobs on cards that are short of memory and swap.
#include "sim/rescue_swap.h"

#include <cstdlib>

#include <gtest/gtest.h>

#include "hw_profiles/hardware_profile.h"
#include "sim/card_memory.h"
#include "sim/simulation.h"
#include "tests/support/random_jobs.h"

namespace tidemark::rescue_swap_test {
namespace {

constexpr std::uint64_t kJobs = 100;
constexpr std::int64_t kLargestTail = 1 << 20;  // of a block

// Returns: how many cards were rescued.
int check_stages(const Job& given, std::uint64_t seed) {
  const HardwareProfile profile = load_hardware_profile("bw1000");
  const Job job = on_platform(given, profile);
  const Program program = build_program(job, profile);
  const LaneRows rows(job, random_routing(job, seed));
  int rescued = 0;
  for (std::size_t s = 0; s < program.stages.size(); ++s) {
    const auto stage = static_cast<std::int32_t>(s);
    const StageProgram& p = program.stages[s];
    const MemorySequence sequence =
        build_memory_sequence(p.graph, program.schedule, stage, p.offload);
    const std::vector<ResidentItem> resident = resident_items(job, profile, p, stage);
    auto blocks = std::ssize(sequence.carried_over);
    for (const ResidentItem& item : resident) blocks += std::ssize(item.requests);
    Card card{job, stage, p.graph, program.schedule.stages[s], sequence, resident, rows};
    const CardMemory wide = replay_card(card, CachingAllocator::kNoLimit).memory;
    card.rescues = true;
    for (std::int64_t eighths = 1; eighths < 8; ++eighths) {
      const Bytes limit(wide.reserved.value -
                        eighths * (wide.reserved - wide.after_iteration).value / 8);
      const CardReplay tight = replay_card(card, limit);
      if (tight.out_of_memory || tight.swapped == Bytes()) continue;
      ++rescued;
      EXPECT_LE(tight.memory.reserved, limit) << describe(job, seed);
      // All that went out has come in and was freed; blocks may lie elsewhere, with other tails.
      const Bytes more = tight.memory.after_iteration - wide.after_iteration;
      EXPECT_LE(std::abs(more.value), blocks * kLargestTail) << describe(job, seed);
    }
  }
  return rescued;
}

TEST(RescueSwap, LeavesNothingBehindWithinAnyLimit) {
  int rescued = 0;
  for (std::uint64_t seed = 0; seed < kJobs; ++seed) {
    rescued += check_stages(random_job(seed), seed);
    rescued += check_stages(random_scheduled_job(seed), seed);
  }
  EXPECT_GT(rescued, 50);
}

}  // namespace
}  // namespace tidemark::rescue_swap_test
