#include "tests/support/apply_actions.h"

#include <algorithm>
#include <cassert>
#include <map>
#include <utility>
#include <vector>

namespace tidemark {
namespace {

class Applier {
 public:
  Applier(const OperatorGraph& graph, const ActionCatalogue& catalogue,
          std::span<const std::int32_t> choice)
      : before_(graph), entries_(catalogue.entries) {
    assert(choice.size() == entries_.size());
    after_.storages = graph.storages;
    after_.chunks = graph.chunks;
    after_.combined = graph.combined;
    for (std::size_t i = 0; i < entries_.size(); ++i) {
      const auto chosen = static_cast<std::size_t>(choice[i]);
      actions_.push_back(&entries_[i].actions[chosen].realization);
      made_.emplace_back();
      for (const Storage& storage : actions_.back()->made) {
        made_.back().emplace_back(std::ssize(after_.storages));
        after_.storages.push_back(storage);
      }
      for (StorageId s : actions_.back()->leaves) left_with_.emplace(s, i);
    }
    done_.resize(entries_.size());
  }

  OperatorGraph run() && {
    for (Chunk& chunk : after_.chunks) {
      run_forward(chunk.forward);
      run_backward(chunk);
    }
    check_operator_graph(after_);
    return std::move(after_);
  }

 private:
  // Of an action, its own storages by their ids in the new graph.
  StorageId resolve(std::size_t action, StorageId s) const {
    const std::size_t own = before_.storages.size();
    return s.index() < own ? s : made_[action][s.index() - own];
  }

  // Where the list's operators have gone, for the collectives beside them.
  void move_contention(std::vector<Operator>& list, const std::vector<std::int32_t>& position,
                       OperatorRange old, OperatorRange moved) const {
    for (std::int32_t i = moved.begin; i < moved.end; ++i) {
      std::int32_t& beside = list[static_cast<std::size_t>(i)].contends_with;
      if (beside >= 0) beside = position[static_cast<std::size_t>(beside - old.begin)];
    }
  }

  void run_forward(OperatorRange& range) {
    const OperatorRange old = range;
    range.begin = static_cast<std::int32_t>(after_.forward.size());
    std::vector<std::int32_t> position;
    for (std::int32_t i = old.begin; i < old.end; ++i) {
      position.push_back(static_cast<std::int32_t>(after_.forward.size()));
      Operator op = before_.forward[static_cast<std::size_t>(i)];
      std::erase_if(op.holds, [&](StorageId s) {
        const auto left = left_with_.find(s);
        return left != left_with_.end() && entries_[left->second].kept.last_forward_user < i;
      });
      after_.forward.push_back(std::move(op));
      for (std::size_t a = 0; a < entries_.size(); ++a) {
        if (entries_[a].kept.last_forward_user != i) continue;
        for (Operator added : actions_[a]->forward) {
          for (auto* list : {&added.reads, &added.writes}) {
            for (StorageId& s : *list) s = resolve(a, s);
          }
          added.added = true;
          added.part = before_.forward[static_cast<std::size_t>(i)].part;
          after_.forward.push_back(std::move(added));
        }
      }
    }
    range.end = static_cast<std::int32_t>(after_.forward.size());
    move_contention(after_.forward, position, old, range);
  }

  // Weight gradients that run by themselves are right behind; what they bring back goes with them.
  void run_backward(Chunk& chunk) {
    const auto end = [&] { return static_cast<std::int32_t>(after_.backward.size()); };
    const std::int32_t weights = chunk.backward.end;
    const OperatorRange old{chunk.backward.begin, weights + chunk.weight.size()};
    chunk.backward.begin = end();
    const std::multimap<std::int32_t, std::size_t> ahead = issued_ahead(old);
    std::vector<std::int32_t> position;
    for (std::int32_t i = old.begin; i < old.end; ++i) {
      Operator op = before_.backward[static_cast<std::size_t>(i)];
      const std::size_t begin = after_.backward.size();
      if (i == weights) chunk.weight.begin = end();
      const auto [first, last] = ahead.equal_range(i);
      for (auto it = first; it != last; ++it) bring_back(it->second);
      for (StorageId s : op.reads) require(s);
      for (std::size_t added = begin; added < after_.backward.size(); ++added) {
        after_.backward[added].part = op.part;
      }
      for (auto* list : {&op.reads, &op.writes, &op.holds}) {
        for (StorageId& s : *list) s = current(s);
      }
      position.push_back(end());
      after_.backward.push_back(std::move(op));
    }
    if (weights == old.end) chunk.weight.begin = end();
    chunk.backward.end = chunk.weight.begin;
    chunk.weight.end = end();
    move_contention(after_.backward, position, old, {chunk.backward.begin, chunk.weight.end});
  }

  // Actions by the backward operator before which they are issued early; of one moment, the one
  // used first comes first.
  std::multimap<std::int32_t, std::size_t> issued_ahead(OperatorRange range) const {
    std::vector<std::pair<std::int32_t, std::size_t>> by_use;
    for (std::size_t a = 0; a < actions_.size(); ++a) {
      const std::int32_t use = entries_[a].kept.first_backward_user;
      if (actions_[a]->ahead && use >= range.begin && use < range.end) by_use.emplace_back(use, a);
    }
    std::sort(by_use.begin(), by_use.end());
    std::multimap<std::int32_t, std::size_t> out;
    for (const auto& [use, a] : by_use) {
      const std::int32_t own = layer_begin(use, range.begin);
      out.emplace(own == range.begin ? own : layer_begin(own - 1, range.begin), a);
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

  StorageId current(StorageId s) const {
    const auto it = incarnation_.find(s);
    return it == incarnation_.end() ? s : it->second;
  }

  void require(StorageId s) {
    if (const auto it = left_with_.find(s); it != left_with_.end()) bring_back(it->second);
  }

  void bring_back(std::size_t action) {
    if (done_[action]) return;
    done_[action] = true;
    const std::vector<StorageId>& leaves = actions_[action]->leaves;
    std::map<StorageId, StorageId> local;  // what the re-run makes on its way
    for (Operator op : actions_[action]->backward) {
      for (StorageId& s : op.reads) {
        if (const auto it = local.find(s); it != local.end()) {
          s = it->second;
          continue;
        }
        require(s);
        s = current(resolve(action, s));
      }
      for (StorageId& s : op.writes) {
        const bool returns = std::find(leaves.begin(), leaves.end(), s) != leaves.end();
        const StorageId fresh(std::ssize(after_.storages));
        after_.storages.push_back(after_.storages[resolve(action, s).index()]);
        (returns ? incarnation_ : local)[s] = fresh;
        s = fresh;
      }
      op.added = true;
      after_.backward.push_back(std::move(op));
    }
  }

  const OperatorGraph& before_;
  const std::vector<CatalogueEntry>& entries_;
  std::vector<const Realization*> actions_;     // [entry]
  std::vector<std::vector<StorageId>> made_;    // [entry], in the new graph
  std::map<StorageId, std::size_t> left_with_;  // entry
  std::vector<bool> done_;                      // [entry]: brought back
  std::map<StorageId, StorageId> incarnation_;  // in the backward
  OperatorGraph after_;
};

}  // namespace

OperatorGraph apply_actions(const OperatorGraph& graph, const ActionCatalogue& catalogue,
                            std::span<const std::int32_t> choice) {
  return Applier(graph, catalogue, choice).run();
}

}  // namespace tidemark
