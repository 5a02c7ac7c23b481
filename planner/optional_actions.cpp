#include "planner/optional_actions.h"

#include <algorithm>
#include <map>
#include <utility>

namespace tidemark {
namespace {

class Builder {
 public:
  Builder(const OperatorGraph& graph, const ActionCatalogue& catalogue,
          const std::function<bool(std::int32_t, std::int32_t)>& wanted)
      : before_(graph), entries_(catalogue.entries) {
    OperatorGraph& after = out_.graph;
    after.storages = graph.storages;
    after.chunks = graph.chunks;
    after.combined = graph.combined;
    for (std::size_t e = 0; e < entries_.size(); ++e) {
      std::vector<std::int32_t>& ids = out_.ids.emplace_back(entries_[e].actions.size(), -1);
      for (std::size_t a = 1; a < entries_[e].actions.size(); ++a) {
        if (!wanted(static_cast<std::int32_t>(e), static_cast<std::int32_t>(a))) continue;
        ids[a] = static_cast<std::int32_t>(out_.actions.size());
        out_.actions.push_back({static_cast<std::int32_t>(e), static_cast<std::int32_t>(a)});
        out_.names.push_back({entries_[e].name, entries_[e].layer, entries_[e].actions[a].kind});
        made_.emplace_back();
        const Realization& realization = entries_[e].actions[a].realization;
        for (const Storage& storage : realization.made) {
          made_.back().emplace_back(std::ssize(after.storages));
          after.storages.push_back(storage);
        }
        for (StorageId s : realization.leaves) left_with_[s].push_back(ids[a]);
      }
    }
    after.optional_actions = static_cast<std::int32_t>(out_.actions.size());
    done_.resize(out_.actions.size());
  }

  OptionalGraph run() && {
    for (Chunk& chunk : out_.graph.chunks) {
      run_forward(chunk.forward);
      run_backward(chunk);
    }
    check_operator_graph(out_.graph);
    return std::move(out_);
  }

 private:
  const CatalogueEntry& entry_of(std::int32_t id) const {
    return entries_[static_cast<std::size_t>(out_.actions[static_cast<std::size_t>(id)].entry)];
  }
  const Realization& realization(std::int32_t id) const {
    const OptionalAction& action = out_.actions[static_cast<std::size_t>(id)];
    return entry_of(id).actions[static_cast<std::size_t>(action.action)].realization;
  }
  // An action's own storages by their ids in the new graph.
  StorageId resolve(std::int32_t id, StorageId s) const {
    const std::size_t own = before_.storages.size();
    return s.index() < own ? s : made_[static_cast<std::size_t>(id)][s.index() - own];
  }

  static void move_contention(std::vector<Operator>& list,
                              const std::vector<std::int32_t>& position, OperatorRange old,
                              OperatorRange moved) {
    for (std::int32_t i = moved.begin; i < moved.end; ++i) {
      std::int32_t& beside = list[static_cast<std::size_t>(i)].contends_with;
      if (beside >= 0) beside = position[static_cast<std::size_t>(beside - old.begin)];
    }
  }

  void run_forward(OperatorRange& range) {
    std::vector<Operator>& list = out_.graph.forward;
    const OperatorRange old = range;
    range.begin = static_cast<std::int32_t>(list.size());
    std::vector<std::int32_t> position;
    for (std::int32_t i = old.begin; i < old.end; ++i) {
      position.push_back(static_cast<std::int32_t>(list.size()));
      list.push_back(before_.forward[static_cast<std::size_t>(i)]);
      for (std::int32_t id = 0; id < out_.graph.optional_actions; ++id) {
        if (entry_of(id).kept.last_forward_user != i) continue;
        for (Operator added : realization(id).forward) {
          for (auto* storages : {&added.reads, &added.writes}) {
            for (StorageId& s : *storages) s = resolve(id, s);
          }
          added.action = id;
          added.added = true;
          added.part = before_.forward[static_cast<std::size_t>(i)].part;
          list.push_back(std::move(added));
        }
        for (StorageId s : realization(id).leaves) {
          out_.graph.departures.push_back({static_cast<std::int32_t>(list.size()) - 1, id, s});
        }
      }
    }
    range.end = static_cast<std::int32_t>(list.size());
    move_contention(list, position, old, range);
  }

