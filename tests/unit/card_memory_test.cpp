#include "sim/card_memory.h"

#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "models/gradient_buffers.h"
#include "sim/simulation.h"
#include "tests/support/jobs.h"

namespace tidemark::card_memory_test {
namespace {

constexpr Bytes kNoLimit{std::numeric_limits<std::int64_t>::max()};

// A job with the program and sequence that a card of one stage replays.
class OneCard {
 public:
  OneCard(const Job& job, std::int64_t stage)
      : job_(job),
        stage_(stage),
        profile_(load_hardware_profile("bw1000")),
        program_(build_program(job_, profile_)),
        rows_(job_, balanced_routing(job_)),
        sequence_(
            build_memory_sequence(graph(), program_.schedule, static_cast<std::int32_t>(stage))),
        resident_(resident_memory(job_, profile_, stage)) {}

  CardReplay replay(Bytes limit = kNoLimit, const StageClock* clock = nullptr) const {
    return replay_card(
        {job_, stage_, graph(), steps(), sequence_, resident_, rows_, 0, clock != nullptr, clock},
        limit);
  }
  // A clock on which the CPU issues everything at once and the device takes `ns` for each operator.
  StageClock device_that_takes(std::int64_t ns) const {
    StageClock clock;
    std::int64_t done = 0;
    for (const Step& step : steps()) {
      const Slot* slot = std::get_if<Slot>(&step);
      std::size_t ops = 1;
      if (slot != nullptr) {
        ops = slot->kind == SlotKind::kForward ? graph().forward.size() : graph().backward.size();
      }
      std::vector<StageClock::Times> times;
      for (std::size_t i = 0; i < ops; ++i) times.push_back({0, done += ns});
      clock.steps.push_back(std::move(times));
    }
    return clock;
  }
  // When the second iteration begins.
  AllocatorSnapshot snapshot() const {
    return snapshot_card({job_, stage_, graph(), steps(), sequence_, resident_, rows_}, -1);
  }
  Bytes resident_bytes() const {
    Bytes sum;
    for (const ResidentItem& item : resident_) sum += item.bytes;
    return sum;
  }
  Bytes activations() const {
    return profile_memory(job_, graph(), sequence_, rows_).lanes[0].bytes;
  }

 private:
  const OperatorGraph& graph() const {
    return program_.stages[static_cast<std::size_t>(stage_)].graph;
  }
  const std::vector<Step>& steps() const {
    return program_.schedule.stages[static_cast<std::size_t>(stage_)];
  }

