#include "sim/schedule.h"

#include <algorithm>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "sim/check_schedule.h"

namespace tidemark::schedule_test {
namespace {

// "F0", "B0" for slots; "n0/1": with the next stage, microbatch 0 sent, 1 received; "p" previous.
std::string text(const Schedule& schedule, std::int32_t stage) {
  const auto number = [](std::int32_t m) { return m < 0 ? "-" : std::to_string(m); };
  const auto pair = [&](const char* peer, ChunkTensor sent, ChunkTensor received) {
    if (!sent.valid() && !received.valid()) return std::string();
    return peer + number(sent.microbatch) + "/" + number(received.microbatch);
  };
  std::string out;
  for (const Step& step : schedule.stages[static_cast<std::size_t>(stage)]) {
    if (!out.empty()) out += " ";
    if (const Slot* slot = std::get_if<Slot>(&step)) {
      out += (slot->kind == SlotKind::kForward ? "F" : "B") + number(slot->microbatch);
    } else {
      const auto& t = std::get<Transfer>(step);
      out += pair("n", t.send_activation, t.receive_gradient) +
             pair("p", t.send_gradient, t.receive_activation);
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

TEST(Build1F1B, OneStageAlternatesWithoutTransfers) {
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

struct Shape {
  std::int32_t stages = 1;
  std::int32_t microbatches = 1;
  std::int32_t chunks = 1;
  std::int32_t in_a_row = 0;
  bool overlaps = true;
  bool overlaps_experts = false;
};

// All that Megatron accepts with up to 6 stages, 13 microbatches and 4 chunks.
std::vector<Shape> shapes() {
  std::vector<Shape> out;
  for (std::int32_t p = 1; p <= 6; ++p) {
    for (std::int32_t m = 1; m <= 13; ++m) {
      out.push_back({p, m, 1, 0, false});
      for (std::int32_t v = 2; p >= 2 && v <= 4; ++v) {
        for (std::int32_t n = p; n <= m; ++n) {
          if (m % n != 0 && m % n < p) continue;
          for (const bool overlaps : {false, true}) {
            for (const bool experts : {false, true}) {
              out.push_back({p, m, v, n, overlaps, experts});
            }
          }
        }
      }
    }
  }
  return out;
}

Schedule build(const Shape& s) {
  return s.chunks == 1
             ? build_1f1b(s.stages, s.microbatches)
             : build_interleaved_1f1b(s.stages, s.microbatches,
                                      {s.chunks, s.in_a_row, s.overlaps, s.overlaps_experts});
}

std::string describe(const Shape& s) {
  return "p " + std::to_string(s.stages) + " m " + std::to_string(s.microbatches) + " v " +
         std::to_string(s.chunks) + " N " + std::to_string(s.in_a_row) +
         (s.overlaps ? " overlapped" : "") + (s.overlaps_experts ? " experts too" : "");
}

TEST(Schedules, AreLegal) {
  for (const Shape& shape : shapes()) {
    EXPECT_THAT(check_schedule(build(shape)), testing::IsEmpty()) << describe(shape);
  }
}

// The table of get_schedule_table's docstring: PP2 N3 M5 VP2.
TEST(BuildInterleaved1F1B, RunsGroupsOfMicrobatchesChunkByChunk) {
  const Schedule s = build_interleaved_1f1b(2, 5, {2, 3, true});
  std::string microbatches;
  std::string chunks;
  for (const Step& step : s.stages[1]) {
    const Slot* slot = std::get_if<Slot>(&step);
    if (slot == nullptr || slot->kind == SlotKind::kBackward) continue;
    microbatches += std::to_string(slot->microbatch);
    chunks += std::to_string(slot->chunk);
  }
  EXPECT_EQ(microbatches, "0120123434");
  EXPECT_EQ(chunks, "0001110011");
}

TEST(PeakInFlight, OfInterleavingIsTheWarmupAndOneMore) {
  for (const Shape& shape : shapes()) {
    if (shape.chunks == 1) continue;
    const Schedule s = build(shape);
    for (std::int32_t r = 0; r < shape.stages; ++r) {
      const std::int32_t warmup = 2 * (shape.stages - r - 1) + (shape.chunks - 1) * shape.in_a_row +
                                  (shape.overlaps_experts ? 1 : 0);
      EXPECT_EQ(peak_in_flight(s, r), std::min(warmup + 1, shape.chunks * shape.microbatches))
          << describe(shape);
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
}  // namespace tidemark::schedule_test
