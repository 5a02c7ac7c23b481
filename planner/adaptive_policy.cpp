#include "planner/adaptive_policy.h"

#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>

#include "models/input_error.h"
#include "models/layer_operators.h"
#include "planner/action_catalogue.h"
#include "planner/action_ladder.h"
#include "planner/action_program.h"
#include "planner/decided_memory.h"
#include "planner/optional_actions.h"
#include "planner/slot_interleaving.h"
#include "sim/lane_engine.h"
#include "sim/parallel.h"
#include "sim/simulation.h"

namespace tidemark {
namespace {

// What is decided together: at a slot's beginning or at one of its gates.
struct DecisionPoint {
  // Bytes that a rung holds beyond the most frugal one: `fixed`, and `per_row` of layers whose
  // rows are known here.
  struct Excess {
    std::int64_t fixed = 0;
    std::vector<std::pair<std::int32_t, std::int64_t>> per_row;  // MoE layer, bytes a row
  };
  std::vector<Excess> rungs;
  std::vector<std::vector<std::int32_t>> actions;  // [rung]: of the optional graph
  std::int64_t likes = 0;                          // excess of the lightest rung, balanced
};

// Of a chunk.
struct ChunkPoints {
  std::vector<DecisionPoint> points;
  std::int64_t likes = 0;
};

struct PreparedStage {
  std::vector<ChunkPoints> chunks;
  std::int32_t optional_actions = 0;
  std::int32_t in_flight = 0;  // at most
  std::int64_t headroom = 0;
};

class AdaptivePolicy : public Policy {
 public:
  AdaptivePolicy(const Schedule& schedule, std::vector<PreparedStage> stages)
      : schedule_(schedule), stages_(std::move(stages)) {}

  StageDecisions decide(std::int32_t index, const LaneRows& rows) const override {
    const auto s = static_cast<std::size_t>(index);
    const PreparedStage& stage = stages_[s];
    StageDecisions out(schedule_.microbatches, stage.optional_actions);
    const auto lanes = static_cast<std::size_t>(rows.lanes());
    std::vector<std::int64_t> used(lanes, 0);
    std::vector<std::int64_t> excess(lanes);
    std::map<std::pair<std::int32_t, std::int32_t>, std::vector<std::int64_t>> held;
    const auto begin = [&](ChunkTensor t) {
      const ChunkPoints& chunk = stage.chunks[static_cast<std::size_t>(t.chunk)];
      std::vector<std::int64_t>& own = held[{t.chunk, t.microbatch}];
      own.assign(lanes, 0);
      const auto later_slots =
          std::max<std::int64_t>(0, stage.in_flight - static_cast<std::int64_t>(held.size()));
      std::int64_t to_come = chunk.likes * (1 + later_slots);
      for (const DecisionPoint& point : chunk.points) {
        const std::size_t rung = choose(stage, point, t.microbatch, rows, used, to_come, excess);
        for (const std::int32_t action : point.actions[rung]) out.at(t.microbatch, action) = 1;
        for (std::size_t l = 0; l < lanes; ++l) {
          own[l] += excess[l];
          used[l] += excess[l];
        }
        to_come -= point.likes;
      }
    };
    const auto end = [&](ChunkTensor t) {
      const auto it = held.find({t.chunk, t.microbatch});
      for (std::size_t l = 0; l < lanes; ++l) used[l] -= it->second[l];
      held.erase(it);
    };
    const std::set<std::pair<std::int32_t, std::int32_t>> deferred = deferred_weights(s);
    for (const Step& step : schedule_.stages[s]) {
      const Slot* slot = std::get_if<Slot>(&step);
      if (slot == nullptr) continue;
      if (const ChunkTensor f = slot->forward(); f.valid()) begin(f);
      const ChunkTensor b = slot->backward();
      if (b.valid() && !deferred.contains({b.chunk, b.microbatch})) end(b);
      if (slot->kind == SlotKind::kBackwardWeight) end({slot->chunk, slot->microbatch});
    }
    return out;
  }

 private:
  // Chunks' microbatches whose weight gradients are a slot of their own.
  std::set<std::pair<std::int32_t, std::int32_t>> deferred_weights(std::size_t stage) const {
    std::set<std::pair<std::int32_t, std::int32_t>> out;
    for (const Step& step : schedule_.stages[stage]) {
      const Slot* slot = std::get_if<Slot>(&step);
      if (slot != nullptr && slot->kind == SlotKind::kBackwardWeight) {
        out.emplace(slot->chunk, slot->microbatch);
      }
    }
    return out;
  }

