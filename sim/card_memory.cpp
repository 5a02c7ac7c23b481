#include "sim/card_memory.h"

#include <algorithm>
#include <array>
#include <functional>
#include <limits>
#include <queue>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "models/gradient_buffers.h"
#include "models/parameters.h"
#include "sim/caching_allocator.h"
#include "sim/rescue_swap.h"
#include "sim/slot_operators.h"

namespace tidemark {
namespace {

// Thrown through the replay when a segment cannot be had; caught in replay_card.
struct SegmentRefused {
  std::int64_t requested = 0;
};

constexpr std::int64_t kBf16Bytes = 2;
constexpr std::int64_t kFp32Bytes = 4;

constexpr int kMainPool = 0;
constexpr int kSidePool = 1;    // of the shared expert's stream
constexpr int kReloadPool = 2;  // of what comes back from the host
constexpr int kExpertPool = 3;  // of dispatch and combine in combined slots

// Whether a stream other than the one it was allocated on uses a storage so that PyTorch is told
// (record_stream): collectives where the framework does so, offloads always.
bool records(Stream stream, bool collectives_record) {
  switch (stream) {
    case Stream::kCompute:
    case Stream::kSharedExpert:
    case Stream::kHostToDevice:
      return false;
    case Stream::kDeviceToHost:
      return true;
    default:
      return collectives_record;
  }
}

// In bf16; 0: the operator computes no weight gradient.
std::int64_t weight_gradient_bytes(const Operator& op) {
  if (const auto* product = std::get_if<GemmWork>(&op.work)) {
    if (product->pass != Pass::kBackwardWeight) return 0;
    return kBf16Bytes * product->shape.out_features * product->shape.in_features;
  }
  if (const auto* product = std::get_if<GroupedGemmWork>(&op.work)) {
    if (product->pass != Pass::kBackwardWeight) return 0;
    return kBf16Bytes * product->out_features * product->in_features;
  }
  return 0;
}

// How the streams of a stage touch a storage.
struct StreamUse {
  int pool = kMainPool;          // of the stream that was current when it was allocated
  std::vector<Stream> recorded;  // communicators that read or write it
};

std::vector<StreamUse> stream_uses(const OperatorGraph& graph, bool collectives_record) {
  std::vector<StreamUse> uses(graph.storages.size());
  std::vector<bool> written(graph.storages.size(), false);
  for (std::size_t i = 0; i < graph.size(); ++i) {
    const Operator& op = graph.at(i);
    for (const auto* list : {&op.reads, &op.writes}) {
      for (StorageId s : *list) {
        std::vector<Stream>& recorded = uses[s.index()].recorded;
        const bool known = std::find(recorded.begin(), recorded.end(), op.stream) != recorded.end();
        if (records(op.stream, collectives_record) && !known) recorded.push_back(op.stream);
      }
    }
    for (StorageId s : op.writes) {
      if (!written[s.index()] && op.stream == Stream::kSharedExpert) {
        uses[s.index()].pool = kSidePool;
      }
      if (op.stream == Stream::kHostToDevice) uses[s.index()].pool = kReloadPool;
      const bool leads = op.part == LayerPart::kDispatch || op.part == LayerPart::kCombine;
      if (!written[s.index()] && graph.combined && leads) uses[s.index()].pool = kExpertPool;
      written[s.index()] = true;
    }
  }
  return uses;
}

class Replay {
 public:
  // `records`: also what a snapshot shows.
  Replay(const Card& card, Bytes limit, bool records = false)
      : card_(card),
        microbatches_(card.job.batch.num_microbatches(card.job.layout)),
        operators_(card.graph),
        allocator_(limit, card.job.options.allocator, card.capacity),
        uses_(stream_uses(card.graph, card.collectives_record_streams)),
        live_(card.graph.storages.size() * static_cast<std::size_t>(microbatches_), kDead),
        left_over_(card.graph.storages.size(), kDead),
        moe_index_(moe_layer_indices(card.job.model)) {
    if (records) recorder_.emplace(allocator_);
  }

