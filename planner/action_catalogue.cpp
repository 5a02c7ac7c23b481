#include "planner/action_catalogue.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "models/linear_operators.h"

namespace tidemark {
namespace {

constexpr std::int64_t kQuantizationBlock = 128;

Size bytes_of(const OperatorGraph& graph, const std::vector<StorageId>& storages) {
  Size sum;
  for (StorageId s : storages) sum = sum + graph.storages[s.index()].bytes;
  return sum;
}

// Unless another is at least as large at any number of rows.
void add_need(std::vector<Size>& needs, Size need) {
  const auto covers = [](Size a, Size b) { return a.fixed >= b.fixed && a.per_row >= b.per_row; };
  if (std::any_of(needs.begin(), needs.end(), [&](Size n) { return covers(n, need); })) return;
  std::erase_if(needs, [&](Size n) { return covers(need, n); });
  needs.push_back(need);
}

Realization refuse(std::string reason) {
  Realization out;
  out.refusal = std::move(reason);
  return out;
}

StageView view(const OperatorGraph& graph, std::int64_t balanced_rows, std::int64_t least_bytes) {
  StageView out{graph, balanced_rows, least_bytes, {}, {}};
  out.kept.resize(graph.storages.size());
  out.writers.resize(graph.storages.size());
  for (StorageId s : kept_storages(graph)) out.kept[s.index()] = true;
  for (std::size_t i = 0; i < graph.forward.size(); ++i) {
    for (StorageId s : graph.forward[i].writes) {
      out.writers[s.index()].push_back(static_cast<std::int32_t>(i));
    }
  }
  return out;
}

// A pass that reads as many bytes as it writes: it changes places or format, nothing else.
bool is_copy(const OperatorGraph& graph, const Operator& op) {
  const auto* work = std::get_if<StreamingWork>(&op.work);
  return work != nullptr && work->bytes == 2 * bytes_of(graph, op.writes);
}

bool is_product(const Work& work) {
  return std::holds_alternative<GemmWork>(work) || std::holds_alternative<GroupedGemmWork>(work);
}

// Which of its outputs a re-run router reads instead of choosing again.
bool is_decision(const OperatorGraph& graph, const Operator& writer, StorageId s) {
  if (!std::holds_alternative<RouterWork>(writer.work)) return false;
  const std::string& name = graph.storages[s.index()].name;
  return name.ends_with("routing_map") || name.ends_with("indices");
}

// Why a storage stays where it is whatever the action; "" if it need not.
std::string why_fixed(const OperatorGraph& graph, StorageId s) {
  const Storage& storage = graph.storages[s.index()];
  if (storage.role == StorageRole::kModuleState) return storage.name + " is named by its module";
  for (const Chunk& chunk : graph.chunks) {
    if (s == chunk.output) return storage.name + " is sent to the next stage";
  }
  return "";
}

// Storages that could leave, together at least `least_bytes`, or why none could.
Realization candidates(const StageView& stage, const KeptOutputs& kept, auto&& why_not) {
  Realization out;
  std::string reason;
  for (StorageId s : kept.storages) {
    std::string fixed = why_fixed(stage.graph, s);
    if (fixed.empty()) fixed = why_not(s);
    if (fixed.empty()) {
      out.leaves.push_back(s);
    } else if (reason.empty()) {
      reason = fixed;
    }
  }
  if (out.leaves.empty()) return refuse(reason);
  if (bytes_of(stage.graph, out.leaves).at(stage.balanced_rows) < stage.least_bytes) {
    return refuse(reason.empty() ? "too small" : "too small without " + reason);
  }
  return out;
}

Realization save(const StageView&, const KeptOutputs&) { return {}; }

Realization recompute(const StageView& stage, const KeptOutputs& kept) {
  const OperatorGraph& graph = stage.graph;
  const Operator& writer = graph.forward[static_cast<std::size_t>(kept.writer)];
  const auto rewritten = [&](StorageId s) {
    return graph.storages[s.index()].name + " is written more than once";
  };
  Realization out = candidates(stage, kept, [&](StorageId s) {
    if (stage.writers[s.index()].size() > 1) return rewritten(s);
    const std::string& name = graph.storages[s.index()].name;
    return is_decision(graph, writer, s) ? name + " (a re-run router replays it)" : std::string();
  });
  if (!out.refusal.empty()) return out;
  std::set<std::int32_t> again{kept.writer};
  std::vector<std::int32_t> open{kept.writer};
  while (!open.empty()) {
    const Operator& op = graph.forward[static_cast<std::size_t>(open.back())];
    open.pop_back();
    for (StorageId s : op.reads) {
      const std::vector<std::int32_t>& from = stage.writers[s.index()];
      if (stage.kept[s.index()] || from.empty()) continue;  // from.empty(): the stage's input
      if (from.size() > 1) return refuse(rewritten(s));
      if (again.insert(from[0]).second) open.push_back(from[0]);
    }
  }
  for (std::int32_t i : again) {
    Operator op = graph.forward[static_cast<std::size_t>(i)];
    op.name = "recompute." + op.name;
    op.contends_with = -1;
    op.holds.clear();
    out.backward.push_back(std::move(op));
  }
  return out;
}

// Storages worth moving, unless they are a copy of a kept one: then re-running it is all there is
// to do.
Realization movable(const StageView& stage, const KeptOutputs& kept) {
  const OperatorGraph& graph = stage.graph;
  const Operator& writer = graph.forward[static_cast<std::size_t>(kept.writer)];
  for (StorageId s : writer.reads) {
    const Size bytes = graph.storages[s.index()].bytes;
    const bool whole = bytes.fixed >= kept.bytes.fixed && bytes.per_row >= kept.bytes.per_row;
    if (stage.kept[s.index()] && whole && is_copy(graph, writer)) {
      return refuse("a copy of " + graph.storages[s.index()].name + ", which is kept");
    }
  }
  return candidates(stage, kept, [&](StorageId s) {
    const bool small = graph.storages[s.index()].bytes.at(stage.balanced_rows) < stage.least_bytes;
    return small ? graph.storages[s.index()].name + ", which is small" : std::string();
  });
}

Realization offload(const StageView& stage, const KeptOutputs& kept) {
  const OperatorGraph& graph = stage.graph;
  Realization out = movable(stage, kept);
  if (!out.refusal.empty()) return out;
  out.ahead = true;
  const Operator& writer = graph.forward[static_cast<std::size_t>(kept.writer)];
  const Size bytes = bytes_of(graph, out.leaves);
  Operator copy;
  copy.layer = writer.layer;
  copy.name = "offload." + writer.name;
  copy.work = CopyWork{bytes, true};
  copy.stream = Stream::kDeviceToHost;
  copy.reads = out.leaves;
  out.forward.push_back(copy);
  copy.name = "reload." + writer.name;
  copy.work = CopyWork{bytes, false};
  copy.stream = Stream::kHostToDevice;
  copy.writes = std::exchange(copy.reads, {});
  out.backward.push_back(copy);
  return out;
}

Realization quantize(const StageView& stage, const KeptOutputs& kept) {
  const OperatorGraph& graph = stage.graph;
  const Operator& writer = graph.forward[static_cast<std::size_t>(kept.writer)];
  Realization out = movable(stage, kept);
  if (!out.refusal.empty()) return out;
  const bool result = is_product(writer.work);
  for (const Operator& op : graph.backward) {
    for (StorageId s : op.reads) {
      if (result || is_product(op.work)) continue;
      if (std::find(out.leaves.begin(), out.leaves.end(), s) != out.leaves.end()) {
        return refuse(op.name + " needs full precision");
      }
    }
  }
  std::vector<StorageId> packed;
  Size traffic;
  for (StorageId s : out.leaves) {
    Storage storage = graph.storages[s.index()];
    const auto pack = [](std::int64_t bytes) {
      return bytes / kBf16 + ceil_div(bytes / kBf16, kQuantizationBlock) * kFp32;
    };
    traffic = traffic + storage.bytes;
    storage.bytes = {pack(storage.bytes.fixed), pack(storage.bytes.per_row)};
    traffic = traffic + storage.bytes;
    storage.name += ".quantized";
    packed.emplace_back(std::ssize(graph.storages) + std::ssize(out.made));
    out.made.push_back(std::move(storage));
  }
  Operator kernel;
  kernel.layer = writer.layer;
  kernel.name = "quantize." + writer.name;
  kernel.work = StreamingWork{traffic};
  kernel.reads = out.leaves;
  kernel.writes = packed;
  out.forward.push_back(kernel);
  kernel.name = "dequantize." + writer.name;
  std::swap(kernel.reads, kernel.writes);
  out.backward.push_back(kernel);
  return out;
}

// What each operator of a layer keeps.
std::vector<KeptOutputs> kept_outputs(const StageView& stage) {
  const OperatorGraph& graph = stage.graph;
  std::map<std::int32_t, KeptOutputs> by_writer;
  std::vector<KeptOutputs*> of(graph.storages.size());
  for (std::size_t i = 0; i < graph.storages.size(); ++i) {
    if (!stage.kept[i]) continue;
    const StorageId s(static_cast<std::int64_t>(i));
    const std::int32_t writer = stage.writers[i].front();
    if (graph.forward[static_cast<std::size_t>(writer)].layer < 0) continue;
    KeptOutputs& kept = by_writer[writer];
    kept.writer = writer;
    kept.storages.push_back(s);
    kept.bytes = kept.bytes + graph.storages[s.index()].bytes;
    kept.last_forward_user = writer;
    of[s.index()] = &kept;
  }
  for (std::size_t i = 0; i < graph.forward.size(); ++i) {
    const Operator& op = graph.forward[i];
    for (const auto* list : {&op.reads, &op.writes}) {
      for (StorageId s : *list) {
        if (of[s.index()] != nullptr) {
          of[s.index()]->last_forward_user = static_cast<std::int32_t>(i);
        }
      }
    }
  }
  for (std::size_t i = graph.backward.size(); i-- > 0;) {
    for (StorageId s : graph.backward[i].reads) {
      if (of[s.index()] != nullptr) {
        of[s.index()]->first_backward_user = static_cast<std::int32_t>(i);
      }
    }
  }
  std::vector<KeptOutputs> out;
  for (auto& [writer, kept] : by_writer) {
    // Held by a name in the backward, but read by nothing there.
    if (kept.first_backward_user >= 0) out.push_back(std::move(kept));
  }
  return out;
}

// Fills in what follows from the operators.
class Pricer {
 public:
  Pricer(const OperatorGraph& graph, OperatorCosts& costs, std::int64_t balanced_rows)
      : graph_(graph), costs_(costs), rows_(balanced_rows) {}

