#include "planner/pipeline_walk.h"

#include <algorithm>
#include <stdexcept>
#include <variant>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tidemark::pipeline_walk_test {
namespace {

using testing::ElementsAre;

constexpr std::int64_t kForward = 10;
constexpr std::int64_t kBackward = 20;

// All slots of a pass alike.
SlotTime even(const Schedule& schedule, std::size_t stage, std::size_t step) {
  const Slot& slot = std::get<Slot>(schedule.stages[stage][step]);
  return {slot.forward().valid() ? kForward : kBackward, 0};
}

std::int64_t makespan(const Schedule& schedule) {
  const auto done = walk_pipeline(schedule, 0, [&](std::size_t stage, std::size_t step) {
    return even(schedule, stage, step);
  });
  return *std::ranges::max_element(done);
}

TEST(WalkPipeline, EqualSlotsOf1F1BTakeTheTextbookTime) {
  for (std::int32_t p = 1; p <= 5; ++p) {
    for (std::int32_t m = p; m <= 8; ++m) {
      EXPECT_EQ(makespan(build_1f1b(p, m)), (m + p - 1) * (kForward + kBackward)) << p << " " << m;
    }
  }
}

// Interleaving with v chunks cuts the bubble to 1 / v: (p - 1) slots of a chunk.
TEST(WalkPipeline, EqualSlotsOfInterleaved1F1BTakeTheTextbookTime) {
  for (std::int32_t p = 2; p <= 4; ++p) {
    for (std::int32_t v = 2; v <= 3; ++v) {
      const std::int32_t m = 2 * p;
      const Schedule schedule =
          build_interleaved_1f1b(p, m, {.chunks = v, .microbatches_in_a_row = p});
      EXPECT_EQ(makespan(schedule), (m * v + p - 1) * (kForward + kBackward)) << p << " " << v;
    }
  }
}

// F0 10, its copies until 14; message 3; F1 10, B1 20; message 3; B0 20.
TEST(WalkPipeline, ABlockingTransferWaitsForCopies) {
  const Schedule schedule = build_1f1b(2, 1);
  const auto done = walk_pipeline(schedule, 3, [&](std::size_t stage, std::size_t step) {
    SlotTime time = even(schedule, stage, step);
    if (stage == 0 && time.work_ns == kForward) time.copies_ns = 14;
    return time;
  });
  EXPECT_THAT(done, ElementsAre(14 + 3 + 30 + 3 + 20, 14 + 3 + 30 + 3));
}

TEST(WalkPipeline, AStageIsDoneWhenItsCopiesAre) {
  const Schedule schedule = build_1f1b(1, 2);
  const auto done = walk_pipeline(schedule, 0, [&](std::size_t stage, std::size_t step) {
    SlotTime time = even(schedule, stage, step);
    time.copies_ns = 25;
    return time;
  });
  EXPECT_THAT(done, ElementsAre(10 + 20 + 10 + 25));
}

TEST(WalkPipeline, NamesADeadlock) {
  Schedule schedule = build_1f1b(2, 1);
  schedule.stages[0].clear();
  EXPECT_THROW(makespan(schedule), std::logic_error);
}

}  // namespace
}  // namespace tidemark::pipeline_walk_test