  void start_up() {
    const OptimizerOptions& optimizer = card_.job.options.optimizer;
    struct ModelChunk {
      std::vector<Weight> weights;
      std::vector<CachingAllocator::Handle> handles;
      std::vector<GradientBuffer> buffers;
    };
    std::vector<ModelChunk> chunks;
    for (std::int64_t c = 0; c < card_.job.layout.virtual_pipeline; ++c) {
      const std::int64_t virtual_stage = card_.job.layout.virtual_stage(card_.stage, c);
      ModelChunk& chunk = chunks.emplace_back();
      chunk.weights = chunk_weights(card_.job, virtual_stage);
      chunk.buffers = gradient_buffers(card_.job, virtual_stage, card_.optimizer_rank);
      for (const Weight& w : chunk.weights) {
        chunk.handles.push_back(allocate(kBf16Bytes * w.count(), {"weight"}));
      }
    }
    for (const ModelChunk& chunk : chunks) {
      for (const GradientBuffer& buffer : chunk.buffers) {
        // Kwai's weights stay where they are.
        if (card_.job.versions.fork == Fork::kKwai) {
          allocate(optimizer.main_grad_bytes * buffer.parameters, {"gradient buffer"});
          continue;
        }
        allocate(kBf16Bytes * buffer.parameters, {"weight buffer"});
        allocate(optimizer.main_grad_bytes * buffer.parameters, {"gradient buffer"});
        for (std::size_t i = chunk.weights.size(); i-- > 0;) {
          if (chunk.weights[i].expert == buffer.expert) release(chunk.handles[i]);
        }
      }
    }
    for (const ModelChunk& chunk : chunks) {
      for (const GradientBuffer& buffer : chunk.buffers) {
        for (std::int64_t piece : buffer.owned_pieces) {
          const CachingAllocator::Handle clone = allocate(kBf16Bytes * piece, {"clone of a shard"});
          allocate(optimizer.main_param_bytes * piece, {"main parameters"});
          release(clone);
        }
      }
    }
  }

  void keep(ResidentSince since) {
    for (const ResidentItem& item : card_.resident) {
      if (item.since == ResidentSince::kFirstGradient && since == ResidentSince::kFirstUse) {
        for (std::int64_t request : item.requests) awaited_.push_back({request, item.name});
      }
      if (item.since != since) continue;
      for (std::int64_t request : item.requests) allocate(request, {item.name});
    }
  }

  // Returns: the bytes of its blocks.
  Bytes copy_gradients() {
    const Bytes before = allocator_.allocated();
    if (!card_.job.options.optimizer.fp32_grad_copies) return {};
    for (std::int64_t c = 0; c < card_.job.layout.virtual_pipeline; ++c) {
      const std::int64_t virtual_stage = card_.job.layout.virtual_stage(card_.stage, c);
      for (const GradientBuffer& buffer :
           gradient_buffers(card_.job, virtual_stage, card_.optimizer_rank)) {
        for (std::int64_t piece : buffer.owned_pieces) {
          gradient_copies_.push_back(allocate(kFp32Bytes * piece, {"fp32 copy of a gradient"}));
        }
      }
    }
    return allocator_.allocated() - before;
  }

  // Stops after event `last` of the sequence, if there is such an event.
  void iterate(std::int64_t last = kWhole) {
    for (const CachingAllocator::Handle copy : std::exchange(gradient_copies_, {})) {
      allocator_.release(copy);
    }
    peak_in_pass_ = allocator_.allocated();
    for (StorageId s : card_.sequence.carried_over) {
      left_over_[s.index()] = std::exchange(slot(s.value, microbatches_ - 1), kDead);
    }
    alloc_retries_ = 0;
    swapped_ = Bytes();
    if (card_.rescues) rescue_.emplace(card_.graph, microbatches_);
    swap_step_ = -1;
    begin_clock();
    if (recorder_) recorder_->forget_trace();
    const LargeVector<MemoryEvent>& events = card_.sequence.events;
    if (last < 0) return;
    for (std::size_t i = 0; i < events.size(); ++i) {
      const MemoryEvent& e = events[i];
      if (e.action >= 0 && !takes(e)) continue;
      event_ = static_cast<std::int64_t>(i);
      if (card_.clock != nullptr) advance_clock(e);
      if (!awaited_.empty()) keep_gradients_before(e);
      if (rescue_) swap_in_before(e);
      if (e.allocates) {
        reuse_finished();
        allocate_storage(e.storage, e.microbatch);
      } else if (e.microbatch == kPreviousIteration) {
        release(e.storage, left_over_[static_cast<std::size_t>(e.storage)]);
      } else {
        if (rescue_) rescue_->freed(StorageId(e.storage), e.microbatch);
        release(e.storage, slot(e.storage, e.microbatch));
      }
      if (event_ == last) return;
    }
    event_ = -1;
    for (const Awaited& a : std::exchange(awaited_, {})) allocate(a.bytes, {a.name});
    // The optimizer step waits for the device.
    now_ns_ = std::numeric_limits<std::int64_t>::max();
    reuse_finished();
  }

