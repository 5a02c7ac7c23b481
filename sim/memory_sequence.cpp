#include "sim/memory_sequence.h"

#include <map>
#include <stdexcept>
#include <utility>

#include "sim/slot_operators.h"

namespace tidemark {
namespace {

constexpr std::int32_t kUnbound = -2;  // a Python name without a value

// What a stage's operators allocate and free, and reference counts of what outlives them.
class References {
 public:
  // `memory`: written over.
  References(const OperatorGraph& graph, const std::vector<StorageId>& carried_over,
             LargeVector<MemoryEvent> memory)
      : graph_(graph), operators_(graph), lives_(lifetimes(graph)) {
    sequence_.events = std::move(memory);
    sequence_.events.clear();
    plan_slots();
    for (StorageId s : carried_over) {
      retain(s, kPreviousIteration);
      const std::int32_t attribute = attribute_[s.index()];
      if (attribute >= 0) owners_[attribute] = {s, kPreviousIteration};
    }
    sequence_.carried_over = carried_over;
  }

  const Chunk& chunk(std::int32_t c) const { return graph_.chunks[static_cast<std::size_t>(c)]; }
  void at(std::int32_t step) { step_ = step, op_ = 0; }

  void allocate(StorageId s, std::int32_t microbatch) {
    emit(s.value, microbatch, true);
    retain(s, microbatch);
  }
  // Of bytes that nothing counts references to.
  void free(StorageId s, std::int32_t microbatch) { emit(s.value, microbatch, false); }
  // What autograd saved leaves the card; later it comes back as a part of a kept buffer, or as
  // `reloaded`, which has to be allocated.
  void move_to_host(StorageId s, std::int32_t microbatch) {
    drop_saved(s, microbatch);
    moved_[{s.value, microbatch}] = {};
  }
  void move_back_as(StorageId s, std::int32_t microbatch, StorageId reloaded) {
    moved_[{s.value, microbatch}] = reloaded;
  }
  // The last operator that reads it has been issued.
  void drop_saved(StorageId s, std::int32_t microbatch) {
    if (const auto moved = moved_.find({s.value, microbatch}); moved != moved_.end()) {
      const StorageId reloaded = moved->second;
      moved_.erase(moved);
      if (reloaded.valid()) release(reloaded, microbatch);
    } else if (references_.contains({s.value, microbatch})) {
      release(s, microbatch);
    } else {
      free(s, microbatch);
    }
  }

  void retain(StorageId s, std::int32_t microbatch) { ++references_[{s.value, microbatch}]; }
  // Returns: whether that was the last reference; the storage is then freed.
  bool release(StorageId s, std::int32_t microbatch) {
    const auto it = references_.find({s.value, microbatch});
    if (it == references_.end()) throw std::logic_error("released twice: " + name(s.value));
    if (--it->second > 0) return false;
    references_.erase(it);
    emit(s.value, microbatch, false);
    return true;
  }

  // An input refers to its gradient (`.grad`, through retain_grad).
  void retain_input(std::int32_t c, std::int32_t microbatch) {
    if (chunk(c).input.valid()) retain(chunk(c).input, microbatch);
  }
  void release_input(std::int32_t c, std::int32_t microbatch) {
    if (microbatch == kUnbound || !chunk(c).input.valid()) return;
    if (release(chunk(c).input, microbatch)) {
      const StorageId gradient = chunk(c).input_gradient;
      if (references_.contains({gradient.value, microbatch})) release(gradient, microbatch);
    }
  }
  // An output's autograd graph refers to the chunk's input.
  void retain_graph(std::int32_t c, std::int32_t microbatch) {
    if (++graph_references_[{c, microbatch}] == 1) retain_input(c, microbatch);
  }
  void release_graph(std::int32_t c, std::int32_t microbatch) {
    if (microbatch == kUnbound) return;
    if (--graph_references_[{c, microbatch}] == 0) release_input(c, microbatch);
  }
  void release_gradient(StorageId s, std::int32_t microbatch) {
    if (microbatch != kUnbound && s.valid()) release(s, microbatch);
  }

