// Combined slots in the interleaver's order, on random jobs: every order is legal, and every engine
// and memory model sees the same slot. Orders are taken whether they are shorter or not.

#include "planner/slot_interleaving.h"

#include <cstdint>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "hw_profiles/hardware_profile.h"
#include "planner/check_order.h"
#include "planner/interleaver.h"
#include "sim/check_schedule.h"
#include "sim/lane_engine.h"
#include "sim/memory_profile.h"
#include "sim/memory_sequence.h"
#include "tests/support/naive_engine.h"
#include "tests/support/naive_memory.h"
#include "tests/support/optional_stages.h"
#include "tests/support/random_jobs.h"

namespace tidemark::slot_interleaving_test {
namespace {

#ifdef __SANITIZE_ADDRESS__
constexpr std::uint64_t kSeeds = 60;
#else
constexpr std::uint64_t kSeeds = 240;
#endif

const HardwareProfile& bw1000() {
  static const HardwareProfile profile = load_hardware_profile("bw1000");
  return profile;
}

// The stages' graphs with an order for each pair of chunks that the schedule combines. Optional
// actions are not taken while it is sought.
std::vector<OperatorGraph> interleaved_graphs(const Job& job, const Program& program,
                                              std::uint64_t seed) {
  const LaneRows rows(job, balanced_routing(job));
  std::vector<OperatorGraph> graphs;
  for (const StageProgram& stage : program.stages) {
    OperatorGraph& graph = graphs.emplace_back(stage.graph);
    for (const auto& [key, fused] : stage.fused) {
      if (key.first || key.last) continue;  // with operators of an iteration's border
      const InterleavableSlot slot =
          interleavable_slot(graph, fused, run_alone(program, fused, rows));
      const StreamOrder order = interleave(slot.problem, {});
      EXPECT_THAT(check_order(slot.problem, order), testing::IsEmpty()) << describe(job, seed);
      std::vector<std::int32_t> issued = issue_order(slot, order.order);
      EXPECT_EQ(issued.size(), fused.ops.size()) << describe(job, seed);
      graph.slot_orders[{key.forward_chunk, key.backward_chunk}] = std::move(issued);
    }
  }
  return graphs;
}

void expect_agreement(const Job& job, std::uint64_t seed) {
  const Program program =
      build_program(job, bw1000(), interleaved_graphs(job, build_program(job, bw1000()), seed));
  ASSERT_THAT(check_schedule(program.schedule), testing::IsEmpty()) << describe(job, seed);
  const LaneRows rows(job, random_routing(job, seed));
  const IterationTimes times = run_units(program, {&rows, 1});
  const NaiveRun naive = run_naively(program, {&rows, 1});
  ASSERT_EQ(times.iteration_ns, naive.iteration_ns) << describe(job, seed);
  for (std::size_t stage = 0; stage < program.stages.size(); ++stage) {
    ASSERT_EQ(times.units[0].stages[stage].finish_ns, naive.units[0].finish_ns[stage])
        << describe(job, seed);
  }
  for (std::int32_t stage = 0; stage < job.layout.pipeline; ++stage) {
    const OperatorGraph& graph = program.stages[static_cast<std::size_t>(stage)].graph;
    const MemorySequence sequence = build_memory_sequence(graph, program.schedule, stage);
    const StageMemory memory = profile_memory(job, graph, sequence, rows);
    const NaiveMemory replayed = replay(job, graph, sequence, rows, 0);
    ASSERT_EQ(memory.lanes[0].bytes.value, replayed.peak) << describe(job, seed);
    if (!job.layout.is_megatrons()) continue;
    const NaiveMemory python = run_schedule(job, graph, stage, rows, 0);
    ASSERT_EQ(memory.lanes[0].bytes.value, python.peak) << describe(job, seed);
    ASSERT_EQ(memory.carried_over.value, python.left_behind) << describe(job, seed);
  }
}

// Each microbatch takes actions at random.
void expect_agreement_with_actions(const Job& job, std::uint64_t seed) {
  Rng rng(seed);
  const std::vector<OptionalGraph> stages = optional_stages(job, bw1000());
  const Program megatron = build_program(job, bw1000(), graphs_of(stages));
  const Program program = build_program(job, bw1000(), interleaved_graphs(job, megatron, seed));
  const LaneRows rows(job, random_routing(job, seed));
  UnitDecisions decisions;
  for (const OptionalGraph& stage : stages) {
    decisions.push_back(random_decisions(stage, program.schedule.microbatches, rng));
  }
  const IterationTimes times = run_units(program, {&rows, 1}, {}, {&decisions, 1});
  const NaiveRun naive = run_naively(program, {&rows, 1}, {&decisions, 1});
  ASSERT_EQ(times.iteration_ns, naive.iteration_ns) << describe(job, seed);
  for (std::size_t stage = 0; stage < stages.size(); ++stage) {
    const OperatorGraph& graph = program.stages[stage].graph;
    const MemorySequence sequence =
        decided(build_memory_sequence(graph, program.schedule, static_cast<std::int32_t>(stage)),
                decisions[stage]);
    const StageMemory memory = profile_memory(job, graph, sequence, rows);
    ASSERT_EQ(memory.lanes[0].bytes.value, replay(job, graph, sequence, rows, 0).peak)
        << describe(job, seed);
  }
}

TEST(SlotInterleaving, EnginesAndMemoryModelsAgreeOnItWithOptionalActions) {
  int compared = 0;
  for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) {
    for (Job job : {random_job(seed), random_scheduled_job(seed)}) {
      job.options.offload_ratio = 0;
      if (!job.combines_slots()) continue;
      ++compared;
      ASSERT_NO_FATAL_FAILURE(expect_agreement_with_actions(job, seed));
    }
  }
  EXPECT_GT(compared, static_cast<int>(kSeeds) / 8);
}

TEST(SlotInterleaving, EnginesAndMemoryModelsAgreeOnIt) {
  int compared = 0;
  for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) {
    for (const Job& job : {random_job(seed), random_scheduled_job(seed)}) {
      if (!job.combines_slots()) continue;
      ++compared;
      ASSERT_NO_FATAL_FAILURE(expect_agreement(job, seed));
    }
  }
  EXPECT_GT(compared, static_cast<int>(kSeeds) / 8);
}

}  // namespace
}  // namespace tidemark::slot_interleaving_test
