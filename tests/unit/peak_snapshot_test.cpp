#include "sim/peak_snapshot.h"

#include <map>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/support/jobs.h"
#include "tools/memory_snapshot.h"

namespace tidemark::peak_snapshot_test {
namespace {

AllocatorSnapshot snapshot_of(const Job& job, const Simulation& simulation, std::int64_t stage) {
  return snapshot_at_peak(job, load_hardware_profile(job.hardware), simulation, stage);
}

Simulation simulated(const Job& job) {
  return simulate(job, load_hardware_profile(job.hardware), balanced_routing(job));
}

TEST(SnapshotAtPeak, HoldsThePeakAllocated) {
  const Job job = qwen3_8b();  // one kind of lane; blocks' tails differ from the sum of storages
  const Simulation simulation = simulated(job);
  const StageResult& stage = simulation.result.stages[0];
  const AllocatorSnapshot snapshot = snapshot_of(job, simulation, 0);
  EXPECT_NEAR(to_mib(Bytes(snapshot.allocated())), to_mib(stage.peak_allocated()), 64);
  EXPECT_LE(Bytes(snapshot.reserved()), stage.peak_reserved());
  EXPECT_GE(snapshot.reserved(), snapshot.allocated());
}

TEST(SnapshotAtPeak, NamesWhatBlocksHold) {
  const Job job = two_stage_job();
  const AllocatorSnapshot snapshot = snapshot_of(job, simulated(job), 0);
  std::map<std::string, std::int64_t> bytes;
  for (const SnapshotSegment& segment : snapshot.segments) {
    for (const SnapshotBlock& block : segment.blocks) {
      if (block.state == BlockState::kFree) continue;
      bytes[snapshot.owners[static_cast<std::size_t>(block.owner)].name] += block.requested;
    }
  }
  // fp32 main parameters of all of the stage's weights: one data-parallel rank owns them.
  const std::int64_t parameters = simulated(job).result.stages[0].parameters;
  EXPECT_EQ(bytes["weight buffer"], 2 * parameters);
  EXPECT_EQ(bytes["main parameters"], 4 * parameters);
}

// As pytorch.org/memory_viz reads it: from the last state back to the first.
TEST(MemorySnapshot, ItsTraceLeadsBackToTheBeginningOfTheIteration) {
  const Job job = qwen3_32b();
  const auto json = memory_snapshot_json(snapshot_of(job, simulated(job), 1));
  std::map<std::int64_t, bool> live;  // [address] -> freed, but awaited by another stream
  std::int64_t reserved = 0;
  for (const auto& segment : json["segments"]) {
    std::int64_t address = segment["address"];
    for (const auto& block : segment["blocks"]) {
      EXPECT_EQ(block["address"], address);
      address += block["size"].get<std::int64_t>();
      if (block["state"] != "inactive")
        live[block["address"]] = block["state"] != "active_allocated";
    }
    reserved += segment["total_size"].get<std::int64_t>();
    EXPECT_EQ(address - segment["address"].get<std::int64_t>(), segment["total_size"]);
  }
  const auto& trace = json["device_traces"][0];
  ASSERT_GT(trace.size(), 100U);
  for (std::size_t i = trace.size(); i-- > 0;) {
    const std::int64_t address = trace[i]["addr"];
    const std::string action = trace[i]["action"];
    if (action == "alloc") {
      EXPECT_EQ(live.erase(address), 1U);
    } else if (action == "free_completed") {
      EXPECT_TRUE(live.emplace(address, true).second);
    } else if (action == "free_requested") {
      EXPECT_TRUE(live.at(address));
      live.at(address) = false;
    } else if (action == "segment_alloc") {
      reserved -= trace[i]["size"].get<std::int64_t>();
    }
  }
  EXPECT_GT(reserved, 0);
  EXPECT_GT(live.size(), 0U);
}

}  // namespace
}  // namespace tidemark::peak_snapshot_test
