#include "planner/bagualu2_policy.h"

#include <algorithm>
#include <set>
#include <string>
#include <utility>

#include "models/layer_operators.h"
#include "planner/action_program.h"
#include "planner/bagualu2_offload.h"
#include "planner/decided_memory.h"
#include "sim/simulation.h"
#include "traces/routing.h"

namespace tidemark {
namespace {

// Of a chunk's microbatch.
struct ChunkBytes {
  std::int32_t moe_layer = -1;  // the first
  Size kept;
  struct Part {
    Size bytes;
    std::int32_t action = 0;
  };
  std::vector<Part> offloadable;  // largest first
};

struct OffloadStage {
  std::vector<ChunkBytes> chunks;
  std::int32_t optional_actions = 0;
  std::int64_t most_active = 0;
  double limit = 0;
};

class OffloadManagerPolicy : public Policy {
 public:
  OffloadManagerPolicy(const Schedule& schedule, std::vector<OffloadStage> stages)
      : schedule_(schedule), stages_(std::move(stages)) {}

  StageDecisions decide(std::int32_t index, const LaneRows& rows) const override {
    const OffloadStage& stage = stages_[static_cast<std::size_t>(index)];
    StageDecisions out(schedule_.microbatches, stage.optional_actions);
    BaGuaLu2OffloadManager manager(stage.most_active - 1, stage.limit);
    const auto id = [&](ChunkTensor t) {
      return static_cast<std::int64_t>(t.chunk) * schedule_.microbatches + t.microbatch;
    };
    for (const Step& step : schedule_.stages[static_cast<std::size_t>(index)]) {
      const Slot* slot = std::get_if<Slot>(&step);
      if (slot == nullptr) continue;
      const ChunkTensor f = slot->forward();
      if (f.valid() && !is_last(index, f.chunk)) {
        const ChunkBytes& chunk = stage.chunks[static_cast<std::size_t>(f.chunk)];
        const std::int64_t most = most_rows(chunk, rows, f.microbatch);
        const auto bytes = static_cast<double>(chunk.kept.at(most));
        if (bytes > 0) offload(chunk, manager.add_batch(id(f), bytes), most, f.microbatch, out);
      }
      if (const ChunkTensor b = slot->backward(); b.valid()) manager.remove_batch(id(b));
    }
    return out;
  }

 private:
  bool is_last(std::int32_t stage, std::int32_t chunk) const {
    return schedule_.virtual_stage(stage, chunk) == schedule_.virtual_stages() - 1;
  }

  static std::int64_t most_rows(const ChunkBytes& chunk, const LaneRows& rows,
                                std::int32_t microbatch) {
    if (chunk.moe_layer < 0) return 0;
    const std::int64_t* const of_lane = rows.at(microbatch, chunk.moe_layer);
    return *std::max_element(of_lane, of_lane + rows.lanes());
  }

  static void offload(const ChunkBytes& chunk, double part, std::int64_t rows,
                      std::int32_t microbatch, StageDecisions& out) {
    auto left = static_cast<std::int64_t>(part * static_cast<double>(chunk.kept.at(rows)));
    const std::size_t n = chunk.offloadable.size();
    for (std::size_t i = 0; i < n && left > 0; ++i) {
      const ChunkBytes::Part& next = chunk.offloadable[part > 0.5 ? n - 1 - i : i];
      out.at(microbatch, next.action) = 1;
      left -= next.bytes.at(rows);
    }
  }