  void run(const Slot& slot) {
    const std::vector<IssuedOperator>& operators = operators_.of(slot);
    const auto ordered = freed_in_order_.find({slot.chunk, slot.beside.chunk});
    const bool in_order =
        slot.kind == SlotKind::kForwardBackward && ordered != freed_in_order_.end();
    for (std::size_t i = 0; i < operators.size(); ++i) {
      const ChunkTensor at = works_on(slot, operators[i].beside);
      const auto index = static_cast<std::size_t>(operators[i].index);
      op_ = static_cast<std::int32_t>(i);
      run(index, chunk(at.chunk), at.microbatch, in_order ? ordered->second[i] : freed_[index]);
    }
  }

  // Weight gradients that run by themselves still read these of what crosses a chunk's borders.
  void hold_for_weights(ChunkTensor t) {
    if (reads_for_weights(t.chunk, chunk(t.chunk).input)) retain_input(t.chunk, t.microbatch);
    const StorageId gradient = chunk(t.chunk).output_gradient;
    if (reads_for_weights(t.chunk, gradient)) retain(gradient, t.microbatch);
  }
  void release_for_weights(ChunkTensor t) {
    if (reads_for_weights(t.chunk, chunk(t.chunk).input)) release_input(t.chunk, t.microbatch);
    const StorageId gradient = chunk(t.chunk).output_gradient;
    if (reads_for_weights(t.chunk, gradient)) release(gradient, t.microbatch);
  }

  // Modules forget.
  void drop_attributes() {
    for (const auto& [attribute, owner] : std::exchange(owners_, {})) {
      release(owner.first, owner.second);
    }
  }

  // What is still referred to is what an iteration carries over: of its last microbatch.
  MemorySequence finish(std::int32_t microbatches) && {
    sequence_.carried_over.clear();
    for (const auto& [key, count] : references_) {
      if (key.second != microbatches - 1) {
        throw std::logic_error("the memory sequence leaks " + name(key.first));
      }
      sequence_.carried_over.emplace_back(key.first);
    }
    return std::move(sequence_);
  }

 private:
  using Key = std::pair<std::int32_t, std::int32_t>;  // storage, microbatch

  void plan_slots() {
    const std::size_t size = graph_.size();
    allocated_.resize(size);
    freed_.resize(size);
    attribute_.assign(graph_.storages.size(), -1);
    action_of_.assign(graph_.storages.size(), -1);
    departs_.resize(graph_.forward.size());
    for (const Departure& d : graph_.departures) {
      if (has_bytes(d.storage)) departs_[static_cast<std::size_t>(d.after)].push_back(d);
    }
    for (std::size_t op = 0; op < size; ++op) {
      const std::int32_t action = graph_.at(op).action;
      for (StorageId s : graph_.at(op).writes) {
        const bool first = lives_[s.index()].first == static_cast<std::int32_t>(op);
        if (first && action >= 0) action_of_[s.index()] = action;
        const bool returns = action >= 0 && action_of_[s.index()] < 0;
        if (has_bytes(s) && (first || returns)) allocated_[op].push_back(s.value);
      }
    }
    std::vector<bool> border(graph_.storages.size(), false);
    for (const Chunk& c : graph_.chunks) {
      for (StorageId s : {c.input, c.output, c.output_gradient, c.input_gradient}) {
        if (s.valid()) border[s.index()] = true;
      }
    }
    std::map<std::pair<std::int32_t, std::string>, std::int32_t> attributes;
    for (std::size_t i = 0; i < graph_.storages.size(); ++i) {
      const StorageId id(static_cast<std::int64_t>(i));
      if (!has_bytes(id)) continue;
      const Storage& s = graph_.storages[i];
      if (s.role == StorageRole::kModuleState) {
        // A recomputed forward writes the same attribute.
        attribute_[i] =
            attributes.try_emplace({s.layer, s.name}, static_cast<std::int32_t>(attributes.size()))
                .first->second;
      }
      if (!border[i] && lives_[i].last >= 0)
        freed_[static_cast<std::size_t>(lives_[i].last)].push_back(id.value);
    }
    for (const auto& [chunks, order] : graph_.slot_orders) {
      freed_in_order_[chunks] = freed_by(order);
    }
  }

