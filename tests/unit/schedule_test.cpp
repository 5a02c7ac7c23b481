#include "sim/schedule.h"

#include <algorithm>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace tidemark {
namespace {

// "F0", "B0" for slots; "n0/1": with the next stage, microbatch 0 sent, 1 received; "p" previous.
std::string text(const Schedule& schedule, std::int32_t stage) {
  const auto number = [](std::int32_t m) { return m < 0 ? "-" : std::to_string(m); };
  std::string out;
  for (const Step& step : schedule.stages[static_cast<std::size_t>(stage)]) {
    if (!out.empty()) out += " ";
    if (const Slot* slot = std::get_if<Slot>(&step)) {
      out += (slot->kind == SlotKind::kForward ? "F" : "B") + number(slot->microbatch);
    } else {
      const auto& e = std::get<Exchange>(step);
      out += (e.peer > stage ? "n" : "p") + number(e.send_microbatch) + "/" +
             number(e.receive_microbatch);
    }
  }
  return out;
}

TEST(Build1F1B, OrdersFourStagesAndEightMicrobatchesAsMegatronDoes) {
  const Schedule s = build_1f1b(4, 8);
  // Three warm-up forwards, five pairs, three remaining backwards.
  EXPECT_EQ(text(s, 0),
            "F0 n0/- F1 n1/- F2 n2/- "
            "F3 n3/0 B0 F4 n4/1 B1 F5 n5/2 B2 F6 n6/3 B3 F7 n7/4 B4 "
            "n-/5 B5 n-/6 B6 n-/7 B7");
  EXPECT_EQ(text(s, 1),
            "p-/0 F0 n0/- p-/1 F1 n1/- p-/2 "
            "F2 n2/0 B0 p0/3 F3 n3/1 B1 p1/4 F4 n4/2 B2 p2/5 F5 n5/3 B3 p3/6 F6 n6/4 B4 p4/7 "
            "F7 n7/5 B5 p5/- n-/6 B6 p6/- n-/7 B7 p7/-");
  EXPECT_EQ(text(s, 2),
            "p-/0 F0 n0/- p-/1 "
            "F1 n1/0 B0 p0/2 F2 n2/1 B1 p1/3 F3 n3/2 B2 p2/4 F4 n4/3 B3 p3/5 F5 n5/4 B4 p4/6 "
            "F6 n6/5 B5 p5/7 F7 n7/6 B6 p6/- n-/7 B7 p7/-");
  // No warm-up: every forward is followed by its backward.
  EXPECT_EQ(text(s, 3),
            "p-/0 F0 B0 p0/1 F1 B1 p1/2 F2 B2 p2/3 F3 B3 p3/4 F4 B4 p4/5 F5 B5 p5/6 F6 B6 p6/7 "
            "F7 B7 p7/-");
}

TEST(Build1F1B, OneStageAlternatesWithoutExchanges) {
  EXPECT_EQ(text(build_1f1b(1, 3), 0), "F0 B0 F1 B1 F2 B2");
}

TEST(Build1F1B, FewerMicrobatchesThanStagesAreAllWarmup) {
  const Schedule s = build_1f1b(4, 2);
  EXPECT_EQ(text(s, 0), "F0 n0/- F1 n1/- n-/0 B0 n-/1 B1");
  EXPECT_EQ(text(s, 2), "p-/0 F0 n0/- p-/1 F1 n1/0 B0 p0/- n-/1 B1 p1/-");
}

TEST(PeakInFlight, IsTheSmallerOfMicrobatchesAndStagesAhead) {
  for (std::int32_t p = 1; p <= 9; ++p) {
    for (std::int32_t m = 1; m <= 12; ++m) {
      const Schedule s = build_1f1b(p, m);
      for (std::int32_t r = 0; r < p; ++r) EXPECT_EQ(peak_in_flight(s, r), std::min(m, p - r));
    }
  }
}

// What a stage sends to its neighbour, the neighbour receives, in the same order.
TEST(Build1F1B, NeighboursPostMirroredExchanges) {
  for (std::int32_t p = 2; p <= 6; ++p) {
    for (std::int32_t m = 1; m <= 10; ++m) {
      const Schedule s = build_1f1b(p, m);
      const auto with = [&](std::int32_t stage, std::int32_t peer) {
        std::vector<Exchange> out;
        for (const Step& step : s.stages[static_cast<std::size_t>(stage)]) {
          const Exchange* e = std::get_if<Exchange>(&step);
          if (e != nullptr && e->peer == peer) out.push_back(*e);
        }
        return out;
      };
      for (std::int32_t r = 0; r + 1 < p; ++r) {
        const std::vector<Exchange> down = with(r, r + 1);
        const std::vector<Exchange> up = with(r + 1, r);
        ASSERT_EQ(down.size(), up.size());
        for (std::size_t i = 0; i < down.size(); ++i) {
          EXPECT_EQ(down[i].send_microbatch, up[i].receive_microbatch);
          EXPECT_EQ(down[i].receive_microbatch, up[i].send_microbatch);
        }
      }
    }
  }
}

TEST(Build1F1B, RunsEveryMicrobatchForwardBeforeBackwardOnce) {
  for (std::int32_t p = 1; p <= 5; ++p) {
    const Schedule s = build_1f1b(p, 6);
    for (const auto& steps : s.stages) {
      std::int32_t forwards = 0;
      std::int32_t backwards = 0;
      for (const Step& step : steps) {
        const Slot* slot = std::get_if<Slot>(&step);
        if (slot == nullptr) continue;
        if (slot->kind == SlotKind::kForward) {
          EXPECT_EQ(slot->microbatch, forwards++);
        } else {
          EXPECT_EQ(slot->microbatch, backwards++);
          EXPECT_LE(backwards, forwards);
        }
      }
      EXPECT_EQ(forwards, 6);
      EXPECT_EQ(backwards, 6);
    }
  }
}

}  // namespace
}  // namespace tidemark