  CataloguedAction price(ActionKind kind, Realization realization, const KeptOutputs& kept) const {
    CataloguedAction out;
    out.kind = kind;
    out.decide_before = kept.last_forward_user + 1;
    if (kind == ActionKind::kRecompute) {
      out.decide_before = first_of(realization);
    }
    out.freed = bytes_of(graph_, realization.leaves) + -1 * remains(realization);
    for (const Operator& op : realization.forward) add(op, out);
    for (const Operator& op : realization.backward) add(op, out);
    out.transient = transient(realization);
    out.realization = std::move(realization);
    return out;
  }

 private:
  Size bytes(const Realization& r, StorageId s) const {
    const std::size_t own = graph_.storages.size();
    return s.index() < own ? graph_.storages[s.index()].bytes : r.made[s.index() - own].bytes;
  }

  // What the forward leaves on the card for the backward.
  Size remains(const Realization& r) const {
    std::set<StorageId> written;
    Size sum;
    for (const Operator& op : r.forward) written.insert(op.writes.begin(), op.writes.end());
    for (const Operator& op : r.backward) {
      for (StorageId s : op.reads) {
        if (written.erase(s) > 0) sum = sum + bytes(r, s);
      }
    }
    return sum;
  }

  // Position in the forward of the first operator that runs again.
  std::int32_t first_of(const Realization& r) const {
    std::int32_t first = static_cast<std::int32_t>(graph_.forward.size());
    for (const Operator& op : r.backward) {
      for (std::size_t i = 0; i < graph_.forward.size(); ++i) {
        if (graph_.forward[i].writes == op.writes && !op.writes.empty()) {
          first = std::min(first, static_cast<std::int32_t>(i));
        }
      }
    }
    return first;
  }

