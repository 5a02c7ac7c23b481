#include "sim/memory_sequence.h"

#include <map>
#include <stdexcept>
#include <utility>

namespace tidemark {
namespace {

// What is allocated and freed at each operator of a slot without looking at other slots.
struct SlotEvents {
  std::vector<std::vector<std::int32_t>> allocated;  // [op] -> storages
  std::vector<std::vector<std::int32_t>> freed;
};

class SequenceBuilder {
 public:
  SequenceBuilder(const OperatorGraph& graph, std::int32_t stage, std::int32_t microbatches)
      : graph_(graph), stage_(stage), microbatches_(microbatches), lives_(lifetimes(graph)) {
    plan_slots();
    if (graph.input.valid()) {
      // The last microbatch's input is still named by decoder.input_tensor.
      retain(graph.input, kPreviousIteration);
      decoder_input_ = kPreviousIteration;
      retain(graph.input_gradient, kPreviousIteration);
      sequence_.carried_over = {graph.input, graph.input_gradient};
    }
    for (StorageId s : module_state_) {
      retain(s, kPreviousIteration);
      sequence_.carried_over.push_back(s);
    }
  }

  MemorySequence build(const std::vector<Step>& steps) {
    for (const Step& step : steps) {
      op_ = 0;
      if (const Slot* slot = std::get_if<Slot>(&step)) {
        slot->kind == SlotKind::kForward ? forward(slot->microbatch) : backward(slot->microbatch);
      } else {
        exchange(std::get<Exchange>(step));
      }
      ++step_;
    }
    --step_;
    return_from_schedule();
    check_leftovers();
    return std::move(sequence_);
  }

 private:
  using Key = std::pair<std::int32_t, std::int32_t>;  // storage, microbatch
  static constexpr std::int32_t kUnbound = -2;        // a Python name without a value

  void plan_slots() {
    const std::size_t size = graph_.size();
    slots_.allocated.resize(size);
    slots_.freed.resize(size);
    for (std::size_t op = 0; op < size; ++op) {
      for (StorageId s : graph_.at(op).writes) {
        const bool first = lives_[s.index()].first == static_cast<std::int32_t>(op);
        if (first && has_bytes(s)) slots_.allocated[op].push_back(s.value);
      }
    }
    for (std::size_t i = 0; i < graph_.storages.size(); ++i) {
      const StorageId id(static_cast<std::int64_t>(i));
      if (!has_bytes(id)) continue;
      if (graph_.storages[i].role == StorageRole::kModuleState) module_state_.push_back(id);
      const bool border = id == graph_.input || id == graph_.output ||
                          id == graph_.output_gradient || id == graph_.input_gradient;
      if (!border) slots_.freed[static_cast<std::size_t>(lives_[i].last)].push_back(id.value);
    }
  }
  bool has_bytes(StorageId s) const { return graph_.storages[s.index()].bytes != Size{}; }

