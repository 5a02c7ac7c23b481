#include "tools/memory_breakdown.h"

#include <algorithm>
#include <map>
#include <utility>
#include <variant>

#include "sim/slot_operators.h"

namespace tidemark {
namespace {

const OperatorGraph& graph_of(const Simulation& simulation, std::int64_t stage) {
  return simulation.program.stages[static_cast<std::size_t>(stage)].graph;
}

const StageResult& result_of(const Simulation& simulation, std::int64_t stage) {
  return simulation.result.stages[static_cast<std::size_t>(stage)];
}

std::vector<LiveGroup> by_size(const std::map<std::string, LiveGroup>& groups) {
  std::vector<LiveGroup> out;
  for (const auto& [name, group] : groups) out.push_back(group);
  std::stable_sort(out.begin(), out.end(),
                   [](const LiveGroup& a, const LiveGroup& b) { return a.bytes > b.bytes; });
  return out;
}

void add(std::map<std::string, LiveGroup>& groups, const std::string& name, std::int64_t copies,
         Bytes bytes) {
  LiveGroup& group = groups[name];
  group.name = name;
  group.copies += copies;
  group.bytes += bytes;
}

}  // namespace

std::string PeakMoment::text() const {
  if (microbatch < 0) return pass;
  std::string out = pass + " of microbatch " + std::to_string(microbatch);
  if (layer >= 0) out += ", layer " + std::to_string(layer);
  return out;
}

PeakMoment peak_moment(const Simulation& simulation, std::int64_t stage) {
  const StageResult& result = result_of(simulation, stage);
  const std::int64_t event =
      result.memory.lanes[static_cast<std::size_t>(result.hottest_lane)].event;
  PeakMoment moment;
  if (event < 0) {
    moment.pass = "between iterations";
    return moment;
  }
  const MemoryEvent& e = result.sequence.events[static_cast<std::size_t>(event)];
  moment.microbatch = e.microbatch;
  const Step& step = simulation.program.schedule
                         .stages[static_cast<std::size_t>(stage)][static_cast<std::size_t>(e.step)];
  const Slot* slot = std::get_if<Slot>(&step);
  if (slot == nullptr) {
    moment.pass = "transfer";
    return moment;
  }
  const OperatorGraph& graph = graph_of(simulation, stage);
  const IssuedOperator at = slot_operators(graph, *slot)[static_cast<std::size_t>(e.op)];
  const Operator& op = graph.at(static_cast<std::size_t>(at.index));
  moment.pass = static_cast<std::size_t>(at.index) < graph.forward.size() ? "forward" : "backward";
  moment.microbatch = works_on(*slot, at.beside).microbatch;
  moment.layer = op.layer;
  moment.operator_name = op.name;
  return moment;
}

LiveMemory live_at_peak(const Job& job, const Simulation& simulation, std::int64_t stage) {
  const StageResult& result = result_of(simulation, stage);
  const LanePeak& peak = result.memory.lanes[static_cast<std::size_t>(result.hottest_lane)];
  std::map<std::string, LiveGroup> names;
  std::map<std::int32_t, Bytes> layers;
  LiveMemory out;
  for (const LiveStorage& s : live_storages(job, graph_of(simulation, stage), result.sequence,
                                            simulation.rows, result.hottest_lane, peak.event)) {
    add(names, s.name, s.copies, s.bytes);
    layers[s.layer] += s.bytes;
    out.bytes += s.bytes;
  }
  out.names = by_size(names);
  for (const auto& [layer, bytes] : layers) out.layers.push_back({layer, bytes});
  return out;
}

std::vector<KeptLayer> kept_by_layer(const Job& job, const Simulation& simulation,
                                     std::int64_t stage) {
  const OperatorGraph& graph = graph_of(simulation, stage);
  const std::int64_t rows =
      simulation.rows.lanes() > 0 && job.model.num_moe_layers() > 0 ? *simulation.rows.at(0, 0) : 0;
  std::map<std::int32_t, std::map<std::string, LiveGroup>> layers;
  for (const StorageId id : kept_storages(graph)) {
    const Storage& storage = graph.storages[id.index()];
    if (storage.layer < 0) continue;
    add(layers[storage.layer], storage.name, 1,
        Bytes(round_up(storage.bytes.at(rows), kAllocatorBlock)));
  }
  std::vector<KeptLayer> out;
  for (const auto& [layer, names] : layers) {
    KeptLayer kept{layer, job.model.is_moe(layer), {}, by_size(names)};
    for (const LiveGroup& group : kept.names) kept.bytes += group.bytes;
    out.push_back(std::move(kept));
  }
  return out;
}

}  // namespace tidemark