  // Leaves what the chosen rung holds in `excess`.
  static std::size_t choose(const PreparedStage& stage, const DecisionPoint& point,
                            std::int32_t microbatch, const LaneRows& rows,
                            std::span<const std::int64_t> used, std::int64_t to_come,
                            std::span<std::int64_t> excess) {
    const double share =
        static_cast<double>(point.likes) / static_cast<double>(std::max<std::int64_t>(1, to_come));
    for (std::size_t r = 0; r + 1 < point.rungs.size(); ++r) {
      const DecisionPoint::Excess& rung = point.rungs[r];
      std::ranges::fill(excess, rung.fixed);
      for (const auto& [layer, per_row] : rung.per_row) {
        const std::int64_t* const of_lane = rows.at(microbatch, layer);
        for (std::size_t l = 0; l < excess.size(); ++l) excess[l] += per_row * of_lane[l];
      }
      bool fits = true;
      for (std::size_t l = 0; l < excess.size() && fits; ++l) {
        const auto left = static_cast<double>(stage.headroom - used[l]);
        fits = static_cast<double>(excess[l]) <= left * share;
      }
      if (fits) return r;
    }
    std::ranges::fill(excess, 0);
    return point.rungs.size() - 1;
  }

  const Schedule schedule_;
  std::vector<PreparedStage> stages_;
};

// Positions in a chunk's forward from which on the rows of its MoE layers are known.
struct Gate {
  std::int32_t position = 0;
  std::int32_t moe_layer = -1;
};

std::vector<Gate> gates_of(const OperatorGraph& graph, const Chunk& chunk,
                           const std::vector<std::int64_t>& moe_index) {
  std::vector<Gate> gates;
  for (std::int32_t i = chunk.forward.begin; i < chunk.forward.end; ++i) {
    const Operator& op = graph.forward[static_cast<std::size_t>(i)];
    if (!std::holds_alternative<HostWaitWork>(op.work) || op.layer < 0) continue;
    const std::int64_t moe_layer = moe_index[static_cast<std::size_t>(op.layer)];
    if (moe_layer >= 0) gates.push_back({i + 1, static_cast<std::int32_t>(moe_layer)});
  }
  return gates;
}

ChunkPoints points_of(const OperatorGraph& graph, const Chunk& chunk,
                      const ActionCatalogue& catalogue, const std::vector<LadderRung>& ladder,
                      const OptionalGraph& optional, const std::vector<std::int64_t>& moe_index,
                      std::int64_t balanced_rows, std::int64_t bound_rows) {
  const std::vector<Gate> gates = gates_of(graph, chunk, moe_index);
  ChunkPoints out;
  out.points.resize(gates.size() + 1);
  for (DecisionPoint& point : out.points) {
    point.rungs.resize(ladder.size());
    point.actions.resize(ladder.size());
  }
  std::vector<std::vector<std::map<std::int32_t, std::int64_t>>> per_row(
      out.points.size(), std::vector<std::map<std::int32_t, std::int64_t>>(ladder.size()));
  for (std::size_t e = 0; e < catalogue.entries.size(); ++e) {
    const CatalogueEntry& entry = catalogue.entries[e];
    if (entry.kept.writer < chunk.forward.begin || entry.kept.writer >= chunk.forward.end) continue;
    std::int32_t before = std::numeric_limits<std::int32_t>::max();
    for (const LadderRung& rung : ladder) {
      if (rung.choice[e] == 0) continue;
      before =
          std::min(before, entry.actions[static_cast<std::size_t>(rung.choice[e])].decide_before);
    }
    const auto p = static_cast<std::size_t>(
        std::ranges::count_if(gates, [&](const Gate& g) { return g.position <= before; }));
    const std::int64_t moe_layer = moe_index[static_cast<std::size_t>(entry.layer)];
    const bool known = std::any_of(gates.begin(), gates.begin() + static_cast<std::ptrdiff_t>(p),
                                   [&](const Gate& g) { return g.moe_layer == moe_layer; });
    const Size least = held(entry, ladder.back().choice[e]);
    for (std::size_t r = 0; r < ladder.size(); ++r) {
      const std::int32_t action = ladder[r].choice[e];
      const Size more = held(entry, action) + -1 * least;
      DecisionPoint::Excess& excess = out.points[p].rungs[r];
      excess.fixed += more.fixed;
      if (more.per_row != 0 && known) {
        per_row[p][r][static_cast<std::int32_t>(moe_layer)] += more.per_row;
      } else {
        excess.fixed += more.per_row * bound_rows;
      }
      if (action > 0) {
        out.points[p].actions[r].push_back(optional.ids[e][static_cast<std::size_t>(action)]);
      }
    }
  }
  for (std::size_t p = 0; p < out.points.size(); ++p) {
    DecisionPoint& point = out.points[p];
    for (std::size_t r = 0; r < ladder.size(); ++r) {
      point.rungs[r].per_row.assign(per_row[p][r].begin(), per_row[p][r].end());
    }
    point.likes = point.rungs[0].fixed;
    for (const auto& [layer, bytes] : point.rungs[0].per_row) point.likes += bytes * balanced_rows;
    out.likes += point.likes;
  }
  return out;
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

// Rungs pin different storages: together they may exceed what each keeps to, so that is lowered
// until they do not. Without host memory nothing is offloaded.
std::vector<LadderRung> build_ladder_within(std::int64_t allowed, std::int64_t bound_rows,
                                            const ActionCatalogue& catalogue,
                                            LadderOptions options) {
  options.host_bytes = allowed;
  for (;;) {
    std::vector<LadderRung> ladder = build_ladder(catalogue, options);
    if (most_pinned(catalogue, ladder, bound_rows) <= allowed) return ladder;
    options.host_bytes = options.host_bytes * 9 / 10;
  }
}

// Every microbatch takes rung `r`.
StageDecisions all_take(const PreparedStage& stage, std::int32_t microbatches, bool frugal) {
  StageDecisions out(microbatches, stage.optional_actions);
  for (const ChunkPoints& chunk : stage.chunks) {
    for (const DecisionPoint& point : chunk.points) {
      for (const std::int32_t action : frugal ? point.actions.back() : point.actions.front()) {
        for (std::int32_t mb = 0; mb < microbatches; ++mb) out.at(mb, action) = 1;
      }
    }
  }
  return out;
}

// All microbatches deciding alike.
std::vector<CardMemory> emulate(const Job& job, const HardwareProfile& profile,
                                const Program& program, const std::vector<PreparedStage>& stages,
                                const LaneRows& rows, bool frugal) {
  UnitDecisions decisions;
  for (const PreparedStage& stage : stages) {
    decisions.push_back(all_take(stage, program.schedule.microbatches, frugal));
  }
  return decided_memory(job, profile, program, rows, decisions);
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

// What is left of a card under the most frugal plan and the bound; what the allocator holds beyond
// what is allocated counts as it is then, or under the lightest plan in calm.
std::vector<std::int64_t> headrooms(const Job& job, const HardwareProfile& profile,
                                    const Program& program,
                                    const std::vector<PreparedStage>& stages, double rows_bound) {
  const RoutingCounts counts = balanced_routing(job);
  const std::vector<CardMemory> frugal =
      emulate(job, profile, program, stages, LaneRows(job, scaled(counts, rows_bound)), true);
  const std::vector<CardMemory> light =
      emulate(job, profile, program, stages, LaneRows(job, counts), false);
  std::vector<std::int64_t> out;
  for (std::size_t s = 0; s < stages.size(); ++s) {
    const Bytes unused =
        std::max(frugal[s].reserved - frugal[s].peak, light[s].reserved - light[s].peak);
    out.push_back((segment_limit(job, profile) - frugal[s].peak - unused).value);
  }
  return out;
}

std::vector<std::int64_t> headrooms(const AdaptivePlan& plan) {
  std::vector<std::int64_t> out;
  for (const AdaptivePlan::Stage& stage : plan.stages) out.push_back(stage.headroom_bytes);
  return out;
}

// [stage][action]: what a microbatch takes in the middle of an iteration under `rows`.
std::vector<std::vector<std::uint8_t>> calm_decisions(const Policy& policy,
                                                      const std::vector<PreparedStage>& stages,
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

// `given`: null, or the plan; then its bound is `rows_bound`.
AdaptiveRun prepare(const Job& job, const HardwareProfile& profile, double rows_bound,
                    const AdaptivePlan* given) {
  const std::int64_t balanced = balanced_lane_rows(job);
  const auto bound = static_cast<std::int64_t>(static_cast<double>(balanced) * rows_bound);
  const std::vector<std::int64_t> moe_index = moe_layer_indices(job.model);
  const LaneRows rows(job, balanced_routing(job));
  const CalmRun calm = run_calm(job, profile, rows);
  const std::int64_t slowest = *std::ranges::max_element(calm.period_ns);

  AdaptiveRun out;
  const std::size_t num_stages = calm.program.stages.size();
  std::vector<PreparedStage> stages(num_stages);
  std::vector<OperatorGraph> graphs(num_stages);
  out.stages.resize(num_stages);
  out.actions.resize(num_stages);
  out.plan.rows_bound = rows_bound;
  out.plan.stages.resize(num_stages);
  parallel_for(num_stages, [&](std::size_t s) {
    const OperatorGraph& graph = calm.program.stages[s].graph;
    OperatorCosts costs(job, profile);
    std::vector<ActionType> types = action_types();
    std::erase_if(types, [](const ActionType& t) { return t.kind == ActionKind::kQuantize; });
    ActionCatalogue catalogue =
        build_action_catalogue(graph, costs, balanced, kLeastActionBytes, types);
    LadderOptions options;
    options.balanced_rows = balanced;
    options.period_ns = slowest;
    options.slack_ns = slowest - calm.period_ns[s];
    const std::int64_t allowed =
        allowed_host_bytes(profile, calm.program.schedule, static_cast<std::int32_t>(s));
    const std::vector<LadderRung> ladder =
        given != nullptr ? ladder_of(*given, s, catalogue)
                         : build_ladder_within(allowed, bound, catalogue, options);
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
    PreparedStage& stage = stages[s];
    for (const Chunk& chunk : graph.chunks) {
      stage.chunks.push_back(
          points_of(graph, chunk, catalogue, ladder, optional, moe_index, balanced, bound));
    }
    stage.optional_actions = optional.graph.optional_actions;
    stage.in_flight = peak_in_flight(calm.program.schedule, static_cast<std::int32_t>(s));
    graphs[s] = std::move(optional.graph);
    out.actions[s] = std::move(optional.names);
    out.stages[s] = {std::move(catalogue), std::move(optional.actions)};
  });
  out.program = build_program(job, profile, std::move(graphs));

  const auto decide_with = [&](const std::vector<std::int64_t>& headroom) {
    for (std::size_t s = 0; s < num_stages; ++s) {
      out.plan.stages[s].headroom_bytes = headroom[s];
      stages[s].headroom = headroom[s];
    }
    out.policy = std::make_unique<AdaptivePolicy>(out.program.schedule, stages);
  };
  const auto measured = [&] { return headrooms(job, profile, out.program, stages, rows_bound); };
  decide_with(given != nullptr ? headrooms(*given) : measured());
  if (!job.combines_slots() || job.options.combined_slot_order == SlotOrder::kMegatron) return out;
  const auto calm_taken =
      calm_decisions(*out.policy, stages, rows, out.program.schedule.microbatches);
  out.program = ordered_program(job, profile, std::move(out.program), calm_taken);
  if (given == nullptr) decide_with(measured());
  return out;
}

}  // namespace

AdaptiveRun adaptive_run(const Job& job, const HardwareProfile& profile, double rows_bound) {
  return prepare(on_platform(job, profile), profile, rows_bound, nullptr);
}

ManagedRun fixed_run(const Job& job, const HardwareProfile& profile, double rows_bound) {
  AdaptiveRun run = adaptive_run(job, profile, rows_bound);
  const LaneRows rows(job, scaled(balanced_routing(job), rows_bound));
  UnitDecisions decisions = decide_unit(*run.policy, run.program.stages.size(), rows);
  return {std::move(run.program), std::make_unique<ConstantPolicy>(std::move(decisions)),
          std::move(run.actions)};
}

AdaptiveRun planned_run(const Job& job, const HardwareProfile& profile, const AdaptivePlan& plan) {
  if (std::ssize(plan.stages) != job.layout.pipeline) {
    throw InputError(plan.file, "/policy/stages", std::to_string(plan.stages.size()) + " stages",
                     "a plan for the job's " + std::to_string(job.layout.pipeline));
  }
  return prepare(on_platform(job, profile), profile, plan.rows_bound, &plan);
}

}  // namespace tidemark