  Job job_;
  std::int64_t stage_;
  HardwareProfile profile_;
  Program program_;
  LaneRows rows_;
  MemorySequence sequence_;
  std::vector<ResidentItem> resident_;
};

TEST(ReplayCard, CountsAtLeastTheSumsOfRequestsAndReservesAtLeastThat) {
  const OneCard card(qwen3_8b(), 0);
  const CardMemory m = card.replay().memory;
  // Tails only add to what the sums of 512-byte blocks give; there are no more than 1 MiB of them a
  // block, and few blocks have one.
  EXPECT_GE(m.peak, card.resident_bytes() + card.activations() - 8 * kMiB);
  EXPECT_LE(m.peak, card.resident_bytes() + card.activations() + 64 * kMiB);
  EXPECT_GE(m.reserved, m.peak);
  EXPECT_GE(m.reserved, m.reserved_first_iteration);
}

TEST(ReplayCard, MomentsComeWithTheFirstOptimizerStep) {
  const OneCard card(two_stage_job(), 1);
  const CardMemory m = card.replay().memory;
  EXPECT_EQ(m.after_first_iteration, m.after_iteration);
  EXPECT_GE(m.peak_first_iteration, m.after_first_iteration);
}

TEST(ReplayCard, ADummyGradientTakesWhatTheFirstBackwardHasFreed) {
  Job job = qwen3_8b();
  job.versions.megatron_core = {0, 16};
  job.versions.transformer_engine = {2, 10};
  // The output layer's, bf16, made when the loss has freed its fp32 logits: twice as many bytes for
  // a token, 4,096 tokens against a width of 4,096. Nothing smaller that is free holds it.
  const std::int64_t vocabulary = job.model.padded_vocab_size(2) / 2;
  const std::int64_t logits = round_up(4 * 4096 * vocabulary, 2 << 20);
  const AllocatorSnapshot snapshot = OneCard(job, 0).snapshot();
  std::vector<std::int64_t> segments;
  for (const SnapshotSegment& segment : snapshot.segments) {
    for (const SnapshotBlock& block : segment.blocks) {
      if (block.owner < 0) continue;
      const BlockOwner& owner = snapshot.owners[static_cast<std::size_t>(block.owner)];
      if (owner.name != "output layer's dummy gradient") continue;
      EXPECT_EQ(block.requested, 2 * 4096 * vocabulary);
      segments.push_back(segment.size());
    }
  }
  EXPECT_EQ(segments, std::vector<std::int64_t>{logits});
}

TEST(ReplayCard, Fp32CopiesOfGradientsLiveFromTheStepToTheNextIteration) {
  Job job = qwen3_8b();
  job.options.optimizer.main_grad_bytes = 2;
  EXPECT_EQ(OneCard(job, 0).replay().memory.gradient_copies, Bytes());
  job.options.optimizer.fp32_grad_copies = true;
  Bytes least;
  Bytes most;
  for (const GradientBuffer& buffer : gradient_buffers(job, 0)) {
    for (const std::int64_t piece : buffer.owned_pieces) {
      least += Bytes(4 * piece);
      most += Bytes(4 * piece) + 1 * kMiB + Bytes(512);  // the largest tail of a block
    }
  }
  const OneCard card(job, 0);
  const CardMemory m = card.replay().memory;
  EXPECT_GE(m.gradient_copies, least);
  EXPECT_LE(m.gradient_copies, most);
  EXPECT_GE(m.after_iteration, card.resident_bytes() + least - 8 * kMiB);
  EXPECT_LE(m.peak_in_pass, card.resident_bytes() + card.activations() + 64 * kMiB);
  EXPECT_EQ(m.peaks_in_optimizer_step(), m.peak > m.peak_in_pass);
}

TEST(ReplayCard, OneMicrobatchReplacesWhatTheIterationBeforeLeft) {
  Job job = two_stage_job();
  job.batch.global_batch_size = job.batch.micro_batch_size * job.layout.data();
  const OneCard card(job, 1);
  EXPECT_EQ(card.replay().memory.after_first_iteration, card.replay().memory.after_iteration);
}

TEST(ReplayCard, FitsAtWhatItReservesAndNotBelowWhatItAllocates) {
  const OneCard card(qwen3_8b(), 0);
  const CardMemory m = card.replay().memory;
  EXPECT_FALSE(card.replay(m.reserved).out_of_memory);
  const std::optional<OutOfMemory> refused = card.replay(m.peak - Bytes(1)).out_of_memory;
  ASSERT_TRUE(refused);
  EXPECT_EQ(refused->iteration, 2);  // the first has no moments yet
  EXPECT_GE(refused->event, 0);
  EXPECT_GT(refused->reserved + refused->requested, m.peak - Bytes(1));
}

TEST(ReplayCard, BlocksOfCollectivesAreReusedLateWhereTheCpuRunsAhead) {
  const OneCard card(qwen3_32b(), 0);
  const StageClock at_once = card.device_that_takes(0);
  const StageClock late = card.device_that_takes(1000);
  const CardMemory never_recorded = card.replay().memory;
  EXPECT_EQ(card.replay(kNoLimit, &at_once).memory.reserved, never_recorded.reserved);
  EXPECT_GT(card.replay(kNoLimit, &late).memory.reserved, never_recorded.reserved);
  // Freed is freed: what waits for reuse is no longer allocated. Only tails may differ.
  EXPECT_NEAR(to_mib(card.replay(kNoLimit, &late).memory.after_iteration),
              to_mib(never_recorded.after_iteration), 64);
}

// Found when interleaved stages, whose CPU never waits, were said not to fit.
TEST(ReplayCard, WaitsForTheDeviceBeforeItRunsOutOfMemory) {
  const OneCard card(qwen3_32b(), 0);
  const StageClock late = card.device_that_takes(1000);
  const Bytes at_once = card.replay().memory.reserved;
  const Bytes running_ahead = card.replay(kNoLimit, &late).memory.reserved;
  const Bytes between((at_once.value + running_ahead.value) / 2);
  const CardReplay limited = card.replay(between, &late);
  EXPECT_FALSE(limited.out_of_memory.has_value());
  EXPECT_LE(limited.memory.reserved, between);
  EXPECT_GT(limited.memory.alloc_retries, 0);
  EXPECT_EQ(card.replay(kNoLimit, &late).memory.alloc_retries, 0);
}

TEST(Simulate, SaysWhetherTheTightestStageFits) {
  const Job job = two_stage_job();
  HardwareProfile profile = load_hardware_profile("bw1000");
  const SimulationResult roomy = simulate(job, profile, balanced_routing(job)).result;
  EXPECT_TRUE(roomy.fits());
  EXPECT_FALSE(roomy.gives_back());
  EXPECT_GT(roomy.headroom(), Bytes(0));

  const Bytes needed = roomy.limit() - roomy.headroom();
  const Bytes outside = roomy.capacity - roomy.limit();
  profile.capacity_gib.value = to_gib(needed + outside) / 2;
  const SimulationResult tight = simulate(job, profile, balanced_routing(job)).result;
  EXPECT_FALSE(tight.fits());
  EXPECT_FALSE(tight.gives_back());
  EXPECT_LT(tight.headroom(), Bytes(0));
}

}  // namespace
}  // namespace tidemark::card_memory_test
