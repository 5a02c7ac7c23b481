// The operators of one pipeline stage for one microbatch, forward and backward, and the storages
// they read and write: what is computed, what is communicated, what is kept. A stage with virtual
// stages has several chunks of operators, which share nothing.
//
// Lists are in issue order, which is also the order of allocations and frees (PyTorch moves its
// counters on the CPU, in program order). How long a storage lives is not stated anywhere: it is
// allocated by its first writer and dies after its last reference, so what a backward operator
// reads from the forward pass is what the framework saves for backward. References that Python
// names hold beyond the last use are listed as `holds`.
//
//   forward:   norm --ln--> gemm --y--> ...          storages: ln is written by norm, read by gemm
//   backward:  ... --dy--> dgrad, wgrad(ln) ...      and by wgrad: kept between the two passes
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "models/job.h"
#include "models/kernel_shapes.h"
#include "models/units.h"

namespace tidemark {

using StorageId = Id<struct StorageTag>;

class GraphBuilder;

// Bytes (or any amount) of a lane that receives `rows` token-expert rows in this layer.
struct Size {
  std::int64_t fixed = 0;
  std::int64_t per_row = 0;
  std::int64_t at(std::int64_t rows) const { return fixed + per_row * rows; }
  friend constexpr Size operator+(Size a, Size b) {
    return {a.fixed + b.fixed, a.per_row + b.per_row};
  }
  friend constexpr Size operator*(std::int64_t k, Size a) { return {k * a.fixed, k * a.per_row}; }
  friend constexpr bool operator==(Size, Size) = default;
};

// The lanes that take part in a collective.
enum class Group : std::uint8_t { kNone, kTensor, kContext, kExpert, kExpertTensor };

// FIFO queues of a card. One communicator is one queue: a single queue for all of them would invent
// blocking that does not exist.
enum class Stream : std::uint8_t {
  kCompute,
  kSharedExpert,  // side stream of an overlapped shared expert
  kTensorComm,
  kContextComm,
  kExpertComm,
  kDataComm,
  kDeviceToHost,
  kHostToDevice,
};
constexpr int kNumStreams = 8;

struct GemmWork {
  GemmShape shape;
  Pass pass = Pass::kForward;
  bool accumulates_fp32 = false;  // adds into the fp32 gradient buffer
  bool vocabulary = false;        // the output layer: torch.matmul instead of TE's GEMM
};
// One product over the experts of a card; rows come from the routing.
struct GroupedGemmWork {
  std::int64_t out_features = 0;
  std::int64_t in_features = 0;
  std::int64_t experts = 0;
  Pass pass = Pass::kForward;
  bool accumulates_fp32 = false;
};
struct AttentionWork {
  AttentionShape shape;
  std::int64_t context_ranks = 1;  // that share this work evenly
  Direction direction = Direction::kForward;
};
struct NormWork {
  std::int64_t rows = 0;
  std::int64_t width = 0;
  Direction direction = Direction::kForward;
};
// Fused rotary embedding of this many elements of q or k.
struct RotaryWork {
  std::int64_t elements = 0;
  Direction direction = Direction::kForward;
};
struct StreamingWork {
  Size bytes;  // read plus written in HBM
};
struct RouterWork {
  Direction direction = Direction::kForward;
};
struct CrossEntropyWork {
  CrossEntropy path = CrossEntropy::kUnfused;
  std::int64_t logits = 0;
  Direction direction = Direction::kForward;
};
struct CollectiveWork {
  Collective op = Collective::kAllGather;
  Group group = Group::kNone;
  Size send;     // bytes of one member: of an all-gather or reduce-scatter, the full buffer
  Size receive;  // the largest send or receive of any member decides the duration
  // 1 / this is left exposed when the collective is fused into a GEMM (flux).
  std::int64_t fused_parts = 1;
};
// A copy between the card and pinned host memory.
struct CopyWork {
  Size bytes;
  bool to_host = true;
};
// The CPU waits here for a value from the device: the counts of received tokens, or the loss. Then
// it works so long, and issues nothing meanwhile.
struct HostWaitWork {
  std::int64_t host_ns = 0;
};

using Work =
    std::variant<GemmWork, GroupedGemmWork, AttentionWork, NormWork, RotaryWork, StreamingWork,
                 RouterWork, CrossEntropyWork, CollectiveWork, CopyWork, HostWaitWork>;

// The four parts of a layer as Megatron's combined 1F1B cuts it.
enum class LayerPart : std::uint8_t {
  kAttention,  // up to the router and the permutation
  kDispatch,
  kMlp,  // experts, shared experts, or the dense MLP
  kCombine,
};

struct Operator {
  std::string name;
  Work work;
  Stream stream = Stream::kCompute;
  std::int32_t layer = -1;  // global index; -1 outside layers
  std::vector<StorageId> reads;
  std::vector<StorageId> writes;
  std::vector<StorageId> holds;     // still named by Python when this is issued
  std::int32_t contends_with = -1;  // collective of the same list that runs beside it
  LayerPart part = LayerPart::kAttention;
  bool deferrable = false;  // a weight gradient that may run later (TE's WeightGradStore)
  bool added = false;       // by an action: only what needs its data waits for it
  // Runs only where this optional action is taken (planner/optional_actions.h); -1: always. What it
  // writes of storages that others made comes back to the card.
  std::int32_t action = -1;
};

enum class StorageRole : std::uint8_t {
  kActivation,
  kGradient,
  kTemporary,  // dies in the pass that made it, whatever happens
  // A module attribute refers to it until the module's next forward (MoE dispatchers).
  kModuleState,
};

struct Storage {
  std::string name;
  Size bytes;
  std::int32_t layer = -1;
  StorageRole role = StorageRole::kActivation;
  bool saved_as_views = false;  // for backward, through views that are not contiguous
};

// Half-open.
struct OperatorRange {
  std::int32_t begin = 0;
  std::int32_t end = 0;
  std::int32_t size() const { return end - begin; }
};

// One chunk of a stage: its part of the stage's lists, and what crosses its borders; invalid where
// there is no neighbour.
struct Chunk {
  OperatorRange forward;      // of OperatorGraph::forward
  OperatorRange backward;     // of OperatorGraph::backward
  OperatorRange weight;       // right after `backward`: weight gradients that run by themselves
  StorageId input;            // received activation (written by the transfer)
  StorageId output;           // sent activation
  StorageId output_gradient;  // received gradient (written by the transfer)
  StorageId input_gradient;   // sent gradient
};

// Where an optional action is taken, a storage leaves the card after this operator.
struct Departure {
  std::int32_t after = 0;  // position in OperatorGraph::forward
  std::int32_t action = 0;
  StorageId storage;
};

// How slots that combine a forward and a backward are ordered, see models/combined_order.h.
struct CombinedSlots {
  bool delay_wgrad_compute = false;
  bool early_attn_memory_release = false;
};

struct OperatorGraph {
  std::vector<Storage> storages;
  std::vector<Operator> forward;
  std::vector<Operator> backward;
  std::vector<Chunk> chunks;
  std::vector<Departure> departures;
  std::int32_t optional_actions = 0;
  std::optional<CombinedSlots> combined;  // arranged for them
  // Issue orders of slots that combine a forward and a backward, by their chunks: positions in
  // forward ++ backward, optional operators included. Where there is none: models/combined_order.h.
  std::map<std::pair<std::int32_t, std::int32_t>, std::vector<std::int32_t>> slot_orders;

