#include "planner/ladder_policy.h"

#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <span>
#include <variant>

namespace tidemark {
namespace {

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

// Chunks' microbatches whose weight gradients are a slot of their own.
std::set<std::pair<std::int32_t, std::int32_t>> deferred_weights(const std::vector<Step>& steps) {
  std::set<std::pair<std::int32_t, std::int32_t>> out;
  for (const Step& step : steps) {
    const Slot* slot = std::get_if<Slot>(&step);
    if (slot != nullptr && slot->kind == SlotKind::kBackwardWeight) {
      out.emplace(slot->chunk, slot->microbatch);
    }
  }
  return out;
}

// Leaves what the chosen rung holds in `excess`.
std::size_t choose_rung(const LadderStage& stage, const DecisionPoint& point,
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

}  // namespace

ChunkPoints decision_points(const OperatorGraph& graph, const Chunk& chunk,
                            const ActionCatalogue& catalogue, const std::vector<LadderRung>& ladder,
                            const OptionalGraph& optional,
                            const std::vector<std::int64_t>& moe_index, std::int64_t balanced_rows,
                            std::int64_t bound_rows) {
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

StageDecisions all_take(const LadderStage& stage, std::int32_t microbatches, bool frugal) {
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

StageDecisions LadderPolicy::decide(std::int32_t stage, const LaneRows& rows) const {
  std::int64_t most = 0;
  return walk(stage, rows, most);
}

std::int64_t LadderPolicy::most_excess(std::int32_t stage, const LaneRows& rows) const {
  std::int64_t most = 0;
  walk(stage, rows, most);
  return most;
}

StageDecisions LadderPolicy::walk(std::int32_t index, const LaneRows& rows,
                                  std::int64_t& most_excess) const {
  const auto s = static_cast<std::size_t>(index);
  const LadderStage& stage = stages_[s];
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
      const std::size_t rung = choose_rung(stage, point, t.microbatch, rows, used, to_come, excess);
      for (const std::int32_t action : point.actions[rung]) out.at(t.microbatch, action) = 1;
      for (std::size_t l = 0; l < lanes; ++l) {
        own[l] += excess[l];
        used[l] += excess[l];
      }
      to_come -= point.likes;
    }
    most_excess = std::max(most_excess, *std::ranges::max_element(used));
  };
  const auto end = [&](ChunkTensor t) {
    const auto it = held.find({t.chunk, t.microbatch});
    for (std::size_t l = 0; l < lanes; ++l) used[l] -= it->second[l];
    held.erase(it);
  };
  const std::set<std::pair<std::int32_t, std::int32_t>> deferred =
      deferred_weights(schedule_.stages[s]);
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

}  // namespace tidemark