  void add(const Operator& op, CataloguedAction& out) const {
    const OpCost cost = costs_.cost(op);
    const std::int64_t empty = cost.at(0);
    Size ps{1000 * empty, 0};
    if (rows_ > 0) ps.per_row = ceil_div(1000 * (costs_.balanced_ns(cost) - empty), rows_);
    if (const auto* copy = std::get_if<CopyWork>(&op.work)) {
      Size& sum = copy->to_host ? out.out_ps : out.in_ps;
      sum = sum + ps;
      if (copy->to_host) out.host_bytes = out.host_bytes + copy->bytes;
      return;
    }
    // Every operator of a re-run is in front of the backward, whatever its stream.
    out.compute_ps = out.compute_ps + ps;
    if (const auto* collective = std::get_if<CollectiveWork>(&op.work)) {
      if (std::find(out.collectives.begin(), out.collectives.end(), collective->group) ==
          out.collectives.end()) {
        out.collectives.push_back(collective->group);
      }
    }
  }

  // What is live of what `backward` writes, without what comes back.
  std::vector<Size> transient(const Realization& r) const {
    std::map<StorageId, std::size_t> last;
    for (std::size_t i = 0; i < r.backward.size(); ++i) {
      for (const auto* list : {&r.backward[i].reads, &r.backward[i].writes}) {
        for (StorageId s : *list) last[s] = i;
      }
    }
    std::set<StorageId> live;
    std::vector<Size> needs;
    for (std::size_t i = 0; i < r.backward.size(); ++i) {
      for (StorageId s : r.backward[i].writes) {
        if (std::find(r.leaves.begin(), r.leaves.end(), s) == r.leaves.end()) live.insert(s);
      }
      Size now;
      for (StorageId s : live) now = now + bytes(r, s);
      add_need(needs, now);
      std::erase_if(live, [&](StorageId s) { return last.at(s) == i; });
    }
    return needs;
  }