  // Weight gradients that run by themselves are right behind; what they bring back goes with them.
  void run_backward(Chunk& chunk) {
    std::vector<Operator>& list = out_.graph.backward;
    const auto end = [&] { return static_cast<std::int32_t>(list.size()); };
    const std::int32_t weights = chunk.backward.end;
    const OperatorRange old{chunk.backward.begin, weights + chunk.weight.size()};
    chunk.backward.begin = end();
    const std::multimap<std::int32_t, std::int32_t> ahead = issued_ahead(old);
    std::vector<std::int32_t> position;
    for (std::int32_t i = old.begin; i < old.end; ++i) {
      const Operator& op = before_.backward[static_cast<std::size_t>(i)];
      const std::size_t begin = list.size();
      if (i == weights) chunk.weight.begin = end();
      const auto [first, last] = ahead.equal_range(i);
      for (auto it = first; it != last; ++it) bring_back(it->second);
      for (StorageId s : op.reads) require(s);
      for (std::size_t added = begin; added < list.size(); ++added) list[added].part = op.part;
      position.push_back(end());
      list.push_back(op);
    }
    if (weights == old.end) chunk.weight.begin = end();
    chunk.backward.end = chunk.weight.begin;
    chunk.weight.end = end();
    move_contention(list, position, old, {chunk.backward.begin, chunk.weight.end});
  }

  // Actions by the backward operator before which they are issued early; of one moment, the one
  // used first comes first.
  std::multimap<std::int32_t, std::int32_t> issued_ahead(OperatorRange range) const {
    std::vector<std::pair<std::int32_t, std::int32_t>> by_use;
    for (std::int32_t id = 0; id < out_.graph.optional_actions; ++id) {
      const std::int32_t use = entry_of(id).kept.first_backward_user;
      if (realization(id).ahead && use >= range.begin && use < range.end) {
        by_use.emplace_back(use, id);
      }
    }
    std::sort(by_use.begin(), by_use.end());
    std::multimap<std::int32_t, std::int32_t> out;
    for (const auto& [use, id] : by_use) {
      const std::int32_t own = layer_begin(use, range.begin);
      out.emplace(own == range.begin ? own : layer_begin(own - 1, range.begin), id);
    }
    return out;
  }

  // First of the operators up to `at` that belong to the same layer without a break.
  std::int32_t layer_begin(std::int32_t at, std::int32_t begin) const {
    const auto layer = [&](std::int32_t i) {
      return before_.backward[static_cast<std::size_t>(i)].layer;
    };
    while (at > begin && layer(at - 1) == layer(at)) --at;
    return at;
  }

  void require(StorageId s) {
    const auto it = left_with_.find(s);
    if (it == left_with_.end()) return;
    for (const std::int32_t id : it->second) bring_back(id);
  }

  void bring_back(std::int32_t id) {
    if (done_[static_cast<std::size_t>(id)]) return;
    done_[static_cast<std::size_t>(id)] = true;
    const std::vector<StorageId>& leaves = realization(id).leaves;
    std::map<StorageId, StorageId> local;  // what a re-run makes on its way
    for (Operator op : realization(id).backward) {
      for (StorageId& s : op.reads) {
        if (const auto it = local.find(s); it != local.end()) {
          s = it->second;
          continue;
        }
        if (std::find(leaves.begin(), leaves.end(), s) == leaves.end()) require(s);
        s = resolve(id, s);
      }
      for (StorageId& s : op.writes) {
        if (std::find(leaves.begin(), leaves.end(), s) != leaves.end()) continue;
        const StorageId fresh(std::ssize(out_.graph.storages));
        out_.graph.storages.push_back(out_.graph.storages[resolve(id, s).index()]);
        s = local[s] = fresh;
      }
      op.action = id;
      op.added = true;
      out_.graph.backward.push_back(std::move(op));
    }
  }

  const OperatorGraph& before_;
  const std::vector<CatalogueEntry>& entries_;
  OptionalGraph out_;
  std::vector<std::vector<StorageId>> made_;                  // [action], in the new graph
  std::map<StorageId, std::vector<std::int32_t>> left_with_;  // actions
  std::vector<bool> done_;                                    // [action]: brought back
};

}  // namespace

void OptionalGraph::take(std::int32_t microbatch, std::int32_t entry, std::int32_t action,
                         StageDecisions& decisions) const {
  const std::int32_t id = ids[static_cast<std::size_t>(entry)][static_cast<std::size_t>(action)];
  if (id >= 0) decisions.at(microbatch, id) = 1;
}

OptionalGraph with_optional_actions(const OperatorGraph& graph, const ActionCatalogue& catalogue,
                                    const std::function<bool(std::int32_t, std::int32_t)>& wanted) {
  return Builder(graph, catalogue, wanted).run();
}

}  // namespace tidemark
