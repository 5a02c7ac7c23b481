// What PyTorch's documentation (docs/source/notes/cuda.rst, "Optimizing memory usage") says of the
// allocator's settings, on a job whose sizes vary from microbatch to microbatch.
#include <gtest/gtest.h>

#include "sim/simulation.h"
#include "tests/support/skewed_jobs.h"

namespace tidemark::allocator_settings_test {
namespace {

// The first stage's hottest lane of a DeepSeek-like job.
class VaryingSizes : public testing::Test {
 protected:
  static constexpr std::uint64_t kSeed = 4;

  VaryingSizes()
      : job_(skewed_job(kSeed)),
        simulation_(simulate(job_, load_hardware_profile("h100"), skewed_routing(job_, kSeed))) {}

  const StageResult& stage() const { return simulation_.result.stages[0]; }

  CardReplay replay(const AllocatorOptions& options, Bytes limit = CachingAllocator::kNoLimit,
                    Bytes capacity = CachingAllocator::kNoLimit) const {
    Job job = job_;
    job.options.allocator = options;
    const Card card{job,
                    0,
                    simulation_.program.stages[0].graph,
                    simulation_.program.schedule.stages[0],
                    stage().sequence,
                    stage().resident,
                    simulation_.rows,
                    stage().hottest_lane,
                    false,
                    nullptr,
                    0,
                    capacity};
    return replay_card(card, limit);
  }
  CardMemory memory(const AllocatorOptions& options) const { return replay(options).memory; }

  static Bytes unused(const CardMemory& m) { return m.reserved - m.peak; }

  // The smallest limit under which the job completes, to 32 MiB.
  Bytes least_limit(const AllocatorOptions& options) const {
    Bytes low(0);
    Bytes high = memory({}).reserved * 2;
    while (high - low > 32 * kMiB) {
      const Bytes middle((low.value + high.value) / 2);
      (replay(options, middle).out_of_memory ? low : high) = middle;
    }
    return high;
  }

  Job job_;
  Simulation simulation_;
};

// "If a job changes allocation sizes frequently, such as having a changing batch size", segments
// that grow leave fewer "slivers of memory".
TEST_F(VaryingSizes, ExpandableSegmentsReserveLess) {
  EXPECT_LT(memory({.expandable_segments = true}).reserved, memory({}).reserved);
}

// "each will go to different size of blocks and re-use of those blocks are minimized. This might
// create lots of unused blocks": rounding makes sizes equal, at the price of larger blocks.
TEST_F(VaryingSizes, RoundingLeavesLessUnusedAndAllocatesMore) {
  const CardMemory rounded = memory({.roundup_power2_divisions = 8});
  EXPECT_LT(unused(rounded), unused(memory({})));
  EXPECT_GT(rounded.peak, memory({}).peak);
}

// "actively reclaiming unused GPU memory".
TEST_F(VaryingSizes, GarbageCollectionReservesLess) {
  const Bytes without = memory({}).reserved;
  const AllocatorOptions collects{.garbage_collection_threshold = 0.8};
  EXPECT_LT(replay(collects, CachingAllocator::kNoLimit, without).memory.reserved, without);
}

// "This can reduce fragmentation and may allow some borderline workloads to complete without
// running out of memory."
TEST_F(VaryingSizes, ALargestSizeToSplitLetsABorderlineJobComplete) {
  EXPECT_LT(least_limit({.max_split_size_mb = 256}), least_limit({}));
}

}  // namespace
}  // namespace tidemark::allocator_settings_test
