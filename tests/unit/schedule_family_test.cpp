// Microbatches in flight and bubbles of every schedule against the formulas of the papers that
// introduced them, in a world where messages take no time. A bubble is the time between a stage's
// first and last slot in which it runs none, the longest of all stages; of 1F1B, the makespan less
// a stage's work.
#include <algorithm>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "sim/check_schedule.h"
#include "sim/combined_1f1b.h"
#include "sim/dual_pipe.h"
#include "sim/schedule.h"
#include "sim/v_schedules.h"
#include "sim/zero_bubble.h"
#include "tests/support/slot_times.h"

namespace tidemark::schedule_family_test {
namespace {

using testing::IsEmpty;

constexpr std::int32_t kStages[] = {2, 4, 8, 16};

// Times of a chunk's F, B and W; F&B where the two overlap.
constexpr SlotDurations kEqual{10, 10, 10, 30};
const std::vector<SlotDurations> kTimes = {
    kEqual, {10, 12, 8, 30}, {10, 14, 9, 33}, {10, 10, 5, 25}};

std::vector<std::int32_t> microbatches(std::int32_t p) { return {2 * p, 2 * p + 2, 3 * p, 64}; }

Schedule legal(const Schedule& schedule) {
  EXPECT_THAT(check_schedule(schedule), IsEmpty());
  return schedule;
}
Schedule one_chunk(const SlotOrders& orders, std::int32_t m) {
  return legal(with_transfers(orders, m, 1, Placement::kRing));
}
Schedule v_shaped(const SlotOrders& orders, std::int32_t m) {
  return legal(with_transfers(orders, m, 2, Placement::kV));
}
Schedule bidirectional(const SlotOrders& orders, std::int32_t m) {
  return legal(with_transfers(orders, m, 2, Placement::kBidirectional));
}

std::int64_t makespan(const Schedule& s, const SlotDurations& d) {
  std::int64_t end = 0;
  for (const StageSpan& span : slot_times(s, d)) end = std::max(end, span.end);
  return end;
}
std::int64_t bubble(const Schedule& s, const SlotDurations& d) {
  std::int64_t longest = 0;
  for (const StageSpan& span : slot_times(s, d)) longest = std::max(longest, span.idle());
  return longest;
}
std::int32_t most_in_flight(const Schedule& s) {
  std::int32_t most = 0;
  for (std::int32_t r = 0; r < std::ssize(s.stages); ++r) {
    most = std::max(most, peak_in_flight(s, r));
  }
  return most;
}

std::string describe(std::int32_t p, std::int32_t m) {
  return "p " + std::to_string(p) + " m " + std::to_string(m);
}

// (p - 1)(F + B), B whole.
TEST(ScheduleFamily, OneForwardOneBackward) {
  for (const std::int32_t p : kStages) {
    for (const std::int32_t m : microbatches(p)) {
      const Schedule s = legal(build_1f1b(p, m));
      for (const SlotDurations& d : kTimes) {
        const std::int64_t whole = d.forward + d.backward_input + d.backward_weight;
        EXPECT_EQ(makespan(s, d) - m * whole, (p - 1) * whole) << describe(p, m);
      }
    }
  }
}

// (p - 1)(F + B) / v of stages, which is (p - 1)(F + B) of chunks.
TEST(ScheduleFamily, Interleaved) {
  for (const std::int32_t p : kStages) {
    for (const std::int32_t v : {2, 4}) {
      for (const std::int32_t m : {p, 2 * p, 4 * p}) {
        const Schedule s = legal(build_interleaved_1f1b(p, m, {v, p, true}));
        for (const SlotDurations& d : kTimes) {
          const std::int64_t whole = d.forward + d.backward_input + d.backward_weight;
          EXPECT_EQ(makespan(s, d) - m * v * whole, (p - 1) * whole) << describe(p, m);
        }
      }
    }
  }
}

TEST(ScheduleFamily, ZeroBubbleH1) {
  for (const std::int32_t p : kStages) {
    for (const std::int32_t m : microbatches(p)) {
      const Schedule s = one_chunk(build_zb_h1(p, m), m);
      for (std::int32_t r = 0; r < p; ++r) EXPECT_EQ(peak_in_flight(s, r), p - r) << describe(p, m);
      for (const SlotDurations& d : kTimes) {
        EXPECT_EQ(makespan(s, d) - m * (d.forward + d.backward_input + d.backward_weight),
                  (p - 1) * (d.forward + d.backward_input - d.backward_weight))
            << describe(p, m);
      }
    }
  }
}

// 2 (p - r) - 1 needs that many microbatches.
TEST(ScheduleFamily, ZeroBubbleH2) {
  for (const std::int32_t p : kStages) {
    for (const std::int32_t m : microbatches(p)) {
      const Schedule s = one_chunk(build_zb_h2(p, m), m);
      for (std::int32_t r = 0; r < p; ++r) {
        EXPECT_EQ(peak_in_flight(s, r), 2 * (p - r) - 1) << describe(p, m);
      }
      for (const SlotDurations& d : kTimes) {
        EXPECT_EQ(bubble(s, d), (p - 1) * (d.forward + d.backward_input - 2 * d.backward_weight))
            << describe(p, m);
      }
    }
  }
}

// All of 1F1B's memory, p stages of two chunks. The formula's zero bubble lets input gradients give
// back half of a chunk; where weight gradients need all of it, a stage waits while the memory is
// full, once, before its backwards come evenly: p + 3 forwards at most, a quarter of 1F1B's bubble.
TEST(ScheduleFamily, ZeroBubbleV) {
  for (const std::int32_t p : kStages) {
    for (const std::int32_t m : microbatches(p)) {
      const Schedule s = v_shaped(build_zb_v(p, m), m);
      EXPECT_LE(most_in_flight(s), 2 * p) << describe(p, m);
      EXPECT_LE(bubble(s, kEqual), (p + 3) * kEqual.forward) << describe(p, m);
      EXPECT_LE(bubble(s, kEqual), (p - 1) * 6 * kEqual.forward / 4) << describe(p, m);
    }
  }
}

// 1F1B holds p microbatches, 2 p chunks, and waits (p - 1)(F + B) = (p - 1) 2 (f + b + w) of
// chunks. The papers' shares hold for many stages: half and a third of the chunks, rounded up, and
// one or two more (where one microbatch's passes touch on a stage); half of the bubble and one
// sixth for what the pattern does not close up before the steady phase.
TEST(ScheduleFamily, VHalf) {
  for (const std::int32_t p : kStages) {
    for (const std::int32_t m : microbatches(p)) {
      const Schedule s = v_shaped(build_v_half(p, m), m);
      EXPECT_LE(most_in_flight(s), p + 1) << describe(p, m);
      const std::int64_t of_1f1b = (p - 1) * 2 * 30;
      EXPECT_LE(bubble(s, kEqual), of_1f1b / 2 + of_1f1b / 6) << describe(p, m);
    }
  }
}
TEST(ScheduleFamily, VMin) {
  for (const std::int32_t p : kStages) {
    for (const std::int32_t m : microbatches(p)) {
      const Schedule s = v_shaped(build_v_min(p, m), m);
      EXPECT_LE(most_in_flight(s), (2 * p + 2) / 3 + 1) << describe(p, m);
      EXPECT_LE(bubble(s, kEqual), (p - 1) * 2 * 30 * 2 / 3) << describe(p, m);
    }
  }
}

std::int64_t dual_bubble(std::int32_t half, const SlotDurations& d) {
  const std::int64_t backward = d.backward_input + d.backward_weight;
  return (half - 1) * (d.forward_backward + backward - 3 * d.backward_weight);
}

// The formula takes an input gradient to last as long as a forward; where it lasts longer, the
// bubble is shorter than that.
void expect_dual_bubble(const Schedule& s, std::int32_t half, const std::string& what) {
  for (const SlotDurations& d : kTimes) {
    if (d.forward == d.backward_input) {
      EXPECT_EQ(bubble(s, d), dual_bubble(half, d)) << what;
    } else {
      EXPECT_LE(bubble(s, d), dual_bubble(half, d)) << what;
    }
  }
}

TEST(ScheduleFamily, DualPipe) {
  for (const std::int32_t p : kStages) {
    for (const std::int32_t m : microbatches(p)) {
      const Schedule s = bidirectional(build_dual_pipe(p, m), m);
      for (std::int32_t r = 0; r < p; ++r) EXPECT_EQ(peak_in_flight(s, r), p + 1) << describe(p, m);
      expect_dual_bubble(s, p / 2, describe(p, m));
    }
  }
}

TEST(ScheduleFamily, DualPipeV) {
  for (const std::int32_t p : kStages) {
    for (const std::int32_t m : microbatches(p)) {
      const Schedule s = v_shaped(build_dual_pipe_v(p, m), m);
      for (std::int32_t r = 0; r < p; ++r) {
        EXPECT_EQ(peak_in_flight(s, r), 2 * p + 1) << describe(p, m);
      }
      expect_dual_bubble(s, p, describe(p, m));
    }
  }
}

struct Counts {
  int forwards = 0;
  int fused = 0;
  int whole = 0;
  int input_only = 0;
  friend bool operator==(const Counts&, const Counts&) = default;
};
Counts count(const std::vector<Slot>& order) {
  Counts c;
  for (const Slot& slot : order) {
    c.forwards += slot.kind == SlotKind::kForward;
    c.fused += slot.kind == SlotKind::kForwardBackward;
    c.whole += slot.kind == SlotKind::kBackward;
    c.input_only += slot.kind == SlotKind::kBackwardInput;
  }
  return c;
}

// With the step counts of dualpipe.py, where h is the number of stages to the turning point and r
// the distance from the nearer end: nF0 = 2 (h - r - 1), nF0F1 = r + 1, nB1W1F1 = nB1F1B0 = nWB0 =
// h - r - 1, nB1B0 = nW = r + 1. `main` pairs, of which the first is apart at the turning point.
Counts expected(int h, int r, int main) {
  const int ahead = h - r - 1;
  const int apart = ahead == 0 ? 1 : 0;
  Counts c;
  c.forwards = 2 * ahead + 2 * (r + 1) + ahead + apart;
  c.fused = 2 * main - apart + ahead;
  // Of the 2 (r + 1) backwards of nB1B0 the second half, r + 1, is input gradients only.
  c.whole = apart + ahead + (r + 1);
  c.input_only = ahead + (r + 1) + ahead;
  return c;
}

TEST(ScheduleFamily, DualPipesStepCounts) {
  for (const int p : kStages) {
    for (const int m : {2 * p, 3 * p + p % 2, 64}) {
      const SlotOrders dual = build_dual_pipe(p, m);
      const SlotOrders v = build_dual_pipe_v(p, m);
      for (int r = 0; r < p; ++r) {
        const int near = std::min(r, p - 1 - r);
        const auto at = static_cast<std::size_t>(r);
        EXPECT_EQ(count(dual[at]), expected(p / 2, near, m / 2 - p + near + 1)) << describe(p, m);
        EXPECT_EQ(count(v[at]), expected(p, r, m - 2 * p + r + 1)) << describe(p, m);
      }
    }
  }
}

// 2 (p - r) microbatches in flight. Slots of two that take as long as both are those of 1F1B.
TEST(ScheduleFamily, Combined1F1B) {
  for (const std::int32_t p : kStages) {
    for (const std::int32_t m : microbatches(p)) {
      const Schedule s = one_chunk(build_combined_1f1b(p, m, false), m);
      for (std::int32_t r = 0; r < p; ++r) {
        EXPECT_EQ(peak_in_flight(s, r), 2 * (p - r)) << describe(p, m);
      }
      for (SlotDurations d : kTimes) {
        const std::int64_t whole = d.forward + d.backward_input + d.backward_weight;
        d.forward_backward = whole;
        EXPECT_EQ(makespan(s, d), (m + p - 1) * whole) << describe(p, m);
      }
    }
  }
}

// Few microbatches and odd shapes: legal all the same.
TEST(ScheduleFamily, IsLegalForSmallShapes) {
  for (std::int32_t p = 1; p <= 7; ++p) {
    for (std::int32_t m = 1; m <= 16; ++m) {
      one_chunk(build_zb_h1(p, m), m);
      one_chunk(build_zb_h2(p, m), m);
      for (const bool delays : {false, true}) one_chunk(build_combined_1f1b(p, m, delays), m);
      if (p < 2) continue;
      v_shaped(build_zb_v(p, m), m);
      v_shaped(build_v_half(p, m), m);
      v_shaped(build_v_min(p, m), m);
      if (m >= 2 * p) v_shaped(build_dual_pipe_v(p, m), m);
      if (m >= 2 * p && p % 2 == 0 && m % 2 == 0) bidirectional(build_dual_pipe(p, m), m);
    }
  }
}

}  // namespace
}  // namespace tidemark::schedule_family_test
