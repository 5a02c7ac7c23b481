// One stage, one microbatch, two lanes of one MoE layer; forward: x = 512 bytes, then y = 100 bytes
// a row, then z = 512 bytes in place of x; backward reads y.
#include "sim/memory_profile.h"

#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/graphs.h"
#include "tests/support/jobs.h"

namespace tidemark::memory_profile_test {
namespace {

using testing::ElementsAre;
using testing::Field;
using testing::IsEmpty;

struct Case {
  Job job;
  OperatorGraph graph;
  MemorySequence sequence;
};

Operator op(std::vector<StorageId> reads, std::vector<StorageId> writes) {
  Operator out;
  out.work = StreamingWork{};
  out.reads = std::move(reads);
  out.writes = std::move(writes);
  return out;
}

Case small_case() {
  Case c;
  c.job = two_stage_job();
  c.job.layout.pipeline = 1;
  c.job.layout.expert = 2;
  c.job.batch.global_batch_size = 2;  // DP 2
  c.job.model.num_layers = 1;
  c.job.model.moe_layer = {true};
  c.graph.storages = {{"x", {512, 0}, -1, StorageRole::kActivation},
                      {"y", {0, 100}, 0, StorageRole::kActivation},
                      {"z", {512, 0}, -1, StorageRole::kActivation}};
  const StorageId x(0);
  const StorageId y(1);
  const StorageId z(2);
  c.graph.forward = {op({}, {x}), op({x}, {y}), op({y}, {z}), op({z}, {})};
  c.graph.backward = {op({y}, {})};
  close_chunk(c.graph);
  c.sequence = build_memory_sequence(c.graph, build_1f1b(1, 1), 0);
  return c;
}

LaneRows rows_of(const Job& job, std::int64_t first, std::int64_t second) {
  RoutingCounts counts;
  counts.microbatches = counts.moe_layers = 1;
  counts.experts = 2;
  counts.counts = {first, second};
  return LaneRows(job, counts);
}

std::vector<std::int64_t> peaks(const Case& c, const LaneRows& rows) {
  std::vector<std::int64_t> out;
  for (const LanePeak& p : profile_memory(c.job, c.graph, c.sequence, rows).lanes) {
    out.push_back(p.bytes.value);
  }
  return out;
}

TEST(ProfileMemory, CountsBlocksOf512Bytes) {
  const Case c = small_case();
  // 5 rows: 500 bytes in one block; 6 rows: 600 bytes in two. Beside it x or z.
  EXPECT_THAT(peaks(c, rows_of(c.job, 5, 6)), ElementsAre(512 + 512, 512 + 1024));
}

TEST(ProfileMemory, ALaneWithoutRowsHoldsTheRest) {
  const Case c = small_case();
  EXPECT_THAT(peaks(c, rows_of(c.job, 0, 512)), ElementsAre(512, 512 + 51200));
}

TEST(ProfileMemory, NamesTheFirstEventOfThePeak) {
  // Events: +x, +y, -x, +z, ...: y beside x is as much as y beside z, so the first counts.
  const Case c = small_case();
  const StageMemory m = profile_memory(c.job, c.graph, c.sequence, rows_of(c.job, 5, 0));
  EXPECT_EQ(m.lanes[0].event, 1);
  EXPECT_EQ(m.lanes[1].event, 0);  // x alone
}

TEST(ProfileMemory, TheFirstIterationHasNothingFromBefore) {
  Case c = small_case();
  c.graph.storages[0].role = StorageRole::kModuleState;  // x: held until the next forward
  c.sequence = build_memory_sequence(c.graph, build_1f1b(1, 1), 0);
  const StageMemory m = profile_memory(c.job, c.graph, c.sequence, rows_of(c.job, 5, 0));
  EXPECT_EQ(m.carried_over, Bytes(512));
  // Lane 1: the new x beside the old one, later x and z; in the first iteration x and z too.
  EXPECT_EQ(m.lanes[1].bytes, Bytes(1024));
  EXPECT_EQ(m.lanes[1].first_iteration, Bytes(1024));
  // Lane 0: x, y and z; the old x is gone by then.
  EXPECT_EQ(m.lanes[0].bytes, Bytes(3 * 512));
  EXPECT_EQ(m.lanes[0].first_iteration, Bytes(3 * 512));
}

TEST(ProfileMemory, WhatIsLeftOverCountsOnlyBeforeItIsReplaced) {
  Case c = small_case();
  c.graph.storages[0].role = StorageRole::kModuleState;  // x
  c.graph.forward = {op({}, {StorageId(1)}), op({StorageId(1)}, {}), op({}, {StorageId(0)})};
  c.graph.backward = {op({StorageId(0)}, {StorageId(2)})};
  close_chunk(c.graph);
  c.sequence = build_memory_sequence(c.graph, build_1f1b(1, 1), 0);
  // y (10 rows, 1000 bytes) beside the old x, and dead before the new one is made.
  const StageMemory m = profile_memory(c.job, c.graph, c.sequence, rows_of(c.job, 10, 0));
  EXPECT_EQ(m.lanes[0].bytes, Bytes(512 + 1024));
  EXPECT_EQ(m.lanes[0].first_iteration, Bytes(1024));
}

TEST(ProfileMemory, ANewAttributeIsMadeBesideTheOldOne) {
  Case c = small_case();
  // Event 0: the new x is there, the module still names the old one. The first iteration has no old
  // one, and peaks at x and z.
  c.graph.storages[0] = {"x", {1 << 20, 0}, -1, StorageRole::kModuleState};
  c.sequence = build_memory_sequence(c.graph, build_1f1b(1, 1), 0);
  const StageMemory m = profile_memory(c.job, c.graph, c.sequence, rows_of(c.job, 0, 0));
  EXPECT_EQ(m.lanes[0].bytes, 2 * kMiB);
  EXPECT_EQ(m.lanes[0].event, 0);
  EXPECT_EQ(m.lanes[0].first_iteration, kMiB + Bytes(512));
}

TEST(LiveStoragesAtAnEvent, ComeLargestFirst) {
  const Case c = small_case();
  const LaneRows rows = rows_of(c.job, 6, 0);
  const auto name = [](const char* n, std::int64_t bytes) {
    return testing::AllOf(Field(&LiveStorage::name, n), Field(&LiveStorage::bytes, Bytes(bytes)));
  };
  EXPECT_THAT(live_storages(c.job, c.graph, c.sequence, rows, 0, -1), IsEmpty());
  EXPECT_THAT(live_storages(c.job, c.graph, c.sequence, rows, 0, 0), ElementsAre(name("x", 512)));
  EXPECT_THAT(live_storages(c.job, c.graph, c.sequence, rows, 0, 1),
              ElementsAre(name("y", 1024), name("x", 512)));
}

TEST(LiveStoragesAtAnEvent, OfSeveralMicrobatchesAreCountedTogether) {
  Case c = small_case();
  c.job.batch.global_batch_size = 4;  // two microbatches
  c.sequence.events = {{0, 0, 0, 0, true}, {1, 0, 0, 1, true}};
  const auto live = live_storages(c.job, c.graph, c.sequence, rows_of(c.job, 0, 0), 0, 1);
  ASSERT_EQ(live.size(), 1u);
  EXPECT_EQ(live[0].copies, 2);
  EXPECT_EQ(live[0].bytes, Bytes(1024));
}

}  // namespace
}  // namespace tidemark::memory_profile_test