  const CachingAllocator& allocator() const { return allocator_; }
  std::int64_t event() const { return event_; }
  Bytes peak_in_pass() const { return peak_in_pass_; }
  std::int64_t alloc_retries() const { return alloc_retries_; }  // of the last iteration
  Bytes swapped() const { return swapped_; }                     // in the last iteration
  AllocatorSnapshot snapshot() const { return recorder_->take(); }

 private:
  static constexpr CachingAllocator::Handle kDead = -1;
  static constexpr std::int64_t kWhole = std::numeric_limits<std::int64_t>::max();

  // What a block holds, for snapshots.
  struct Owner {
    std::string_view name;
    std::int32_t layer = -1;
    std::int32_t microbatch = -1;
  };

  // What is kept from the first gradient of a weight of that size on.
  struct Awaited {
    std::int64_t bytes = 0;
    std::string_view name;
  };

  // A freed block that a communicator has not finished with; the first done comes out first.
  struct Retired {
    std::int64_t done_ns = 0;
    std::int64_t event = 0;  // that freed it: among equals the first freed comes out first
    CachingAllocator::Handle handle = kDead;
    bool operator>(const Retired& other) const {
      return std::pair(done_ns, event) > std::pair(other.done_ns, other.event);
    }
  };

  CachingAllocator::Handle allocate(std::int64_t size, const Owner& owner, int pool = kMainPool) {
    if (size == 0) return kDead;
    const std::int64_t retries = allocator_.alloc_retries();
    CachingAllocator::Handle handle = allocator_.allocate(size, pool);
    while (handle == CachingAllocator::kOutOfMemory) {
      if (retired_.empty() && !swap_out(size)) throw SegmentRefused{size};
      // release_cached_blocks: the CPU waits for what other streams still do with freed blocks.
      while (!retired_.empty()) reuse_first();
      handle = allocator_.allocate(size, pool);
    }
    if (allocator_.alloc_retries() != retries) ++alloc_retries_;
    if (recorder_) {
      recorder_->allocated(
          handle, size,
          {std::string(owner.name), owner.layer, owner.microbatch, owner.microbatch < 0});
    }
    return handle;
  }

  void allocate_storage(std::int32_t storage, std::int32_t microbatch) {
    const Storage& s = card_.graph.storages[static_cast<std::size_t>(storage)];
    slot(storage, microbatch) = allocate(bytes(storage, microbatch), {s.name, s.layer, microbatch},
                                         uses_[static_cast<std::size_t>(storage)].pool);
    peak_in_pass_ = std::max(peak_in_pass_, allocator_.allocated());
  }

  // Returns: whether anything went.
  bool swap_out(std::int64_t requested) {
    if (!rescue_) return false;
    const auto size = [&](const RescueSwap::Tensor& t) {
      return slot(t.storage.value, t.microbatch) == kDead ? 0
                                                          : bytes(t.storage.value, t.microbatch);
    };
    const std::vector<RescueSwap::Tensor> out = rescue_->swap_out(requested, size);
    for (const RescueSwap::Tensor& t : out) {
      swapped_ += Bytes(size(t));
      release(t.storage.value, slot(t.storage.value, t.microbatch));
    }
    return !out.empty();
  }