  // [position in a slot's order] -> storages: weight gradients may have moved past other users.
  std::vector<std::vector<std::int32_t>> freed_by(const std::vector<std::int32_t>& order) const {
    // The pass that frees a storage (the other one works on another microbatch), and the last user.
    struct End {
      bool backward = false;
      std::size_t user = 0;
    };
    const auto is_backward = [&](std::int32_t op) { return op >= std::ssize(graph_.forward); };
    std::map<std::int32_t, End> ends;  // by storage
    for (const std::int32_t op : order) {
      for (const std::int32_t s : freed_[static_cast<std::size_t>(op)]) {
        ends[s].backward = is_backward(op);
      }
    }
    for (std::size_t i = 0; i < order.size(); ++i) {
      const Operator& op = graph_.at(static_cast<std::size_t>(order[i]));
      for (const auto* list : {&op.reads, &op.writes, &op.holds}) {
        for (const StorageId s : *list) {
          const auto it = ends.find(s.value);
          if (it == ends.end() || it->second.backward != is_backward(order[i])) continue;
          if (op.action < 0 || action_of_[s.index()] >= 0) it->second.user = i;
        }
      }
    }
    std::vector<std::vector<std::int32_t>> freed(order.size());
    for (const auto& [s, end] : ends) freed[end.user].push_back(s);
    return freed;
  }
  bool has_bytes(StorageId s) const { return graph_.storages[s.index()].bytes != Size{}; }

  void emit(std::int32_t storage, std::int32_t microbatch, bool allocates,
            std::int32_t action = -1) {
    sequence_.events.push_back({step_, op_, storage, microbatch, allocates, action});
  }
  const std::string& name(std::int32_t storage) const {
    return graph_.storages[static_cast<std::size_t>(storage)].name;
  }

  void run(std::size_t op, const Chunk& c, std::int32_t microbatch,
           const std::vector<std::int32_t>& freed) {
    const std::int32_t action = graph_.at(op).action;
    for (std::int32_t s : allocated_[op]) {
      emit(s, microbatch, true, action);
      if (action >= 0) continue;
      const StorageId id(s);
      if (id == c.input_gradient) retain(id, microbatch);  // .grad
      const std::int32_t attribute = attribute_[id.index()];
      if (attribute < 0) continue;
      retain(id, microbatch);  // its users
      retain(id, microbatch);  // the module
      const auto owner = owners_.find(attribute);
      if (owner != owners_.end()) release(owner->second.first, owner->second.second);
      owners_[attribute] = {id, microbatch};
    }
    for (std::int32_t s : freed) {
      const std::int32_t owner = action_of_[static_cast<std::size_t>(s)];
      if (owner >= 0) {
        emit(s, microbatch, false, owner);
      } else {
        drop_saved(StorageId(s), microbatch);
      }
    }
    if (op >= departs_.size()) return;
    for (const Departure& d : departs_[op]) emit(d.storage.value, microbatch, false, d.action);
  }

  bool reads_for_weights(std::int32_t c, StorageId s) const {
    if (!s.valid()) return false;
    const OperatorRange range = chunk(c).weight;
    return lives_[s.index()].last >=
               static_cast<std::int32_t>(graph_.forward.size()) + range.begin &&
           range.size() > 0;
  }

  const OperatorGraph& graph_;
  SlotOperators operators_;
  std::vector<Lifetime> lives_;
  std::vector<std::vector<std::int32_t>> allocated_;  // [operator] -> storages
  std::vector<std::vector<std::int32_t>> freed_;
  // The same by position in the slot, where its order is given: [chunks that run forward, backward]
  std::map<std::pair<std::int32_t, std::int32_t>, std::vector<std::vector<std::int32_t>>>
      freed_in_order_;
  std::vector<std::int32_t> attribute_;          // [storage]: of a module; -1: none
  std::vector<std::int32_t> action_of_;          // [storage]: that alone refers to it; -1: none
  std::vector<std::vector<Departure>> departs_;  // [operator of the forward]
  std::map<std::int32_t, std::pair<StorageId, std::int32_t>> owners_;  // by attribute
  MemorySequence sequence_;
  std::map<Key, int> references_;
  std::map<Key, StorageId> moved_;       // to the host; valid: and back as that storage
  std::map<Key, int> graph_references_;  // of a chunk's microbatch
  std::int32_t step_ = 0;
  std::int32_t op_ = 0;
};

// Each chunk's `decoder.input_tensor`, which lives until its next forward.
class DecoderInputs {
 public:
  DecoderInputs(References& references, std::size_t chunks,
                const std::vector<StorageId>& carried_over)
      : references_(references), microbatch_(chunks, kUnbound) {
    for (StorageId s : carried_over) {
      for (std::size_t c = 0; c < chunks; ++c) {
        if (references.chunk(static_cast<std::int32_t>(c)).input == s) {
          microbatch_[c] = kPreviousIteration;
        }
      }
    }
  }
  void set(std::int32_t c, std::int32_t microbatch) {
    references_.retain_input(c, microbatch);
    references_.release_input(c,
                              std::exchange(microbatch_[static_cast<std::size_t>(c)], microbatch));
  }