  const OperatorGraph& graph_;
  OperatorCosts& costs_;
  std::int64_t rows_;
};

bool same_actions(const CatalogueEntry& a, const CatalogueEntry& b) {
  const auto same = [](const CataloguedAction& x, const CataloguedAction& y) {
    return x.kind == y.kind && x.freed == y.freed && x.transient == y.transient &&
           x.compute_ps == y.compute_ps && x.out_ps == y.out_ps && x.in_ps == y.in_ps &&
           x.host_bytes == y.host_bytes && x.collectives == y.collectives;
  };
  return a.name == b.name && a.kept.bytes == b.kept.bytes &&
         std::equal(a.actions.begin(), a.actions.end(), b.actions.begin(), b.actions.end(), same);
}

}  // namespace

const std::vector<ActionType>& action_types() {
  static const std::vector<ActionType> types{{ActionKind::kSave, save},
                                             {ActionKind::kRecompute, recompute},
                                             {ActionKind::kOffload, offload},
                                             {ActionKind::kQuantize, quantize}};
  return types;
}

ActionCatalogue build_action_catalogue(const OperatorGraph& graph, OperatorCosts& costs,
                                       std::int64_t balanced_rows, std::int64_t least_bytes,
                                       const std::vector<ActionType>& types) {
  const StageView stage = view(graph, balanced_rows, least_bytes);
  const Pricer pricer(graph, costs, balanced_rows);
  ActionCatalogue out;
  for (KeptOutputs& kept : kept_outputs(stage)) {
    const Operator& writer = graph.forward[static_cast<std::size_t>(kept.writer)];
    CatalogueEntry entry;
    entry.name = writer.name;
    entry.layer = writer.layer;
    for (const ActionType& type : types) {
      Realization realization = type.realize(stage, kept);
      if (realization.refusal.empty()) {
        entry.actions.push_back(pricer.price(type.kind, std::move(realization), kept));
      } else {
        entry.refused.push_back({type.kind, std::move(realization.refusal)});
      }
    }
    entry.kept = std::move(kept);
    out.entries.push_back(std::move(entry));
  }
  return out;
}

CatalogueClasses storage_classes(const ActionCatalogue& catalogue, std::int64_t microbatches) {
  CatalogueClasses out;
  std::vector<std::size_t> example;  // [class]: an entry of it
  for (std::size_t i = 0; i < catalogue.entries.size(); ++i) {
    const CatalogueEntry& entry = catalogue.entries[i];
    const auto known = std::find_if(example.begin(), example.end(), [&](std::size_t e) {
      return same_actions(catalogue.entries[e], entry);
    });
    out.class_of.push_back(static_cast<std::int32_t>(known - example.begin()));
    if (known != example.end()) {
      out.classes[static_cast<std::size_t>(out.class_of.back())].count += microbatches;
      continue;
    }
    example.push_back(i);
    StorageClass storage_class;
    storage_class.name = entry.name;
    storage_class.count = microbatches;
    for (const CataloguedAction& a : entry.actions) {
      StorageAction action;
      action.kind = a.kind;
      action.held[0] = entry.kept.bytes + -1 * a.freed;
      action.compute_ps = a.compute_ps;
      action.out_ps = a.out_ps;
      action.in_ps = a.in_ps;
      action.host_bytes = a.host_bytes;
      action.collective = !a.collectives.empty();
      storage_class.actions.push_back(action);
    }
    out.classes.push_back(std::move(storage_class));
  }
  return out;
}

std::vector<Size> running_needs(const OperatorGraph& graph) {
  std::vector<std::int32_t> first(graph.storages.size(), -1);
  std::vector<std::int32_t> last(graph.storages.size(), -1);
  for (std::size_t i = 0; i < graph.forward.size(); ++i) {
    const auto at = static_cast<std::int32_t>(i);
    const Operator& op = graph.forward[i];
    for (StorageId s : op.writes) {
      if (first[s.index()] < 0) first[s.index()] = at;
    }
    for (const auto* list : {&op.reads, &op.writes}) {
      for (StorageId s : *list) last[s.index()] = at;
    }
  }
  std::vector<Size> needs;
  for (std::size_t i = 0; i < graph.forward.size(); ++i) {
    const auto at = static_cast<std::int32_t>(i);
    if (graph.forward[i].layer < 0) continue;
    Size sum;
    for (std::size_t s = 0; s < graph.storages.size(); ++s) {
      if (first[s] <= at && last[s] >= at) sum = sum + graph.storages[s].bytes;
    }
    add_need(needs, sum);
  }
  return needs;
}

}  // namespace tidemark
