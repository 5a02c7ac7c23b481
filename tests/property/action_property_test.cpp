// Random actions on the graphs of random jobs: the changed graph is consistent, frees what the
// catalogue says, and both engines and both memory models agree on it.
#include <algorithm>
#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

#include "hw_profiles/hardware_profile.h"
#include "models/layer_operators.h"
#include "planner/action_catalogue.h"
#include "planner/optional_actions.h"
#include "sim/card_memory.h"
#include "sim/lane_engine.h"
#include "sim/lane_peaks.h"
#include "sim/memory_sequence.h"
#include "sim/program.h"
#include "sim/simulation.h"
#include "tests/support/apply_actions.h"
#include "tests/support/naive_engine.h"
#include "tests/support/naive_memory.h"
#include "tests/support/optional_stages.h"
#include "tests/support/random_jobs.h"

namespace tidemark::action_property_test {
namespace {

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

Changed with_random_actions(const Job& job, OperatorCosts& costs, std::int64_t stage, Rng& rng) {
  Changed out;
  out.before = build_operator_graph(job, stage);
  // The jobs are tiny: nothing is too small.
  const ActionCatalogue catalogue =
      build_action_catalogue(out.before, costs, balanced_lane_rows(job), 0);
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
    OperatorCosts costs(job, profile);
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
    OperatorCosts costs(job, profile);
    Rng rng(seed);
    std::vector<OperatorGraph> graphs;
    for (std::int64_t stage = 0; stage < job.layout.pipeline; ++stage) {
      graphs.push_back(with_random_actions(job, costs, stage, rng).after);
    }
    const LaneRows rows(job, random_routing(job, seed));
    const Program program = build_program(job, profile, graphs);
    const IterationTimes times = run_units(program, {&rows, 1});
    ASSERT_EQ(times.iteration_ns, run_naively(program, {&rows, 1}).iteration_ns)
        << describe(job, seed);
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

TEST(OptionalActions, EnginesAndMemoryModelsAgreeOnAnyDecisions) {
  const HardwareProfile profile = load_hardware_profile("bw1000");
  for (std::uint64_t seed = 1; seed <= 120; ++seed) {
    Job job = random_job(seed);
    job.options.offload_ratio = 0;
    Rng rng(seed);
    const std::vector<OptionalGraph> stages = optional_stages(job, profile);
    const std::vector<OperatorGraph> graphs = graphs_of(stages);
    const Program program = build_program(job, profile, graphs);
    std::vector<LaneRows> rows;
    std::vector<UnitDecisions> decisions;
    for (std::uint64_t unit = 0; unit <= seed % 2; ++unit) {
      rows.emplace_back(job, random_routing(job, seed + 1000 * unit));
      UnitDecisions& of_unit = decisions.emplace_back();
      for (const OptionalGraph& stage : stages) {
        of_unit.push_back(random_decisions(stage, program.schedule.microbatches, rng));
      }
    }
    const IterationTimes times = run_units(program, rows, {}, decisions);
    ASSERT_EQ(times.iteration_ns, run_naively(program, rows, decisions).iteration_ns)
        << describe(job, seed);
    for (std::int64_t stage = 0; stage < job.layout.pipeline; ++stage) {
      const auto s = static_cast<std::size_t>(stage);
      const MemorySequence sequence =
          build_memory_sequence(graphs[s], program.schedule, static_cast<std::int32_t>(stage));
      const MemorySequence decided_sequence = decided(sequence, decisions[0][s]);
      std::vector<std::int64_t> own(static_cast<std::size_t>(rows[0].lanes()));
      std::vector<std::int64_t> peaks(own.size());
      LanePeaks(job, graphs[s], sequence).evaluate(rows[0], decisions[0][s], own, peaks);
      for (std::size_t lane = 0; lane < peaks.size(); ++lane) {
        // Throws if anything is allocated twice, or freed without being there.
        const NaiveMemory replayed =
            replay(job, graphs[s], decided_sequence, rows[0], static_cast<std::int64_t>(lane));
        ASSERT_EQ(replayed.peak, peaks[lane]) << describe(job, seed);
      }
      // The emulated allocator as well.
      const std::vector<ResidentItem> resident =
          resident_items(job, profile, program.stages[s], stage);
      const auto card = [&](const MemorySequence& replayed, const StageDecisions* taken) {
        return Card{.job = job,
                    .stage = stage,
                    .graph = graphs[s],
                    .steps = program.schedule.stages[s],
                    .sequence = replayed,
                    .resident = resident,
                    .rows = rows[0],
                    .decisions = taken};
      };
      const Bytes limit = CachingAllocator::kNoLimit;
      ASSERT_EQ(replay_card(card(sequence, &decisions[0][s]), limit).memory.reserved,
                replay_card(card(decided_sequence, nullptr), limit).memory.reserved)
          << describe(job, seed);
    }
  }
}

// Without re-runs, which optional graphs issue earlier, the same as applying the actions.
TEST(OptionalActions, TakenByAllMicrobatchesAreTheAppliedOnes) {
  const HardwareProfile profile = load_hardware_profile("bw1000");
  for (std::uint64_t seed = 1; seed <= 120; ++seed) {
    Job job = random_job(seed);
    job.options.offload_ratio = 0;
    OperatorCosts costs(job, profile);
    Rng rng(seed);
    std::vector<OperatorGraph> applied;
    std::vector<OperatorGraph> optional;
    UnitDecisions decisions;
    const auto microbatches = static_cast<std::int32_t>(job.batch.num_microbatches(job.layout));
    for (std::int64_t stage = 0; stage < job.layout.pipeline; ++stage) {
      const OperatorGraph before = build_operator_graph(job, stage);
      const ActionCatalogue catalogue =
          build_action_catalogue(before, costs, balanced_lane_rows(job), 0);
      const OptionalGraph offered =
          with_optional_actions(before, catalogue, [&](std::int32_t entry, std::int32_t action) {
            return catalogue.entries[static_cast<std::size_t>(entry)]
                       .actions[static_cast<std::size_t>(action)]
                       .kind != ActionKind::kRecompute;
          });
      std::vector<std::int32_t> choice;
      decisions.emplace_back(microbatches, offered.graph.optional_actions);
      for (std::size_t e = 0; e < catalogue.entries.size(); ++e) {
        auto action = static_cast<std::int32_t>(rng.below(std::ssize(offered.ids[e])));
        if (offered.ids[e][static_cast<std::size_t>(action)] < 0) action = 0;
        choice.push_back(action);
        for (std::int32_t mb = 0; mb < microbatches && action > 0; ++mb) {
          offered.take(mb, static_cast<std::int32_t>(e), action, decisions.back());
        }
      }
      applied.push_back(apply_actions(before, catalogue, choice));
      optional.push_back(offered.graph);
    }
    const LaneRows rows(job, random_routing(job, seed));
    const Program fixed = build_program(job, profile, applied);
    const Program open = build_program(job, profile, optional);
    ASSERT_EQ(run_units(open, {&rows, 1}, {}, {&decisions, 1}).iteration_ns,
              run_units(fixed, {&rows, 1}).iteration_ns)
        << describe(job, seed);
    for (std::size_t s = 0; s < applied.size(); ++s) {
      const auto stage = static_cast<std::int32_t>(s);
      const MemorySequence sequence =
          decided(build_memory_sequence(optional[s], open.schedule, stage), decisions[s]);
      const MemorySequence expected = build_memory_sequence(applied[s], fixed.schedule, stage);
      ASSERT_EQ(replay(job, optional[s], sequence, rows, 0).peak,
                replay(job, applied[s], expected, rows, 0).peak)
          << "stage " << s << " " << describe(job, seed);
    }
  }
}

}  // namespace
}  // namespace tidemark::action_property_test
