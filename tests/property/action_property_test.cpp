// Random actions on the graphs of random jobs: the changed graph is consistent, frees what the
// catalogue says, and both engines and both memory models agree on it.
#include <algorithm>
#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

#include "hw_profiles/hardware_profile.h"
#include "models/layer_operators.h"
#include "planner/action_catalogue.h"
#include "planner/apply_actions.h"
#include "sim/lane_engine.h"
#include "sim/memory_sequence.h"
#include "sim/program.h"
#include "tests/support/naive_engine.h"
#include "tests/support/naive_memory.h"
#include "tests/support/random_jobs.h"

namespace tidemark {
namespace {

std::int64_t balanced_rows(const Job& job) {
  const bool has_experts = job.model.moe && job.model.num_moe_layers() > 0;
  return has_experts ? rows_sent(job) * job.layout.expert_tensor : 0;
}

Size kept_bytes(const OperatorGraph& graph) {
  Size sum;
  for (StorageId s : kept_storages(graph)) sum = sum + graph.storages[s.index()].bytes;
  return sum;
}

struct Changed {
  OperatorGraph before;
  OperatorGraph after;
  Size freed;
  int actions = 0;
};

Changed with_random_actions(const Job& job, const OperatorCosts& costs, std::int64_t stage,
                            Rng& rng) {
  Changed out;
  out.before = build_operator_graph(job, stage);
  // The jobs are tiny: nothing is too small.
  const ActionCatalogue catalogue =
      build_action_catalogue(out.before, costs, balanced_rows(job), 0);
  std::vector<std::int32_t> choice;
  for (const CatalogueEntry& entry : catalogue.entries) {
    choice.push_back(static_cast<std::int32_t>(rng.below(std::ssize(entry.actions))));
    out.freed = out.freed + entry.actions[static_cast<std::size_t>(choice.back())].freed;
    out.actions += choice.back() != 0;
  }
  out.after = apply_actions(out.before, catalogue, choice);
  return out;
}

TEST(ApplyActions, FreesWhatTheCatalogueSays) {
  const HardwareProfile profile = load_hardware_profile("bw1000");
  int actions = 0;
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    const Job job = random_job(seed);
    const OperatorCosts costs(job, profile);
    Rng rng(seed);
    for (std::int64_t stage = 0; stage < job.layout.pipeline; ++stage) {
      const Changed changed = with_random_actions(job, costs, stage, rng);
      actions += changed.actions;
      ASSERT_EQ(kept_bytes(changed.after) + changed.freed, kept_bytes(changed.before))
          << describe(job, seed);
    }
  }
  EXPECT_GT(actions, 2000);
}

TEST(ApplyActions, EnginesAndMemoryModelsAgree) {
  const HardwareProfile profile = load_hardware_profile("bw1000");
  for (std::uint64_t seed = 1; seed <= 120; ++seed) {
    Job job = random_job(seed);
    job.options.offload_ratio = 0;  // Kwai's, which changes the graph itself
    const OperatorCosts costs(job, profile);
    Rng rng(seed);
    std::vector<OperatorGraph> graphs;
    for (std::int64_t stage = 0; stage < job.layout.pipeline; ++stage) {
      graphs.push_back(with_random_actions(job, costs, stage, rng).after);
    }
    const LaneRows rows(job, random_routing(job, seed));
    const Program program = build_program(job, profile, graphs);
    const UnitTimes times = run_unit(program, rows);
    ASSERT_EQ(times.iteration_ns, run_naively(program, rows).iteration_ns) << describe(job, seed);
    if (job.layout.virtual_pipeline > 1) continue;  // the naive schedule is without interleaving
    for (std::int64_t stage = 0; stage < job.layout.pipeline; ++stage) {
      const OperatorGraph& graph = graphs[static_cast<std::size_t>(stage)];
      const MemorySequence sequence =
          build_memory_sequence(graph, program.schedule, static_cast<std::int32_t>(stage));
      const NaiveMemory replayed = replay(job, graph, sequence, rows, 0);
      const NaiveMemory run = run_schedule(job, graph, stage, rows, 0);
      ASSERT_EQ(replayed.peak, run.peak) << describe(job, seed);
      ASSERT_EQ(replayed.left_behind, run.left_behind) << describe(job, seed);
    }
  }
}

}  // namespace
}  // namespace tidemark