 private:
  References& references_;
  std::vector<std::int32_t> microbatch_;  // [chunk]
};

// The names of forward_backward_pipelining_without_interleaving; without pipeline stages those of
// forward_backward_no_pipelining come and go at the same places.
class PlainWalk {
 public:
  PlainWalk(const OperatorGraph& graph, std::int32_t microbatches,
            const std::vector<StorageId>& carried_over, LargeVector<MemoryEvent> memory)
      : references_(graph, carried_over, std::move(memory)),
        microbatches_(microbatches),
        decoder_input_(references_, 1, carried_over),
        border_(graph.chunks[0]) {}

  MemorySequence build(const std::vector<Step>& steps) && {
    for (std::size_t i = 0; i < steps.size(); ++i) {
      references_.at(static_cast<std::int32_t>(i));
      if (const Slot* slot = std::get_if<Slot>(&steps[i])) {
        slot->kind == SlotKind::kForward ? forward(slot->microbatch) : backward(slot->microbatch);
      } else {
        transfer(std::get<Transfer>(steps[i]));
      }
    }
    // forward_backward_func returns: its locals die.
    references_.release_input(0, input_tensor_);
    references_.release_graph(0, output_tensor_);
    references_.release_gradient(border_.output_gradient, output_tensor_grad_);
    references_.release_gradient(border_.input_gradient, input_tensor_grad_);
    return std::move(references_).finish(microbatches_);
  }

 private:
  void forward(std::int32_t microbatch) {
    decoder_input_.set(0, microbatch);
    references_.run({SlotKind::kForward, microbatch});
    references_.retain_graph(0, microbatch);  // output_tensor = forward_step(...)
    references_.release_graph(0, std::exchange(output_tensor_, microbatch));
    // input_tensors.append, output_tensors.append
    references_.retain_input(0, microbatch);
    references_.retain_graph(0, microbatch);
  }

  // input_tensors.pop(0), output_tensors.pop(0): both lists' entries move to the names; what these
  // named before is dropped.
  void pop(std::int32_t microbatch) {
    if (popped_ == microbatch) return;
    popped_ = microbatch;
    references_.release_input(
        0, std::exchange(input_tensor_, border_.input.valid() ? microbatch : kUnbound));
    references_.release_graph(0, std::exchange(output_tensor_, microbatch));
  }

  void backward(std::int32_t microbatch) {
    pop(microbatch);
    references_.run({SlotKind::kBackward, microbatch});
    if (border_.input_gradient.valid()) {
      references_.retain(border_.input_gradient, microbatch);
      references_.release_gradient(border_.input_gradient,
                                   std::exchange(input_tensor_grad_, microbatch));
    }
  }

  void transfer(const Transfer& t) {
    // In the cool-down the names are popped before recv_backward.
    const std::int32_t gradient = t.receive_gradient.microbatch;
    const std::int32_t activation = t.receive_activation.microbatch;
    if (t.receive_gradient.valid() && !t.send_activation.valid()) pop(gradient);
    if (t.receive_gradient.valid()) references_.allocate(border_.output_gradient, gradient);
    if (t.receive_activation.valid()) references_.allocate(border_.input, activation);
    // deallocate_output_tensor
    if (t.send_activation.valid()) references_.free(border_.output, t.send_activation.microbatch);
    if (t.receive_gradient.valid()) {
      references_.release_gradient(border_.output_gradient,
                                   std::exchange(output_tensor_grad_, gradient));
    }
    if (t.receive_activation.valid()) {
      references_.release_input(0, std::exchange(input_tensor_, activation));
    }
  }