  std::size_t size() const { return forward.size() + backward.size(); }
  const Operator& at(std::size_t i) const {
    return i < forward.size() ? forward[i] : backward[i - forward.size()];
  }
};

// A module's operators as it emits them; returns its outputs.
using Module = std::function<std::vector<StorageId>(GraphBuilder&)>;

// A module's operators in one layer, as a unit of activation offloading.
struct OffloadGroup {
  OffloadModule module = OffloadModule::kCoreAttn;
  std::int32_t layer = -1;
  OperatorRange forward;   // of OperatorGraph::forward
  OperatorRange backward;  // of OperatorGraph::backward
};

// Where a storage is allocated and what last refers to it: positions in forward ++ backward.
struct Lifetime {
  std::int32_t first = -1;  // -1: allocated by a transfer
  std::int32_t last = -1;
};

// Indexed by storage. Operators of optional actions count for what they alone refer to. Requires:
// every storage is referenced.
std::vector<Lifetime> lifetimes(const OperatorGraph& graph);

// Storages that live from the forward into the backward pass, without the input.
std::vector<StorageId> kept_storages(const OperatorGraph& graph);

// Bytes and FLOPs of one operator on a lane with `rows` routed rows.
double flops(const Operator& op, std::int64_t rows);

// Throws: std::logic_error naming the operator when a storage is read before it is written, or the
// issue order contradicts the data flow.
void check_operator_graph(const OperatorGraph& graph);

// Builds a graph module by module. A module emits its forward operators at once and registers its
// backward, which runs in reverse order when the graph is finished.
class GraphBuilder {
  struct ModuleBackward {
    std::int32_t layer = -1;
    LayerPart part = LayerPart::kAttention;
    std::function<void(GraphBuilder&)> emit;
  };
  using Backwards = std::vector<ModuleBackward>;

 public:
  explicit GraphBuilder(const Job& job) : job_(job) {}

  const Job& job() const { return job_; }

