// What may be done with everything a stage's layers keep for backward, and what that takes.
//
// The unit of choice is what one operator keeps: its outputs that a backward operator reads. An
// action is nothing but operators: some after the last forward user (a copy out, a kernel that
// packs), some before the first backward user (a copy in, a kernel that unpacks, the producers
// again). What it costs, frees, and takes back follows from them, so a new action is one entry of
// a table, and a new operator of a model none.
//
//   save       nothing
//   recompute  the producer again, and what it needs that is not kept, back to kept storages.
//              Storages with several writers cannot be made again. A router replays its decisions,
//              which stay.
//   offload    out on the device-to-host stream, in one layer ahead of its use
//   quantize   8 bits, one fp32 scale for 128 values; only of products' operands and results
//
// Bytes are those of storages, so a view costs and frees nothing. Of what is a mere copy of another
// kept storage only the re-run is offered: to offload or pack one of two copies is redundant. What
// one operator keeps is decided together, and every input of a re-run is obtainable under every
// action, so choices for different operators are free of each other. Where two re-runs share
// operators on the way, each is charged for them. Always saved: what is small under balanced
// routing, what is sent to the next stage, what a module names (dispatcher state); not listed: what
// lies outside layers.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "models/operator_graph.h"
#include "planner/provision.h"
#include "sim/operator_cost.h"

namespace tidemark {

// What is done with what an operator keeps, in words that outlive a graph.
struct NamedAction {
  std::string operator_name;
  std::int32_t layer = -1;
  ActionKind kind = ActionKind::kRecompute;
};

// What one forward operator keeps for backward.
struct KeptOutputs {
  std::int32_t writer = -1;         // position in the forward list
  std::vector<StorageId> storages;  // kept, in the order it writes them
  Size bytes;
  std::int32_t last_forward_user = -1;    // position in the forward list
  std::int32_t first_backward_user = -1;  // position in the backward list
};

// The operators of an action. They name the graph's own storages; those from graph.storages.size()
// on are `made`. What `backward` writes is a new incarnation of the storage it names.
struct Realization {
  std::string refusal;            // why the action is not legal; the rest is then empty
  std::vector<StorageId> leaves;  // kept no longer
  std::vector<Storage> made;
  std::vector<Operator> forward;   // issued after the last forward user
  std::vector<Operator> backward;  // issued before the first backward user
  bool ahead = false;              // issued one layer earlier than that
};

// A stage as actions see it.
struct StageView {
  const OperatorGraph& graph;
  std::int64_t balanced_rows = 0;                  // of a lane under balanced routing
  std::int64_t least_bytes = 0;                    // worth an action
  std::vector<bool> kept;                          // [storage]
  std::vector<std::vector<std::int32_t>> writers;  // [storage]: positions in the forward list
};

struct ActionType {
  ActionKind kind;
  std::function<Realization(const StageView&, const KeptOutputs&)> realize;
};

// The four actions above, `save` first.
const std::vector<ActionType>& action_types();

struct CataloguedAction {
  ActionKind kind = ActionKind::kSave;
  Realization realization;
  Size freed;  // between the last forward and the first backward user
  // What bringing back takes beside what comes back: the largest of these, at a lane's rows.
  std::vector<Size> transient;
  Size compute_ps, out_ps, in_ps;
  Size host_bytes;
  std::vector<Group> collectives;  // that bringing back crosses, each once
  // The action is to be decided before this forward operator: a re-run is prepared when its first
  // operator runs.
  std::int32_t decide_before = 0;
};

struct Refusal {
  ActionKind kind;
  std::string reason;
};

struct CatalogueEntry {
  std::string name;  // of the operator
  std::int32_t layer = -1;
  KeptOutputs kept;
  std::vector<CataloguedAction> actions;  // save first
  std::vector<Refusal> refused;
};

struct ActionCatalogue {
  std::vector<CatalogueEntry> entries;  // in the order of the forward
};

constexpr std::int64_t kLeastActionBytes = 1 << 20;

// `balanced_rows`: rows of a lane under balanced routing, see OperatorCosts::cost.
ActionCatalogue build_action_catalogue(const OperatorGraph& graph, OperatorCosts& costs,
                                       std::int64_t balanced_rows,
                                       std::int64_t least_bytes = kLeastActionBytes,
                                       const std::vector<ActionType>& types = action_types());

// Entries with equal actions as classes of a provisioning problem, `microbatches` storages each;
// class_of[i] is the class of entry i. One moment, the forward peak; deadlines all 0.
struct CatalogueClasses {
  std::vector<StorageClass> classes;
  std::vector<std::int32_t> class_of;
};
CatalogueClasses storage_classes(const ActionCatalogue& catalogue, std::int64_t microbatches);

// What each forward operator of a layer has live if everything else were freed as early as any
// action can: inputs, outputs, and what later forward operators of the chunk read. The largest of
// these, at a lane's rows, is the floor of memory. Those that are never the largest are left out.
std::vector<Size> running_needs(const OperatorGraph& graph);

}  // namespace tidemark