  References references_;
  std::int32_t microbatches_;
  DecoderInputs decoder_input_;
  const Chunk& border_;
  std::int32_t popped_ = kUnbound;
  std::int32_t input_tensor_ = kUnbound;
  std::int32_t output_tensor_ = kUnbound;
  std::int32_t output_tensor_grad_ = kUnbound;
  std::int32_t input_tensor_grad_ = kUnbound;
};

// The names of forward_backward_pipelining_with_interleaving: lists of each chunk's inputs, outputs
// and output gradients until its backward, and the locals of the main function. Receive buffers of
// overlapped transfers are emptied as soon as the lists have what they held.
class InterleavedWalk {
 public:
  InterleavedWalk(const OperatorGraph& graph, const Schedule& schedule, std::int32_t stage,
                  const std::vector<StorageId>& carried_over, LargeVector<MemoryEvent> memory)
      : references_(graph, carried_over, std::move(memory)),
        decoder_input_(references_, graph.chunks.size(), carried_over),
        overlaps_(schedule.overlaps_transfers),
        microbatches_(schedule.microbatches),
        total_(schedule.microbatches * schedule.chunks),
        warmup_(schedule.warmup[static_cast<std::size_t>(stage)]) {}

  MemorySequence build(const std::vector<Step>& steps) && {
    for (std::size_t i = 0; i < steps.size(); ++i) {
      references_.at(static_cast<std::int32_t>(i));
      if (const Slot* slot = std::get_if<Slot>(&steps[i])) {
        run(*slot);
        in_step_ = true;
      } else if (const Transfer* t = std::get_if<Transfer>(&steps[i])) {
        transfer(*t);
      }
    }
    deallocate_output();
    name_output({});
    name_input_gradient({});
    name_received_activation({});
    name_received_gradient({});
    return std::move(references_).finish(microbatches_);
  }

 private:
  // Those without a backward in the same step of the loop.
  bool in_warmup() const { return forwards_ <= warmup_; }
  bool in_cooldown() const { return backwards_ > total_ - warmup_; }

  void run(const Slot& slot) {
    const ChunkTensor f = slot.forward();
    const ChunkTensor b = slot.backward();
    if (slot.kind == SlotKind::kBackwardWeight) {
      references_.run(slot);
      references_.release_for_weights({slot.chunk, slot.microbatch});
      return;
    }
    if (f.valid()) begin_forward(f);
    if (b.valid()) begin_backward();
    references_.run(slot);
    if (f.valid()) end_forward(f);
    if (b.valid()) end_backward(b, slot.kind == SlotKind::kForwardBackward);
  }

  void begin_forward(ChunkTensor t) {
    // pp_pre_forward
    if (overlaps_) deallocate_output();
    decoder_input_.set(t.chunk, t.microbatch);
    ++forwards_;
  }
  void end_forward(ChunkTensor t) {
    references_.retain_graph(t.chunk, t.microbatch);  // output_tensors[chunk].append
    references_.retain_graph(t.chunk, t.microbatch);  // the helper's local, then the loop's
    forward_output_ = t;
    if (in_warmup()) name_output(t);
  }

  void begin_backward() {
    ++backwards_;
    if (in_cooldown()) deallocate_output();  // the steady phase is over
  }
  void end_backward(ChunkTensor t, bool owes_weights) {
    const Chunk& c = references_.chunk(t.chunk);
    if (owes_weights) references_.hold_for_weights(t);
    if (c.input_gradient.valid()) references_.retain(c.input_gradient, t.microbatch);
    // backward_step_helper returns: what it popped from the lists dies.
    references_.release_input(t.chunk, t.microbatch);
    references_.release_graph(t.chunk, t.microbatch);
    if (c.output_gradient.valid()) references_.release(c.output_gradient, t.microbatch);
    if (!in_cooldown()) name_output(forward_output_);
    name_input_gradient(t);
  }

  void transfer(const Transfer& t) {
    if (const ChunkTensor r = t.receive_activation; r.valid()) {
      references_.allocate(references_.chunk(r.chunk).input, r.microbatch);
    }
    if (const ChunkTensor r = t.receive_gradient; r.valid()) {
      references_.allocate(references_.chunk(r.chunk).output_gradient, r.microbatch);
    }
    if (t.send_activation.valid()) sent_ = t.send_activation;
    if (!t.blocking) return;
    // The first receives before the warm-up and the cool-down go straight to the lists.
    const bool of_step = std::exchange(in_step_, false);
    const bool after_backward = backwards_ > 0;
    if (of_step && !(after_backward && in_cooldown())) {
      name_received_activation(t.receive_activation);
    }
    const bool turns = !after_backward && !overlaps_ && forwards_ == warmup_ && warmup_ < total_;
    if (of_step && (after_backward || turns)) name_received_gradient(t.receive_gradient);
    deallocate_output();
  }