  // What the operator of an event, or one before it, reads.
  void swap_in_before(const MemoryEvent& e) {
    const Slot* slot = std::get_if<Slot>(&card_.steps[static_cast<std::size_t>(e.step)]);
    if (slot == nullptr) return;
    if (e.step != swap_step_) {
      swap_step_ = e.step;
      swap_op_ = 0;
    }
    const std::vector<IssuedOperator>& ops = operators_.of(*slot);
    for (; swap_op_ <= e.op; ++swap_op_) {
      const IssuedOperator& op = ops[static_cast<std::size_t>(swap_op_)];
      const std::int32_t microbatch = works_on(*slot, op.beside).microbatch;
      for (StorageId s : rescue_->issue(op.index, microbatch)) {
        allocate_storage(s.value, microbatch);
      }
    }
  }

  void retire(CachingAllocator::Handle handle) {
    if (recorder_) recorder_->retired(handle);
    allocator_.retire(handle);
  }
  void reuse(CachingAllocator::Handle handle) {
    if (recorder_) recorder_->reused(handle);
    allocator_.reuse(handle);
  }
  void release(CachingAllocator::Handle handle) {
    retire(handle);
    reuse(handle);
  }

  // Storages of no bytes, and of a previous iteration that never was, hold nothing.
  void release(std::int32_t storage, CachingAllocator::Handle& handle) {
    if (handle == kDead) return;
    std::int64_t done = 0;
    if (card_.clock != nullptr) {
      for (Stream stream : uses_[static_cast<std::size_t>(storage)].recorded) {
        done = std::max(done, busy_until_ns_[static_cast<std::size_t>(stream)]);
      }
    }
    retire(handle);
    if (done > now_ns_) {
      retired_.push({done, event_, handle});
    } else {
      reuse(handle);
    }
    handle = kDead;
  }

  void reuse_finished() {
    while (!retired_.empty() && retired_.top().done_ns <= now_ns_) reuse_first();
  }
  void reuse_first() {
    reuse(retired_.top().handle);
    retired_.pop();
  }

  void begin_clock() {
    now_ns_ = 0;
    step_ = -1;
    busy_until_ns_.fill(0);
  }

  // Moves the CPU to the operator of an event; communicators have been given all up to it.
  void advance_clock(const MemoryEvent& e) {
    if (e.step != step_) {
      step_ = e.step;
      next_op_ = 0;
    }
    const auto& times = card_.clock->steps[static_cast<std::size_t>(e.step)];
    const Slot* slot = std::get_if<Slot>(&card_.steps[static_cast<std::size_t>(e.step)]);
    const std::vector<IssuedOperator>* ops = slot == nullptr ? nullptr : &operators_.of(*slot);
    for (; next_op_ <= static_cast<std::size_t>(e.op); ++next_op_) {
      now_ns_ = times[next_op_].issued_ns;
      if (ops != nullptr) {
        const Operator& op = card_.graph.at(static_cast<std::size_t>((*ops)[next_op_].index));
        busy_until_ns_[static_cast<std::size_t>(op.stream)] = times[next_op_].done_ns;
      }
    }
  }

  // A gradient is kept when its operator has all it writes, before it frees anything.
  void keep_gradients_before(const MemoryEvent& e) {
    const Slot* slot = std::get_if<Slot>(&card_.steps[static_cast<std::size_t>(e.step)]);
    if (slot == nullptr) return;
    if (e.step != gradient_step_) {
      gradient_step_ = e.step;
      gradient_op_ = 0;
    }
    const std::vector<IssuedOperator>& ops = operators_.of(*slot);
    for (const std::int32_t end = e.op + (e.allocates ? 0 : 1); gradient_op_ < end;
         ++gradient_op_) {
      const auto issued = static_cast<std::size_t>(gradient_op_);
      const std::int64_t bytes =
          weight_gradient_bytes(card_.graph.at(static_cast<std::size_t>(ops[issued].index)));
      const auto kept = std::ranges::find(awaited_, bytes, &Awaited::bytes);
      if (kept == awaited_.end()) continue;
      allocate(kept->bytes, {kept->name});
      awaited_.erase(kept);
    }
  }

