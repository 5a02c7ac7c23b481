#include "models/activation_offload.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "models/layer_operators.h"
#include "models/linear_operators.h"

namespace tidemark {
namespace {

bool contains(OperatorRange range, std::int32_t at) { return at >= range.begin && at < range.end; }

// A group with what it saves.
struct SavingGroup {
  OffloadGroup where;
  std::vector<StorageId> saved;
};

class Offloader {
 public:
  Offloader(OperatorGraph graph, const Job& job, std::int64_t stage)
      : graph_(std::move(graph)),
        job_(job),
        stage_(stage),
        balanced_rows_(balanced_lane_rows(job)) {}

  OperatorGraph run(const std::vector<OffloadGroup>& groups) && {
    std::vector<Operator> forward = std::exchange(graph_.forward, {});
    std::vector<Operator> backward = std::exchange(graph_.backward, {});
    for (std::size_t c = 0; c < graph_.chunks.size(); ++c) {
      Chunk& chunk = graph_.chunks[c];
      std::vector<SavingGroup> of_chunk;
      for (const OffloadGroup& group : groups) {
        if (!contains(chunk.forward, group.forward.begin)) continue;
        of_chunk.push_back({group, saved_in(group, forward, backward)});
      }
      const std::vector<bool> selected = select(of_chunk, static_cast<std::int64_t>(c));
      change_chunk(chunk, of_chunk, selected, forward, backward);
    }
    check_operator_graph(graph_);
    return std::move(graph_);
  }

 private:
  using Insertions = std::multimap<std::int32_t, Operator>;  // before the operator there

  // Activations that the group's forward touches and its backward reads.
  std::vector<StorageId> saved_in(const OffloadGroup& group, const std::vector<Operator>& forward,
                                  const std::vector<Operator>& backward) const {
    std::set<StorageId> touched;
    for (std::int32_t i = group.forward.begin; i < group.forward.end; ++i) {
      const Operator& op = forward[static_cast<std::size_t>(i)];
      touched.insert(op.reads.begin(), op.reads.end());
      touched.insert(op.writes.begin(), op.writes.end());
    }
    std::vector<StorageId> saved;
    for (std::int32_t i = group.backward.begin; i < group.backward.end; ++i) {
      for (StorageId s : backward[static_cast<std::size_t>(i)].reads) {
        const Storage& storage = graph_.storages[s.index()];
        if (!touched.contains(s) || storage.role != StorageRole::kActivation) continue;
        if (storage.bytes.at(balanced_rows_) / kBf16 < job_.options.offload.min_tensor_elements) {
          continue;
        }
        if (std::find(saved.begin(), saved.end(), s) == saved.end()) saved.push_back(s);
      }
    }
    return saved;
  }

  // should_bulk_offload and post_warmup_callback.
  std::vector<bool> select(const std::vector<SavingGroup>& groups, std::int64_t chunk) const {
    std::vector<bool> selected(groups.size());
    for (std::size_t i = 0; i < groups.size(); ++i) selected[i] = !groups[i].saved.empty();
    const ParallelLayout& l = job_.layout;
    if (l.virtual_stage(stage_, chunk) == l.virtual_stages() - 1) {
      std::set<OffloadModule> seen;
      for (std::size_t i = groups.size(); i-- > 0;) {
        if (seen.insert(groups[i].where.module).second) selected[i] = false;
      }
    }
    const auto eligible = std::count(selected.begin(), selected.end(), true);
    auto disabled = static_cast<std::int64_t>(static_cast<double>(eligible) *
                                              (1 - job_.options.offload.fraction));
    for (std::size_t i = groups.size(); i-- > 0 && disabled > 0;) {
      if (!selected[i]) continue;
      selected[i] = false;
      --disabled;
    }
    return selected;
  }

  Operator copy(const SavingGroup& group, bool to_host, std::vector<StorageId> storages) const {
    Size bytes;
    for (StorageId s : storages) bytes = bytes + graph_.storages[s.index()].bytes;
    Operator op;
    op.name = std::string(to_host ? "offload." : "reload.") + name_of(group.where.module);
    op.work = CopyWork{bytes, to_host};
    op.stream = to_host ? Stream::kDeviceToHost : Stream::kHostToDevice;
    op.layer = group.where.layer;
    (to_host ? op.reads : op.writes) = std::move(storages);
    return op;
  }

  StorageId offload_event(const SavingGroup& group) {
    graph_.storages.push_back({std::string("offload_event.") + name_of(group.where.module),
                               {},
                               group.where.layer,
                               StorageRole::kTemporary});
    return StorageId(std::ssize(graph_.storages) - 1);
  }