  // deallocate_output_tensor
  void deallocate_output() {
    if (!sent_.valid()) return;
    references_.free(references_.chunk(sent_.chunk).output, sent_.microbatch);
    sent_ = {};
  }
  void name_output(ChunkTensor t) {
    std::swap(t, output_tensor_);
    if (t.valid()) references_.release_graph(t.chunk, t.microbatch);
  }
  void name_input_gradient(ChunkTensor t) {
    std::swap(t, input_tensor_grad_);
    if (!t.valid()) return;
    references_.release_gradient(references_.chunk(t.chunk).input_gradient, t.microbatch);
  }
  void name_received_activation(ChunkTensor t) {
    if (t.valid()) references_.retain_input(t.chunk, t.microbatch);
    std::swap(t, input_tensor_);
    if (t.valid()) references_.release_input(t.chunk, t.microbatch);
  }
  void name_received_gradient(ChunkTensor t) {
    if (t.valid()) references_.retain(references_.chunk(t.chunk).output_gradient, t.microbatch);
    std::swap(t, output_tensor_grad_);
    if (!t.valid()) return;
    references_.release(references_.chunk(t.chunk).output_gradient, t.microbatch);
  }

  References references_;
  DecoderInputs decoder_input_;
  bool overlaps_;
  std::int32_t microbatches_;
  std::int32_t total_;  // forwards
  std::int32_t warmup_;
  std::int32_t forwards_ = 0;
  std::int32_t backwards_ = 0;
  bool in_step_ = false;
  ChunkTensor forward_output_;
  ChunkTensor sent_;  // its bytes are still there
  ChunkTensor output_tensor_;
  ChunkTensor input_tensor_grad_;
  ChunkTensor input_tensor_;
  ChunkTensor output_tensor_grad_;
};

// Copies to and from the host, one chunk's microbatch after the other.
class Offloading {
 public:
  Offloading(References& references, const std::vector<ChunkOffload>& chunks)
      : references_(references), chunks_(chunks) {}

  void begin_copy(ChunkTensor t) {
    const ChunkOffload* chunk = offloaded(t);
    if (chunk == nullptr) return;
    if (chunk->border.valid()) references_.allocate(chunk->remainder, t.microbatch);
    copied_ = t;
  }
  void end_copy() {
    const ChunkTensor t = std::exchange(copied_, {});
    if (!t.valid()) return;
    const ChunkOffload& chunk = *offloaded(t);
    for (StorageId s : chunk.whole) references_.move_to_host(s, t.microbatch);
    if (chunk.border.valid()) references_.move_to_host(chunk.border, t.microbatch);
  }
  void reload(ChunkTensor t) {
    const ChunkOffload* chunk = offloaded(t);
    if (chunk == nullptr || !chunk->border.valid()) return;
    references_.allocate(chunk->reloaded_border, t.microbatch);
    references_.release(chunk->remainder, t.microbatch);
    references_.move_back_as(chunk->border, t.microbatch, chunk->reloaded_border);
  }

 private:
  const ChunkOffload* offloaded(ChunkTensor t) const {
    if (chunks_.empty()) return nullptr;
    const ChunkOffload& chunk = chunks_[static_cast<std::size_t>(t.chunk)];
    return chunk.bytes > 0 ? &chunk : nullptr;
  }

  References& references_;
  const std::vector<ChunkOffload>& chunks_;
  ChunkTensor copied_;
};

// Megatron-Kwai's forward_backward_pipelining_with_interleaving: chunks' inputs and outputs are in
// no list. A forward's copy to the host begins before the next forward, or in the steady phase
// before the backward of the same step, and ends when the next one begins. Its reload ends before
// its backward.
class StandInWalk {
 public:
  StandInWalk(const OperatorGraph& graph, const Schedule& schedule, std::int32_t stage,
              const std::vector<ChunkOffload>& offload, LargeVector<MemoryEvent> memory)
      : references_(graph, {}, std::move(memory)),
        offloading_(references_, offload),
        microbatches_(schedule.microbatches),
        warmup_(schedule.warmup[static_cast<std::size_t>(stage)]) {}

