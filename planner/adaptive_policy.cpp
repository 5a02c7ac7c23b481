#include "planner/adaptive_policy.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "models/input_error.h"
#include "models/layer_operators.h"
#include "planner/action_catalogue.h"
#include "planner/action_ladder.h"
#include "planner/action_program.h"
#include "planner/adaptive_headroom.h"
#include "planner/greedy_ladder.h"
#include "planner/ladder_policy.h"
#include "planner/optional_actions.h"
#include "planner/slot_interleaving.h"
#include "sim/lane_engine.h"
#include "sim/parallel.h"
#include "sim/simulation.h"

namespace tidemark {
namespace {

// A policy works at the gates of MoE layers before the CPU goes on.
void charge_decisions(std::int64_t host_ns, OperatorGraph& graph) {
  for (Operator& op : graph.forward) {
    if (op.layer < 0) continue;
    if (auto* gate = std::get_if<HostWaitWork>(&op.work)) gate->host_ns = host_ns;
  }
}

// What a microbatch may pin of a card's share of its node's host memory, with as many whole stages
// in flight as the schedule has.
std::int64_t allowed_host_bytes(const HardwareProfile& profile, const Schedule& schedule,
                                std::int32_t stage) {
  const std::optional<Bytes> of_card = profile.host_memory_of_card();
  if (!of_card) return kUnlimitedHostBytes;
  const std::int32_t in_flight =
      (peak_in_flight(schedule, stage) + schedule.chunks - 1) / schedule.chunks;
  return std::min(kUnlimitedHostBytes, of_card->value / in_flight);
}

// What a microbatch pins at most, whatever rungs its decision points take.
std::int64_t most_pinned(const ActionCatalogue& catalogue, const std::vector<LadderRung>& ladder,
                         std::int64_t rows) {
  std::int64_t sum = 0;
  for (std::size_t e = 0; e < catalogue.entries.size(); ++e) {
    std::int64_t most = 0;
    for (const LadderRung& rung : ladder) {
      const auto action = static_cast<std::size_t>(rung.choice[e]);
      most = std::max(most, catalogue.entries[e].actions[action].host_bytes.at(rows));
    }
    sum += most;
  }
  return sum;
}

using LadderBuilder = std::vector<LadderRung> (*)(const ActionCatalogue&, const LadderOptions&);

// Rungs pin different storages: together they may exceed what each keeps to, so that is lowered
// until they do not. Without host memory nothing is offloaded.
std::vector<LadderRung> build_ladder_within(LadderBuilder build, std::int64_t allowed,
                                            std::int64_t bound_rows,
                                            const ActionCatalogue& catalogue,
                                            LadderOptions options) {
  options.host_bytes = allowed;
  for (;;) {
    std::vector<LadderRung> ladder = build(catalogue, options);
    if (most_pinned(catalogue, ladder, bound_rows) <= allowed) return ladder;
    options.host_bytes = options.host_bytes * 9 / 10;
  }
}

// What one copy of the plain job says about its stages.
struct CalmRun {
  Program program;
  std::vector<std::int64_t> period_ns;  // [stage]: of a forward and its backward
};

CalmRun run_calm(const Job& job, const HardwareProfile& profile, const LaneRows& rows) {
  CalmRun out{build_program(job, profile), {}};
  const IterationTimes times = run_units(out.program, {&rows, 1});
  for (const StageTimes& stage : times.units[0].stages) {
    out.period_ns.push_back(stage.slots_ns / out.program.schedule.microbatches);
  }
  return out;
}

// [stage][action]: what a microbatch takes in the middle of an iteration under `rows`.
std::vector<std::vector<std::uint8_t>> calm_decisions(const Policy& policy,
                                                      const std::vector<LadderStage>& stages,
                                                      const LaneRows& rows,
                                                      std::int32_t microbatches) {
  std::vector<std::vector<std::uint8_t>> out(stages.size());
  for (std::size_t s = 0; s < stages.size(); ++s) {
    const StageDecisions decided = policy.decide(static_cast<std::int32_t>(s), rows);
    for (std::int32_t a = 0; a < stages[s].optional_actions; ++a) {
      out[s].push_back(decided.takes(microbatches / 2, a) ? 1 : 0);
    }
  }
  return out;
}

struct Preparation {
  double rows_bound = 1;
  const AdaptivePlan* given = nullptr;  // with the same bound
  LadderBuilder ladder = build_ladder;  // where no plan is given
  std::int64_t decision_ns = kDecisionNs;
};

AdaptiveRun prepare(const Job& given_job, const HardwareProfile& profile, const Preparation& how) {
  const Job job = on_platform(given_job, profile);
  const auto& [rows_bound, given, build, decision_ns] = how;
  const std::int64_t balanced = balanced_lane_rows(job);
  const auto bound = static_cast<std::int64_t>(static_cast<double>(balanced) * rows_bound);
  const std::vector<std::int64_t> moe_index = moe_layer_indices(job.model);
  const LaneRows rows = LaneRows::alike(job);
  const CalmRun calm = run_calm(job, profile, rows);
  const std::int64_t slowest = *std::ranges::max_element(calm.period_ns);

  AdaptiveRun out;
  const std::size_t num_stages = calm.program.stages.size();
  std::vector<LadderStage> stages(num_stages);
  std::vector<OperatorGraph> graphs(num_stages);
  out.stages.resize(num_stages);
  out.actions.resize(num_stages);
  out.plan.rows_bound = rows_bound;
  out.plan.stages.resize(num_stages);
  parallel_for(num_stages, [&](std::size_t s) {
    const OperatorGraph& graph = calm.program.stages[s].graph;
    OperatorCosts costs(job, profile);
    std::vector<ActionType> types = action_types();
    if (!job.options.quantize_activations) {
      std::erase_if(types, [](const ActionType& t) { return t.kind == ActionKind::kQuantize; });
    }
    ActionCatalogue catalogue =
        build_action_catalogue(graph, costs, balanced, kLeastActionBytes, types);
    LadderOptions options;
    options.balanced_rows = balanced;
    options.period_ns = slowest;
    options.slack_ns = slowest - calm.period_ns[s];
    options.microbatches = calm.program.schedule.microbatches * calm.program.schedule.chunks;
    const std::int64_t allowed =
        allowed_host_bytes(profile, calm.program.schedule, static_cast<std::int32_t>(s));
    const std::vector<LadderRung> ladder =
        given != nullptr ? ladder_of(*given, s, catalogue)
                         : build_ladder_within(build, allowed, bound, catalogue, options);
    if (const std::int64_t pinned = most_pinned(catalogue, ladder, bound); pinned > allowed) {
      throw InputError(given->file, "/policy/stages/" + std::to_string(s),
                       std::to_string(pinned) + " pinned bytes a microbatch",
                       "at most " + std::to_string(allowed) +
                           ": a card's share of host_memory_gib for each in flight");
    }
    for (const LadderRung& rung : ladder) {
      out.plan.stages[s].rungs.push_back(named_rung(catalogue, rung, balanced));
    }
    OptionalGraph optional =
        with_optional_actions(graph, catalogue, [&](std::int32_t entry, std::int32_t action) {
          return std::ranges::any_of(ladder, [&](const LadderRung& rung) {
            return rung.choice[static_cast<std::size_t>(entry)] == action;
          });
        });
    LadderStage& stage = stages[s];
    for (const Chunk& chunk : graph.chunks) {
      stage.chunks.push_back(
          decision_points(graph, chunk, catalogue, ladder, optional, moe_index, balanced, bound));
    }
    charge_decisions(decision_ns, optional.graph);
    stage.optional_actions = optional.graph.optional_actions;
    stage.in_flight = peak_in_flight(calm.program.schedule, static_cast<std::int32_t>(s));
    graphs[s] = std::move(optional.graph);
    out.actions[s] = std::move(optional.names);
    out.stages[s] = {std::move(catalogue), std::move(optional.actions)};
  });
  out.program = build_program(job, profile, std::move(graphs));

  const auto set_policy = [&] {
    for (std::size_t s = 0; s < num_stages; ++s) stages[s].headroom = out.plan.stages[s].shared();
    out.policy = std::make_unique<LadderPolicy>(out.program.schedule, stages);
  };
  const auto decide = [&] {
    if (given == nullptr) {
      measure_headroom(job, profile, out.program, stages, out.plan);
    } else {
      for (std::size_t s = 0; s < num_stages; ++s) {
        out.plan.stages[s].headroom_bytes = given->stages[s].headroom_bytes;
        out.plan.stages[s].run_ahead_bytes = given->stages[s].run_ahead_bytes;
      }
    }
    set_policy();
  };
  decide();
  if (seeks_orders(job)) {
    const auto calm_taken =
        calm_decisions(*out.policy, stages, rows, out.program.schedule.microbatches);
    out.program = ordered_program(job, profile, std::move(out.program), calm_taken);
    decide();
  }
  if (given == nullptr) {
    leave_room_to_run_ahead(job, profile, out.program, stages, out.plan);
    set_policy();
  }
  return out;
}

}  // namespace

AdaptiveRun adaptive_run(const Job& job, const HardwareProfile& profile, double rows_bound) {
  return prepare(job, profile, {.rows_bound = rows_bound});
}

AdaptiveRun heuristic_run(const Job& job, const HardwareProfile& profile) {
  return prepare(job, profile, {.ladder = build_greedy_ladder});
}

ManagedRun fixed_run(const Job& job, const HardwareProfile& profile, double rows_bound) {
  AdaptiveRun run = prepare(job, profile, {.rows_bound = rows_bound, .decision_ns = 0});
  const LaneRows rows = LaneRows::alike(job, rows_bound);
  UnitDecisions decisions = decide_unit(*run.policy, run.program.stages.size(), rows);
  return {std::move(run.program), std::make_unique<ConstantPolicy>(std::move(decisions)),
          std::move(run.actions)};
}

AdaptiveRun planned_run(const Job& job, const HardwareProfile& profile, const AdaptivePlan& plan) {
  if (std::ssize(plan.stages) != job.layout.pipeline) {
    throw InputError(plan.file, "/policy/stages", std::to_string(plan.stages.size()) + " stages",
                     "a plan for the job's " + std::to_string(job.layout.pipeline));
  }
  return prepare(job, profile, {.rows_bound = plan.rows_bound, .given = &plan});
}

}  // namespace tidemark