  // Compute waits for a copy (_drain_offload_pending).
  static Operator wait(const SavingGroup& group, StorageId event) {
    Operator op;
    op.name = std::string("offload_wait.") + name_of(group.where.module);
    op.work = StreamingWork{};
    op.layer = group.where.layer;
    op.reads = {event};
    return op;
  }

  void change_chunk(Chunk& chunk, const std::vector<SavingGroup>& groups,
                    const std::vector<bool>& selected, std::vector<Operator>& forward,
                    std::vector<Operator>& backward) {
    Insertions offloads;
    Insertions reloads;
    std::map<OffloadModule, std::vector<StorageId>>
        copied;                     // what each copy leaves when it is done
    std::vector<Operator> waiting;  // reloads, the last to run first
    for (std::size_t i = 0; i < groups.size(); ++i) {
      if (!selected[i]) continue;
      const SavingGroup& group = groups[i];
      const std::int32_t done = group.where.forward.end;
      offloads.emplace(done, copy(group, true, group.saved));
      if (const auto& limit = job_.options.offload.max_inflight) {
        std::vector<StorageId>& of_module = copied[group.where.module];
        of_module.push_back(offload_event(group));
        std::prev(offloads.upper_bound(done))->second.writes = {of_module.back()};
        if (std::ssize(of_module) > *limit) {
          offloads.emplace(done, wait(group, of_module.end()[-1 - *limit]));
        }
      }
      std::map<StorageId, StorageId> reloaded;
      std::vector<StorageId> back;
      for (StorageId s : group.saved) {
        graph_.storages.push_back(graph_.storages[s.index()]);
        back.emplace_back(std::ssize(graph_.storages) - 1);
        reloaded.emplace(s, back.back());
      }
      waiting.push_back(copy(group, false, std::move(back)));
      for (std::int32_t b = group.where.backward.begin; b < group.where.backward.end; ++b) {
        for (StorageId& s : backward[static_cast<std::size_t>(b)].reads) {
          if (const auto it = reloaded.find(s); it != reloaded.end()) s = it->second;
        }
      }
      // Released by force, whatever names it still has.
      for (std::int32_t f = done; f < chunk.forward.end; ++f) {
        std::erase_if(forward[static_cast<std::size_t>(f)].holds,
                      [&](StorageId s) { return reloaded.contains(s); });
      }
    }
    const auto reload_next = [&](std::int32_t before) {
      if (waiting.empty()) return;
      reloads.emplace(before, std::move(waiting.back()));
      waiting.pop_back();
    };
    reload_next(chunk.backward.begin);
    for (std::size_t i = groups.size(); i-- > 0;) reload_next(groups[i].where.backward.end);
    chunk.forward = append(graph_.forward, forward, chunk.forward, std::move(offloads));
    chunk.backward = append(graph_.backward, backward, chunk.backward, std::move(reloads));
  }

  // Moves operators of `range` to the end of `to`, with what is inserted before them.
  static OperatorRange append(std::vector<Operator>& to, std::vector<Operator>& from,
                              OperatorRange range, Insertions insertions) {
    OperatorRange moved{static_cast<std::int32_t>(to.size()), 0};
    std::vector<std::int32_t> position(static_cast<std::size_t>(range.size()));
    for (std::int32_t i = range.begin; i <= range.end; ++i) {
      const auto [first, last] = insertions.equal_range(i);
      for (auto it = first; it != last; ++it) to.push_back(std::move(it->second));
      if (i == range.end) break;
      position[static_cast<std::size_t>(i - range.begin)] = static_cast<std::int32_t>(to.size());
      to.push_back(std::move(from[static_cast<std::size_t>(i)]));
    }
    moved.end = static_cast<std::int32_t>(to.size());
    for (std::int32_t i = moved.begin; i < moved.end; ++i) {
      std::int32_t& beside = to[static_cast<std::size_t>(i)].contends_with;
      if (beside >= 0) beside = position[static_cast<std::size_t>(beside - range.begin)];
    }
    return moved;
  }

  OperatorGraph graph_;
  const Job& job_;
  std::int64_t stage_;
  std::int64_t balanced_rows_ = 0;
};

}  // namespace

OperatorGraph offload_activations(OperatorGraph graph, const std::vector<OffloadGroup>& groups,
                                  const Job& job, std::int64_t stage) {
  return Offloader(std::move(graph), job, stage).run(groups);
}

}  // namespace tidemark