  MemorySequence build(const std::vector<Step>& steps) && {
    for (std::size_t i = 0; i < steps.size(); ++i) {
      references_.at(static_cast<std::int32_t>(i));
      if (const Slot* slot = std::get_if<Slot>(&steps[i])) {
        const ChunkTensor t{slot->chunk, slot->microbatch};
        slot->kind == SlotKind::kForward ? forward(t) : backward(t);
      } else if (const Transfer* t = std::get_if<Transfer>(&steps[i])) {
        transfer(*t);
      }
    }
    for (Name* local :
         {&output_tensor_, &input_tensor_, &output_tensor_grad_, &input_tensor_grad_}) {
      assign(*local, {}, 0);
    }
    return std::move(references_).finish(microbatches_);
  }

 private:
  struct Name {
    StorageId storage;
    std::int32_t microbatch = 0;
  };

  void forward(ChunkTensor t) {
    if (forwards_ > 0 && forwards_ <= warmup_) offload_forward();
    ++forwards_;
    const Chunk& c = references_.chunk(t.chunk);
    references_.retain_input(t.chunk, t.microbatch);  // autograd saves it
    references_.run({SlotKind::kForward, t.microbatch, t.chunk});
    if (c.input.valid()) references_.release(c.input, t.microbatch);  // popped when received
    if (c.output.valid()) references_.retain(c.output, t.microbatch);
    assign(output_tensor_, c.output, t.microbatch);
    forward_ = t;
  }

  void backward(ChunkTensor t) {
    if (forwards_ == warmup_) offload_forward();  // nothing but warm-up
    offloading_.reload(t);
    offload_forward();
    const Chunk& c = references_.chunk(t.chunk);
    references_.run({SlotKind::kBackward, t.microbatch, t.chunk});
    if (c.input.valid()) references_.drop_saved(c.input, t.microbatch);
    if (c.output_gradient.valid()) references_.release(c.output_gradient, t.microbatch);
    assign(input_tensor_grad_, c.input_gradient, t.microbatch);
  }

  void offload_forward() {
    offloading_.end_copy();
    const ChunkTensor t = std::exchange(forward_, {});
    if (t.valid()) offloading_.begin_copy(t);
  }

  void transfer(const Transfer& t) {
    if (const ChunkTensor r = t.receive_activation; r.valid()) {
      references_.allocate(references_.chunk(r.chunk).input, r.microbatch);
    }
    if (const ChunkTensor r = t.receive_gradient; r.valid()) {
      references_.allocate(references_.chunk(r.chunk).output_gradient, r.microbatch);
    }
    if (forwards_ == 0) return;  // no local names the first one
    if (t.receive_activation.valid() || t.send_activation.valid()) {
      const ChunkTensor r = t.receive_activation;
      name_received(input_tensor_, r, references_.chunk(r.chunk).input);
    }
    if (t.receive_gradient.valid() || t.send_gradient.valid()) {
      const ChunkTensor r = t.receive_gradient;
      name_received(output_tensor_grad_, r, references_.chunk(r.chunk).output_gradient);
    }
  }

  // Beside the list that it is popped from.
  void name_received(Name& local, ChunkTensor t, StorageId s) {
    if (t.valid()) references_.retain(s, t.microbatch);
    assign(local, t.valid() ? s : StorageId{}, t.microbatch);
  }
  // Takes over a reference; what the local named before is dropped.
  void assign(Name& local, StorageId s, std::int32_t microbatch) {
    const Name before = std::exchange(local, {s, microbatch});
    if (before.storage.valid()) references_.release(before.storage, before.microbatch);
  }

  References references_;
  Offloading offloading_;
  std::int32_t microbatches_;
  std::int32_t warmup_;
  std::int32_t forwards_ = 0;
  ChunkTensor forward_;  // the last one, until its copy to the host begins
  Name output_tensor_;
  Name input_tensor_;
  Name output_tensor_grad_;
  Name input_tensor_grad_;
};

// Schedules whose weight gradients run as slots of their own.
class SplitWalk {
 public:
  SplitWalk(const OperatorGraph& graph, const Schedule& schedule, std::int32_t stage,
            LargeVector<MemoryEvent> memory)
      : references_(graph, {}, std::move(memory)), schedule_(schedule), stage_(stage) {}

  MemorySequence build(const std::vector<Step>& steps) && {
    for (std::size_t i = 0; i < steps.size(); ++i) {
      references_.at(static_cast<std::int32_t>(i));
      if (const Slot* slot = std::get_if<Slot>(&steps[i])) {
        run(*slot);
      } else if (const Transfer* t = std::get_if<Transfer>(&steps[i])) {
        transfer(*t);
      }
    }
    references_.drop_attributes();
    return std::move(references_).finish(schedule_.microbatches);
  }

