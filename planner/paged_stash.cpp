#include "planner/paged_stash.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>
#include <variant>

#include "models/layer_operators.h"
#include "planner/action_catalogue.h"
#include "planner/action_program.h"
#include "planner/optional_actions.h"
#include "sim/parallel.h"
#include "sim/simulation.h"
#include "traces/routing.h"

namespace tidemark {
namespace {

// Rows of all tensors in a buffer at once, the most of any card, each rounded up to `unit`.
std::int64_t most_rows(const std::vector<Step>& steps, const StashBuffer& buffer,
                       const LaneRows& rows, std::int64_t unit) {
  std::vector<std::int64_t> live(static_cast<std::size_t>(rows.lanes()), 0);
  const auto add = [&](ChunkTensor t, std::int64_t sign) {
    for (const std::int64_t layer : buffer.moe_layers[static_cast<std::size_t>(t.chunk)]) {
      const std::int64_t* const of_lane = rows.at(t.microbatch, layer);
      for (std::size_t l = 0; l < live.size(); ++l) live[l] += sign * round_up(of_lane[l], unit);
    }
  };
  std::int64_t most = 0;
  for (const Step& step : steps) {
    const Slot* slot = std::get_if<Slot>(&step);
    if (slot == nullptr) continue;
    if (const ChunkTensor f = slot->forward(); f.valid()) add(f, 1);
    most = std::max(most, *std::ranges::max_element(live));
    if (const ChunkTensor b = slot->backward(); b.valid()) add(b, -1);
  }
  return most;
}

// Operands and results of the experts' products.
std::set<StorageId> of_grouped_products(const OperatorGraph& graph) {
  std::set<StorageId> out;
  for (const Operator& op : graph.forward) {
    if (!std::holds_alternative<GroupedGemmWork>(op.work)) continue;
    for (const auto* list : {&op.reads, &op.writes}) out.insert(list->begin(), list->end());
  }
  return out;
}

// One stream packs and unpacks.
Realization stash(const StageView& stage, const KeptOutputs& kept) {
  const std::set<StorageId> stashed = of_grouped_products(stage.graph);
  Realization out;
  Size traffic;
  for (StorageId s : kept.storages) {
    const Size bytes = stage.graph.storages[s.index()].bytes;
    if (bytes.per_row == 0 || !stashed.contains(s)) continue;
    out.leaves.push_back(s);
    traffic = traffic + 2 * bytes;
  }
  if (out.leaves.empty()) {
    out.refusal = "no expert's product keeps it";
    return out;
  }
  const Operator& writer = stage.graph.forward[static_cast<std::size_t>(kept.writer)];
  Operator copy;
  copy.layer = writer.layer;
  copy.stream = Stream::kDeviceToHost;
  copy.work = StreamingWork{traffic};
  copy.name = "stash." + writer.name;
  copy.reads = out.leaves;
  out.forward.push_back(copy);
  copy.name = "unstash." + writer.name;
  copy.writes = std::exchange(copy.reads, {});
  out.backward.push_back(copy);
  return out;
}

// One buffer for all tensors of a width.
std::vector<StashBuffer> buffers_of(const OperatorGraph& graph, const ActionCatalogue& catalogue,
                                    const std::vector<std::int64_t>& moe_index) {
  std::map<std::int64_t, StashBuffer> by_width;
  for (const CatalogueEntry& entry : catalogue.entries) {
    if (entry.actions.size() < 2) continue;
    const auto chunk = std::ranges::find_if(
        graph.chunks, [&](const Chunk& c) { return entry.kept.writer < c.forward.end; });
    for (StorageId s : entry.actions[1].realization.leaves) {
      const std::int64_t width = graph.storages[s.index()].bytes.per_row;
      StashBuffer& buffer = by_width[width];
      buffer.row_bytes = width;
      buffer.moe_layers.resize(graph.chunks.size());
      buffer.moe_layers[static_cast<std::size_t>(chunk - graph.chunks.begin())].push_back(
          moe_index[static_cast<std::size_t>(entry.layer)]);
    }
  }
  std::vector<StashBuffer> out;
  for (auto& [width, buffer] : by_width) out.push_back(std::move(buffer));
  return out;
}

// Buffers of a fixed number of rows, so that nothing waits for counts.
void allocate_for(std::int64_t rows, OperatorGraph& graph) {
  for (Storage& storage : graph.storages) storage.bytes = {storage.bytes.at(rows), 0};
  for (auto* list : {&graph.forward, &graph.backward}) {
    for (Operator& op : *list) {
      if (op.layer >= 0 && std::holds_alternative<HostWaitWork>(op.work)) op.work = StreamingWork{};
    }
  }
}

}  // namespace

std::int64_t StashLimits::pages_in_use(std::size_t stage, const StashBuffer& buffer,
                                       const LaneRows& rows) const {
  return most_rows(schedule.stages[stage], buffer, rows, kStashPageRows) / kStashPageRows;
}

bool StashLimits::exceeded_by(const LaneRows& rows) const {
  for (std::int64_t mb = 0; mb < schedule.microbatches; ++mb) {
    for (std::int64_t layer = 0; layer < moe_layers; ++layer) {
      const std::int64_t* const of_lane = rows.at(mb, layer);
      if (*std::max_element(of_lane, of_lane + rows.lanes()) > capacity_rows) return true;
    }
  }
  for (std::size_t s = 0; s < stages.size(); ++s) {
    for (const StashBuffer& buffer : stages[s]) {
      if (pages_in_use(s, buffer, rows) > buffer.pages) return true;
    }
  }
  return false;
}

PagedStashRun paged_stash_run(const Job& given, const HardwareProfile& profile,
                              const PagedStash& options) {
  const Job job = on_platform(given, profile);
  const auto rows_times = [](std::int64_t rows, double factor) {
    return static_cast<std::int64_t>(static_cast<double>(rows) * factor);
  };
  PagedStashRun out;
  StashLimits& limits = out.limits;
  const std::int64_t balanced_rows = balanced_lane_rows(job);
  limits.moe_layers = job.model.num_moe_layers();
  limits.capacity_rows = rows_times(balanced_rows, options.capacity_factor);
  limits.schedule = build_schedule(job);
  limits.stages.resize(static_cast<std::size_t>(job.layout.pipeline));
  const LaneRows balanced = LaneRows::alike(job);
  const std::vector<std::int64_t> moe_index = moe_layer_indices(job.model);
  const std::vector<ActionType> types{action_types().front(), {ActionKind::kOffload, stash}};

  std::vector<OperatorGraph> graphs(limits.stages.size());
  UnitDecisions everything(limits.stages.size());
  parallel_for(graphs.size(), [&](std::size_t s) {
    const OperatorGraph graph = build_operator_graph(job, static_cast<std::int64_t>(s));
    OperatorCosts costs(job, profile);
    const ActionCatalogue catalogue = build_action_catalogue(graph, costs, balanced_rows, 0, types);
    limits.stages[s] = buffers_of(graph, catalogue, moe_index);
    for (StashBuffer& buffer : limits.stages[s]) {
      const std::int64_t most = most_rows(limits.schedule.stages[s], buffer, balanced, 1);
      buffer.pages = ceil_div(rows_times(most, options.buffer_factor), kStashPageRows);
    }
    graphs[s] = with_optional_actions(graph, catalogue, [](std::int32_t, std::int32_t) {
                  return true;
                }).graph;
    allocate_for(limits.capacity_rows, graphs[s]);
    everything[s] = StageDecisions(limits.schedule.microbatches, graphs[s].optional_actions);
    std::ranges::fill(everything[s].taken, 1);
  });
  out.first.program = build_program(job, profile, std::move(graphs));
  for (std::size_t s = 0; s < limits.stages.size(); ++s) {
    for (const StashBuffer& buffer : limits.stages[s]) {
      out.first.program.stages[s].stash.push_back(buffer.pages * kStashPageRows * buffer.row_bytes);
    }
  }
  out.first.policy = std::make_unique<ConstantPolicy>(std::move(everything));
  out.rerun.program = build_program(job, profile);
  out.rerun.needed = [limits](const std::vector<LaneRows>& units) {
    std::vector<std::uint8_t> exceeded(units.size(), 0);
    parallel_for(units.size(), [&](std::size_t u) { exceeded[u] = limits.exceeded_by(units[u]); });
    return std::ranges::count(exceeded, 1) > 0;
  };
  return out;
}

}  // namespace tidemark