  const Schedule schedule_;
  std::vector<OffloadStage> stages_;
};

// Whether a backward operator belongs to one of the modules that are offloaded by default.
bool of_default_module(const std::string& name, const std::set<std::string>& norms) {
  for (const char* other : {"permute.backward", "unpermute.backward", "dispatch.sort.backward",
                            "combine.unsort.backward"}) {
    if (name == other) return true;
  }
  if (name.ends_with("activation.backward") || name.ends_with(".layer_norm.backward")) return true;
  if (!name.ends_with(".wgrad")) return false;
  const std::string linear = name.substr(0, name.rfind('.'));
  return linear.starts_with("experts.") || norms.contains(linear + ".layer_norm");
}

std::vector<ChunkBytes> chunk_bytes(const OperatorGraph& graph, const ActionProgram::Stage& stage,
                                    const std::vector<std::int64_t>& moe_index,
                                    std::int64_t balanced_rows) {
  std::set<std::string> norms;
  for (const Operator& op : graph.forward) {
    if (op.name.ends_with(".layer_norm")) norms.insert(op.name);
  }
  std::set<StorageId> saved;  // by a default module
  for (const Operator& op : graph.backward) {
    if (op.added || !of_default_module(op.name, norms)) continue;
    for (StorageId s : op.reads) {
      if (!graph.storages[s.index()].saved_as_views) saved.insert(s);
    }
  }
  std::vector<ChunkBytes> out(graph.chunks.size());
  for (std::size_t e = 0; e < stage.catalogue.entries.size(); ++e) {
    const CatalogueEntry& entry = stage.catalogue.entries[e];
    ChunkBytes& chunk = out[static_cast<std::size_t>(stage.chunk_of[e])];
    const auto moe_layer =
        static_cast<std::int32_t>(moe_index[static_cast<std::size_t>(entry.layer)]);
    if (chunk.moe_layer < 0) chunk.moe_layer = moe_layer;
    chunk.kept = chunk.kept + entry.kept.bytes;
    if (stage.action_of[e] < 0) continue;
    const CataloguedAction& action = entry.actions[1];
    if (std::ranges::any_of(action.realization.leaves,
                            [&](StorageId s) { return saved.contains(s); })) {
      chunk.offloadable.push_back({action.freed, stage.action_of[e]});
    }
  }
  for (ChunkBytes& chunk : out) {
    std::ranges::stable_sort(chunk.offloadable, std::ranges::greater(),
                             [&](const ChunkBytes::Part& p) { return p.bytes.at(balanced_rows); });
  }
  return out;
}

}  // namespace

ManagedRun bagualu2_offload_run(const Job& job, const HardwareProfile& profile) {
  ActionProgram offloads = build_action_program(job, profile, ActionKind::kOffload);
  const LaneRows balanced = LaneRows::alike(offloads.job);
  const std::int64_t rows = balanced_lane_rows(offloads.job);
  const std::vector<std::int64_t> moe_index = moe_layer_indices(offloads.job.model);
  const std::vector<CardMemory> least =
      steady_memory(offloads.job, profile, offloads.program, balanced, offloads.everything());
  std::vector<OffloadStage> stages(offloads.stages.size());
  for (std::size_t s = 0; s < stages.size(); ++s) {
    const ActionProgram::Stage& stage = offloads.stages[s];
    stages[s].chunks = chunk_bytes(offloads.program.stages[s].graph, stage, moe_index, rows);
    stages[s].optional_actions = stage.optional_actions;
    stages[s].most_active = peak_in_flight(offloads.program.schedule, static_cast<std::int32_t>(s));
    std::int64_t stays = 0;  // of a microbatch, with everything offloaded
    for (std::size_t e = 0; e < stage.catalogue.entries.size(); ++e) {
      stays += (stage.catalogue.entries[e].kept.bytes + -1 * stage.freed(e)).at(rows);
    }
    const std::int64_t beside = least[s].reserved.value - stage.in_flight * stays;
    stages[s].limit =
        static_cast<double>(std::max<std::int64_t>(0, segment_limit(job, profile).value - beside));
  }
  ManagedRun out;
  out.actions = offloads.names();
  out.program = std::move(offloads.program);
  out.policy = std::make_unique<OffloadManagerPolicy>(out.program.schedule, std::move(stages));
  return out;
}

}  // namespace tidemark