 private:
  void run(const Slot& slot) {
    references_.run(slot);
    if (slot.kind == SlotKind::kBackwardWeight) {
      references_.release_for_weights({slot.chunk, slot.microbatch});
      return;
    }
    if (const ChunkTensor f = slot.forward(); f.valid()) end_forward(f);
    if (const ChunkTensor b = slot.backward(); b.valid()) {
      end_backward(b, slot.kind != SlotKind::kBackward);
    }
  }

  // The chunk that takes over on the same stage, if it does.
  const Chunk* local(ChunkTensor t, bool next) const {
    const bool at_end = next ? !references_.chunk(t.chunk).output.valid()
                             : !references_.chunk(t.chunk).input.valid();
    if (at_end) return nullptr;
    const ChunkPlace there =
        next ? schedule_.next(stage_, t.chunk) : schedule_.previous(stage_, t.chunk);
    if (there.stage != stage_) return nullptr;
    return &references_.chunk(static_cast<std::int32_t>(there.chunk));
  }

  void end_forward(ChunkTensor t) {
    const Chunk* to = local(t, true);
    if (to == nullptr) return;
    references_.free(references_.chunk(t.chunk).output, t.microbatch);
    references_.allocate(to->input, t.microbatch);  // the same bytes
  }

  void end_backward(ChunkTensor t, bool owes_weights) {
    const Chunk& c = references_.chunk(t.chunk);
    if (owes_weights) references_.hold_for_weights(t);
    if (c.input_gradient.valid()) references_.retain(c.input_gradient, t.microbatch);  // to send
    references_.release_input(t.chunk, t.microbatch);
    if (c.output_gradient.valid()) references_.release(c.output_gradient, t.microbatch);
    if (const Chunk* to = local(t, false)) {
      references_.release(c.input_gradient, t.microbatch);
      references_.allocate(to->output_gradient, t.microbatch);
    }
  }

  void transfer(const Transfer& t) {
    if (const ChunkTensor r = t.receive_activation; r.valid()) {
      references_.allocate(references_.chunk(r.chunk).input, r.microbatch);
    }
    if (const ChunkTensor r = t.receive_gradient; r.valid()) {
      references_.allocate(references_.chunk(r.chunk).output_gradient, r.microbatch);
    }
    if (const ChunkTensor s = t.send_activation; s.valid()) {
      references_.free(references_.chunk(s.chunk).output, s.microbatch);
    }
    if (const ChunkTensor s = t.send_gradient; s.valid()) {
      references_.release(references_.chunk(s.chunk).input_gradient, s.microbatch);
    }
  }

  References references_;
  const Schedule& schedule_;
  std::int32_t stage_;
};

}  // namespace

MemorySequence build_memory_sequence(const OperatorGraph& graph, const Schedule& schedule,
                                     std::int32_t stage, const std::vector<ChunkOffload>& offload) {
  const std::vector<Step>& steps = schedule.stages[static_cast<std::size_t>(stage)];
  LargeVector<MemoryEvent> memory;
  memory.reserve(2 * graph.storages.size() * static_cast<std::size_t>(schedule.microbatches));
  if (schedule.lists_stand_ins) {
    return StandInWalk(graph, schedule, stage, offload, std::move(memory)).build(steps);
  }
  if (schedule.buffers_sends) {
    return SplitWalk(graph, schedule, stage, std::move(memory)).build(steps);
  }
  const auto walk = [&](const std::vector<StorageId>& carried_over,
                        LargeVector<MemoryEvent> events) {
    return schedule.chunks == 1
               ? PlainWalk(graph, schedule.microbatches, carried_over, std::move(events))
                     .build(steps)
               : InterleavedWalk(graph, schedule, stage, carried_over, std::move(events))
                     .build(steps);
  };
  // What the first iteration leaves is what every later one begins with.
  MemorySequence first = walk({}, std::move(memory));
  const std::vector<StorageId> left = first.carried_over;
  MemorySequence steady = walk(left, std::move(first.events));
  if (steady.carried_over != left) {
    throw std::logic_error("the memory sequence leaks a storage of its stage");
  }
  return steady;
}

}  // namespace tidemark