  void emit(std::int32_t storage, std::int32_t microbatch, bool allocates) {
    sequence_.events.push_back({step_, op_, storage, microbatch, allocates});
  }
  void allocate(StorageId s, std::int32_t microbatch) {
    emit(s.value, microbatch, true);
    retain(s, microbatch);
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
  const std::string& name(std::int32_t storage) const {
    return graph_.storages[static_cast<std::size_t>(storage)].name;
  }

  // An input refers to its gradient (`.grad`, through retain_grad).
  void release_input(std::int32_t microbatch) {
    if (microbatch == kUnbound || !graph_.input.valid()) return;
    if (release(graph_.input, microbatch)) {
      if (references_.contains({graph_.input_gradient.value, microbatch})) {
        release(graph_.input_gradient, microbatch);
      }
    }
  }
  void retain_graph(std::int32_t microbatch) {
    if (++graph_references_[microbatch] == 1 && graph_.input.valid()) {
      retain(graph_.input, microbatch);
    }
  }
  void release_graph(std::int32_t microbatch) {
    if (microbatch == kUnbound) return;
    if (--graph_references_[microbatch] == 0) release_input(microbatch);
  }
  void release_gradient(StorageId s, std::int32_t microbatch) {
    if (microbatch != kUnbound && s.valid()) release(s, microbatch);
  }

  void run_ops(std::size_t begin, std::size_t end, std::int32_t microbatch) {
    for (std::size_t i = begin; i < end; ++i) {
      op_ = static_cast<std::int32_t>(i - begin);
      for (std::int32_t s : slots_.allocated[i]) {
        emit(s, microbatch, true);
        const StorageId id(s);
        if (id == graph_.input_gradient) retain(id, microbatch);  // .grad
        if (graph_.storages[id.index()].role == StorageRole::kModuleState) {
          retain(id, microbatch);  // autograd
          retain(id, microbatch);  // the module
          release(id, module_owner_);
        }
      }
      for (std::int32_t s : slots_.freed[i]) {
        const StorageId id(s);
        if (graph_.storages[id.index()].role == StorageRole::kModuleState) {
          release(id, microbatch);
        } else {
          emit(s, microbatch, false);
        }
      }
    }
  }

  void forward(std::int32_t microbatch) {
    if (graph_.input.valid()) {
      retain(graph_.input, microbatch);  // set_input_tensor
      release_input(decoder_input_);
      decoder_input_ = microbatch;
    }
    run_ops(0, graph_.forward.size(), microbatch);
    module_owner_ = microbatch;
    retain_graph(microbatch);  // output_tensor = forward_step(...)
    release_graph(std::exchange(output_tensor_, microbatch));
    // input_tensors.append, output_tensors.append
    if (graph_.input.valid()) retain(graph_.input, microbatch);
    retain_graph(microbatch);
  }

  // input_tensors.pop(0), output_tensors.pop(0): both lists' entries move to the names; what these
  // named before is dropped.
  void pop(std::int32_t microbatch) {
    if (popped_ == microbatch) return;
    popped_ = microbatch;
    release_input(std::exchange(input_tensor_, graph_.input.valid() ? microbatch : kUnbound));
    release_graph(std::exchange(output_tensor_, microbatch));
  }

  void backward(std::int32_t microbatch) {
    pop(microbatch);
    run_ops(graph_.forward.size(), graph_.size(), microbatch);
    if (graph_.input_gradient.valid()) {
      retain(graph_.input_gradient, microbatch);
      release_gradient(graph_.input_gradient, std::exchange(input_tensor_grad_, microbatch));
    }
  }

  void exchange(const Exchange& e) {
    const bool with_next = e.peer > stage_;
    // In the cool-down the names are popped before recv_backward.
    if (with_next && e.send_microbatch < 0) pop(e.receive_microbatch);
    if (e.receive_microbatch >= 0) {
      if (with_next) {
        allocate(graph_.output_gradient, e.receive_microbatch);
      } else {
        allocate(graph_.input, e.receive_microbatch);
      }
    }
    if (with_next) {
      // deallocate_output_tensor
      if (e.send_microbatch >= 0) emit(graph_.output.value, e.send_microbatch, false);
      if (e.receive_microbatch >= 0) {
        release_gradient(graph_.output_gradient,
                         std::exchange(output_tensor_grad_, e.receive_microbatch));
      }
    } else if (e.receive_microbatch >= 0) {
      release_input(std::exchange(input_tensor_, e.receive_microbatch));
    }
  }
  // forward_backward_func returns: its locals die.
  void return_from_schedule() {
    release_input(std::exchange(input_tensor_, kUnbound));
    release_graph(std::exchange(output_tensor_, kUnbound));
    release_gradient(graph_.output_gradient, std::exchange(output_tensor_grad_, kUnbound));
    release_gradient(graph_.input_gradient, std::exchange(input_tensor_grad_, kUnbound));
  }

  // What is still referred to is what an iteration carries over: nothing else may leak.
  void check_leftovers() const {
    if (references_.size() != sequence_.carried_over.size()) {
      throw std::logic_error("the memory sequence leaks a storage of its stage");
    }
    for (const auto& [key, count] : references_) {
      if (key.second != microbatches_ - 1) {
        throw std::logic_error("the memory sequence leaks " + name(key.first));
      }
    }
  }

  const OperatorGraph& graph_;
  std::int32_t stage_;
  std::int32_t microbatches_;
  std::vector<Lifetime> lives_;
  SlotEvents slots_;
  std::vector<StorageId> module_state_;
  MemorySequence sequence_;
  std::map<Key, int> references_;
  std::map<std::int32_t, int> graph_references_;
  std::int32_t popped_ = kUnbound;
  std::int32_t decoder_input_ = kUnbound;
  std::int32_t module_owner_ = kPreviousIteration;
  std::int32_t input_tensor_ = kUnbound;
  std::int32_t output_tensor_ = kUnbound;
  std::int32_t output_tensor_grad_ = kUnbound;
  std::int32_t input_tensor_grad_ = kUnbound;
  std::int32_t step_ = 0;
  std::int32_t op_ = 0;
};

}  // namespace

MemorySequence build_memory_sequence(const OperatorGraph& graph, const Schedule& schedule,
                                     std::int32_t stage) {
  SequenceBuilder builder(graph, stage, schedule.microbatches);
  return builder.build(schedule.stages[static_cast<std::size_t>(stage)]);
}

}  // namespace tidemark