  StorageId storage(std::string name, Size bytes, StorageRole role = StorageRole::kActivation);
  StorageId storage(std::string name, std::int64_t bytes,
                    StorageRole role = StorageRole::kActivation) {
    return storage(std::move(name), Size{bytes, 0}, role);
  }

  // Appends to the pass that is being built. Returns: its position in that pass's list.
  std::int32_t emit(std::string name, Work work, Stream stream, std::vector<StorageId> reads,
                    std::vector<StorageId> writes, std::int32_t contends_with = -1);
  std::int32_t emit(std::string name, Work work, std::vector<StorageId> reads,
                    std::vector<StorageId> writes) {
    return emit(std::move(name), std::move(work), Stream::kCompute, std::move(reads),
                std::move(writes));
  }
  // The weight gradient of a Transformer Engine linear.
  void emit_weight_gradient(std::string name, Work work, Stream stream,
                            std::vector<StorageId> reads, std::vector<StorageId> writes,
                            std::int32_t contends_with = -1) {
    emitted(emit(std::move(name), std::move(work), stream, std::move(reads), std::move(writes),
                 contends_with))
        .deferrable = true;
  }
  // One that has been emitted in this pass.
  Operator& emitted(std::int32_t position) {
    return (in_backward_ ? graph_.backward : graph_.forward)[static_cast<std::size_t>(position)];
  }
  // Python still names these storages when the last emitted operator is issued.
  void hold(std::vector<StorageId> storages);

  void on_backward(std::function<void(GraphBuilder&)> emit_backward) {
    backward_.push_back({layer_, part_, std::move(emit_backward)});
  }

  // The gradient of an activation; adding a second one emits the addition, in place.
  void add_gradient(StorageId of, StorageId gradient);
  // For a view whose gradient becomes that of the storage it views.
  void replace_gradient(StorageId of, StorageId gradient) { gradients_[of] = gradient; }
  StorageId gradient(StorageId of) const;

  // Activation checkpointing (tensor_parallel/random.py CheckpointFunction): runs `module` without
  // keeping anything of it for backward, and runs it again before its backward.
  std::vector<StorageId> checkpoint(const Module& module);

  // Checkpointing that discards the outputs too (CheckpointWithoutOutput). `recompute` is called
  // once their consumers have run: there the outputs are freed, and there, in the backward,
  // `module` runs again and its outputs take the place of the discarded ones.
  class DiscardedOutput {
   public:
    const std::vector<StorageId>& outputs() const { return state_->outputs; }

   private:
    friend class GraphBuilder;
    struct State {
      Module module;
      std::vector<StorageId> outputs;
      std::vector<StorageId> again;
      LayerPart part = LayerPart::kAttention;  // that the module belongs to
      Backwards backwards;
    };
    std::shared_ptr<State> state_;
  };
  DiscardedOutput checkpoint_without_output(const Module& module);
  void discard_and_recompute(const DiscardedOutput& discarded);

  // Emits `module`, noted as a group if the job offloads what it saves. What is run again is not.
  std::vector<StorageId> offloadable(OffloadModule name, const Module& module);
  const std::vector<OffloadGroup>& offload_groups() const { return offload_groups_; }

  std::int64_t bytes_of(StorageId id) const { return graph_.storages[id.index()].bytes.fixed; }

  void set_layer(std::int64_t layer) {
    layer_ = static_cast<std::int32_t>(layer);
    part_ = LayerPart::kAttention;
  }
  // Returns: the part before.
  LayerPart set_part(LayerPart part) { return std::exchange(part_, part); }
  OperatorGraph& graph() { return graph_; }

  // Every operator belongs to a chunk. end_chunk() runs its registered backwards in reverse.
  Chunk& begin_chunk();
  Chunk& chunk() { return graph_.chunks.back(); }
  void end_chunk();
  // Hands the graph over, checked.
  OperatorGraph finish();

 private:
  std::vector<StorageId> run_again(const Module& module, Backwards& backwards);
  void run_backwards(const Backwards& backwards);
  StorageId current(StorageId id) const;

  const Job& job_;
  OperatorGraph graph_;
  Backwards backward_;
  std::map<StorageId, StorageId> gradients_;
  std::map<StorageId, StorageId> replacements_;  // recomputed for discarded, in the backward
  std::int32_t layer_ = -1;
  LayerPart part_ = LayerPart::kAttention;
  std::vector<OffloadGroup> offload_groups_;  // in the order of the forward
  bool in_backward_ = false;
  bool keeps_nothing_ = false;  // in a module that will run again
};

// The operators of all chunks of a pipeline stage. Requires: a validated job, 0 <= stage < PP.
OperatorGraph build_operator_graph(const Job& job, std::int64_t stage);

}  // namespace tidemark