  CachingAllocator::Handle& slot(std::int32_t storage, std::int64_t microbatch) {
    return live_[static_cast<std::size_t>(microbatch) * card_.graph.storages.size() +
                 static_cast<std::size_t>(storage)];
  }
  bool takes(const MemoryEvent& e) const {
    return card_.decisions != nullptr && card_.decisions->takes(e.microbatch, e.action);
  }
  std::int64_t bytes(std::int32_t storage, std::int32_t microbatch) const {
    const Storage& s = card_.graph.storages[static_cast<std::size_t>(storage)];
    if (s.bytes.per_row == 0) return s.bytes.fixed;
    const std::int64_t moe_layer = moe_index_[static_cast<std::size_t>(s.layer)];
    return s.bytes.at(card_.rows.at(microbatch, moe_layer)[card_.lane]);
  }

  const Card& card_;
  std::int64_t microbatches_;
  SlotOperators operators_;
  CachingAllocator allocator_;
  std::optional<SnapshotRecorder> recorder_;
  std::vector<StreamUse> uses_;                      // [storage]
  std::vector<CachingAllocator::Handle> live_;       // [microbatch][storage]
  std::vector<CachingAllocator::Handle> left_over_;  // [storage], of the previous iteration
  std::vector<std::int64_t> moe_index_;              // [layer]
  std::vector<CachingAllocator::Handle> gradient_copies_;
  std::vector<Awaited> awaited_;
  std::int32_t gradient_step_ = -1;  // how far gradients were looked for
  std::int32_t gradient_op_ = 0;
  std::optional<RescueSwap> rescue_;  // of this iteration
  std::int32_t swap_step_ = -1;       // how far it knows what is issued
  std::int32_t swap_op_ = 0;
  Bytes swapped_;
  Bytes peak_in_pass_;
  std::int64_t alloc_retries_ = 0;
  std::int64_t event_ = -1;

  // Where collectives record streams: the CPU's time, the step and operator it is at, until when
  // each communicator is busy with what it was given, and blocks that wait for one.
  std::int64_t now_ns_ = 0;
  std::int32_t step_ = -1;
  std::size_t next_op_ = 0;
  std::array<std::int64_t, kNumStreams> busy_until_ns_{};
  std::priority_queue<Retired, std::vector<Retired>, std::greater<>> retired_;
};

}  // namespace

CardReplay replay_card(const Card& card, Bytes limit) {
  Replay replay(card, limit);
  const CachingAllocator& allocator = replay.allocator();
  CardReplay out;
  std::int32_t iteration = 0;
  try {
    replay.start_up();
    iteration = 1;
    replay.keep(ResidentSince::kFirstUse);
    replay.iterate();
    out.memory.gradient_copies = replay.copy_gradients();
    replay.keep(ResidentSince::kOptimizerStep);
    out.memory.after_first_iteration = allocator.allocated();
    out.memory.peak_first_iteration = allocator.peak_allocated();
    out.memory.reserved_first_iteration = allocator.peak_reserved();
    iteration = 2;
    replay.iterate();
    out.memory.peak_in_pass = replay.peak_in_pass();
    out.memory.gradient_copies = replay.copy_gradients();
    out.memory.after_iteration = allocator.allocated();
    out.memory.peak = allocator.peak_allocated();
    out.memory.reserved = allocator.peak_reserved();
    out.memory.alloc_retries = replay.alloc_retries();
    out.swapped = replay.swapped();
  } catch (const SegmentRefused& refused) {
    out.out_of_memory = OutOfMemory{iteration, replay.event(), Bytes(refused.requested),
                                    allocator.allocated(), allocator.reserved()};
  }
  return out;
}

AllocatorSnapshot snapshot_card(const Card& card, std::int64_t event) {
  Replay replay(card, CachingAllocator::kNoLimit, true);
  replay.start_up();
  replay.keep(ResidentSince::kFirstUse);
  replay.iterate();
  replay.keep(ResidentSince::kOptimizerStep);
  replay.iterate(event);
  return replay.snapshot();
}

}  // namespace tidemark
