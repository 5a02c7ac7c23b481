#include "planner/paged_stash.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include <gtest/gtest.h>

#include "hw_profiles/hardware_profile.h"
#include "sim/simulation.h"
#include "tests/support/jobs.h"
#include "traces/routing.h"

namespace tidemark::paged_stash_test {
namespace {

// Two stages of two layers each with 128 experts on eight lanes, four microbatches of 4,096 tokens
// a lane, top-8: under balanced routing a lane receives 32,768 rows, an expert 2,048.
const Job& small_job() {
  static const Job job = small_moe_job(4, 4);
  return job;
}
constexpr std::int64_t kBalancedRows = 4096 * 8;
constexpr std::int64_t kExpertsOfLane = 16;

const HardwareProfile& profile() {
  static const HardwareProfile profile = [] {
    HardwareProfile wide = load_hardware_profile("bw1000");
    wide.capacity_gib.value = 1000;
    return wide;
  }();
  return profile;
}

class Fixed : public RoutingSource {
 public:
  explicit Fixed(double ratio) : counts_(spiked_routing(small_job(), ratio)) {}
  void counts(std::int64_t, std::int64_t, RoutingCounts& out) const override { out = counts_; }

 private:
  RoutingCounts counts_;
};

LaneRows rows_at(double ratio) { return LaneRows(small_job(), spiked_routing(small_job(), ratio)); }

IterationRecord iteration(TrainingRun& run) {
  return run.run({}, [](const IterationRecord&) { return true; }).iterations.at(0);
}

// Of every card in the last iteration.
std::vector<Bytes> peaks(const TrainingRun& run) {
  std::vector<Bytes> out;
  for (const CardPeak& card : run.card_peaks()) out.push_back(card.peak);
  return out;
}

struct Ran {
  IterationRecord record;
  std::vector<Bytes> peaks;  // [card], those of stage 0 first
};

Ran stashed(double ratio, const PagedStash& stash, bool may_rerun = true) {
  PagedStashRun run = paged_stash_run(small_job(), profile(), stash);
  const Fixed routing(ratio);
  TrainingRun training(small_job(), profile(), routing, false, std::move(run.first.program),
                       *run.first.policy,
                       may_rerun ? std::optional(std::move(run.rerun)) : std::nullopt);
  const IterationRecord record = iteration(training);
  return {record, peaks(training)};
}

Ran dropless(double ratio) {
  const Fixed routing(ratio);
  TrainingRun training(small_job(), profile(), routing, false);
  const IterationRecord record = iteration(training);
  return {record, peaks(training)};
}

TEST(PagedStash, ABufferHoldsATenthMoreThanBalancedRoutingNeeds) {
  const PagedStashRun run = paged_stash_run(small_job(), profile(), {});
  // Hidden 2,048, experts' hidden 768: activation, gate and up together, input; in bf16.
  const std::vector<std::int64_t> widths{2 * 768, 2 * 2 * 768, 2 * 2048};
  // 1F1B: stage 0 holds two microbatches of its two layers, stage 1 one. int(1.1 * n) rows in
  // pages of 64.
  const std::vector<std::int64_t> pages{(144179 + 63) / 64, (72089 + 63) / 64};
  ASSERT_EQ(144179, static_cast<std::int64_t>(1.1 * 2 * 2 * kBalancedRows));
  ASSERT_EQ(72089, static_cast<std::int64_t>(1.1 * 2 * kBalancedRows));
  for (std::size_t s = 0; s < 2; ++s) {
    const std::vector<StashBuffer>& buffers = run.limits.stages[s];
    ASSERT_EQ(buffers.size(), widths.size());
    for (std::size_t b = 0; b < buffers.size(); ++b) {
      EXPECT_EQ(buffers[b].row_bytes, widths[b]);
      EXPECT_EQ(buffers[b].pages, pages[s]);
      EXPECT_EQ(run.first.program.stages[s].stash[b], pages[s] * 64 * widths[b]);
    }
  }
}

TEST(PagedStash, ACardMayReceiveItsCapacityAndNoRowMore) {
  const PagedStashRun run = paged_stash_run(small_job(), profile(), {1.25, 4});
  EXPECT_EQ(run.limits.capacity_rows, kBalancedRows * 5 / 4);
  EXPECT_FALSE(run.limits.exceeded_by(rows_at(1.25)));
  // One row more for each of the lane's experts.
  EXPECT_TRUE(run.limits.exceeded_by(rows_at(1.25 + 1.0 / 2048)));
}

TEST(PagedStash, PagesRunOutWhereTheTensorsOfACardNeedMore) {
  const PagedStashRun run = paged_stash_run(small_job(), profile(), {4, 1.10});
  const auto pages = [](std::int64_t of_expert) {
    return 4 * ((kExpertsOfLane * of_expert + 63) / 64);  // two microbatches of two layers
  };
  const StashBuffer& buffer = run.limits.stages[0][0];
  EXPECT_EQ(run.limits.pages_in_use(0, buffer, rows_at(2252.5 / 2048)), pages(2252));
  ASSERT_LE(pages(2252), buffer.pages);
  EXPECT_FALSE(run.limits.exceeded_by(rows_at(2252.5 / 2048)));
  ASSERT_GT(pages(2256), buffer.pages);
  EXPECT_TRUE(run.limits.exceeded_by(rows_at(2256.5 / 2048)));
}

TEST(PagedStash, MemoryDoesNotDependOnTheRoutingAndNothingWaitsForCounts) {
  const PagedStash stash{2, 2};
  const Ran balanced = stashed(1, stash);
  const Ran skewed = stashed(1.5, stash);
  EXPECT_FALSE(skewed.record.run_again);
  EXPECT_EQ(skewed.peaks, balanced.peaks);
  EXPECT_GT(skewed.record.time_ns, balanced.record.time_ns);
  const PagedStashRun run = paged_stash_run(small_job(), profile(), stash);
  for (const Operator& op : run.first.program.stages[0].graph.forward) {
    EXPECT_FALSE(op.layer >= 0 && std::holds_alternative<HostWaitWork>(op.work)) << op.name;
  }
}

TEST(PagedStash, MoreCapacityCostsWhatALayerHasAtOnce) {
  // With the same buffers, into which whatever other layers and microbatches keep has gone. Of the
  // layer that runs, each tensor and its gradient at most are there for twice as many rows: input
  // and result of 2,048, gate and up together, activation; at least one of 2,048 is.
  const std::int64_t more = (stashed(1, {2, 1.1}).peaks[0] - stashed(1, {1, 1.1}).peaks[0]).value;
  EXPECT_GE(more, kBalancedRows * 2 * 2048);
  EXPECT_LE(more, 2 * kBalancedRows * 2 * (2048 + 2048 + 2 * 768 + 768));
}

TEST(PagedStash, AStepThatOverflowsTakesBothPassesAndTheMemoryOfEither) {
  const PagedStash stash{1.25, 1.10};
  const Ran first = stashed(2, stash, false);
  const Ran second = dropless(2);
  const Ran both = stashed(2, stash);
  EXPECT_FALSE(first.record.run_again);
  EXPECT_TRUE(both.record.run_again);
  EXPECT_EQ(both.record.time_ns, first.record.time_ns + second.record.time_ns);
  EXPECT_EQ(both.record.peak_reserved,
            std::max(first.record.peak_reserved, second.record.peak_reserved));
  for (std::size_t card = 0; card < both.peaks.size(); ++card) {
    EXPECT_EQ(both.peaks[card], std::max(first.peaks[card], second.peaks[card]));
  }
}

TEST(PagedStash, TheSecondPassMayRunOutOfMemory) {
  const PagedStash stash{1, 1};
  const IterationRecord first = stashed(1, stash).record;
  const IterationRecord second = dropless(4).record;
  ASSERT_LT(first.peak_reserved, second.peak_reserved);
  HardwareProfile card = profile();
  const Bytes between = (first.peak_reserved + second.peak_reserved) / 2;
  const Bytes outside = card.capacity() - segment_limit(small_job(), card);
  card.capacity_gib.value =
      static_cast<double>((between + outside).value) / static_cast<double>(kGiB.value);
  PagedStashRun run = paged_stash_run(small_job(), card, stash);
  const Fixed routing(4);
  TrainingRun training(small_job(), card, routing, false, std::move(run.first.program),
                       *run.first.policy, std::move(run.rerun));
  const RunResult r = training.run({}, [](const IterationRecord&) { return true; });
  ASSERT_EQ(r.out_of_memory.size(), 1U);
  EXPECT_TRUE(r.stuck);
  EXPECT_TRUE(r.iterations[0].run_again);
  EXPECT_EQ(r.out_of_memory[0].card.lane, 0) << "that receives most, where memory depends on it";
  EXPECT_GT(r.out_of_memory[0].short_by, Bytes(0));
}

}  // namespace
}  // namespace tidemark::paged_stash_test
