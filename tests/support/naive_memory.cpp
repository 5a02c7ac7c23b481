#include "tests/support/naive_memory.h"

#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <stdexcept>
#include <utility>

namespace tidemark {
namespace {

// Rows of a storage's layer on a card.
std::int64_t rows_of(const Job& job, const Storage& storage, const LaneRows& rows,
                     std::int64_t microbatch, std::int64_t lane) {
  if (storage.bytes.per_row == 0) return 0;
  std::int64_t moe_layer = 0;
  for (std::int64_t layer = 0; layer < storage.layer; ++layer) {
    if (job.model.is_moe(layer)) ++moe_layer;
  }
  return rows.at(microbatch, moe_layer)[lane];
}

// The allocator hands out multiples of 512 bytes.
std::int64_t block(std::int64_t bytes) {
  while (bytes % 512 != 0) ++bytes;
  return bytes;
}

std::int64_t block_of(const Job& job, const Storage& storage, const LaneRows& rows,
                      std::int64_t microbatch, std::int64_t lane) {
  return block(storage.bytes.fixed +
               storage.bytes.per_row * rows_of(job, storage, rows, microbatch, lane));
}

// --- The counters of one card -------------------------------------------------------------------

struct Counters {
  std::int64_t live = 0;
  std::int64_t high = 0;

  void add(std::int64_t bytes) {
    live += bytes;
    high = std::max(high, live);
  }
};

// A tensor with its storage: its bytes come with it and go with it.
struct Tensor {
  Tensor(Counters& c, std::int64_t b) : counters(c), bytes(b) { counters.add(bytes); }
  ~Tensor() { counters.add(-bytes); }
  Tensor(const Tensor&) = delete;
  Tensor& operator=(const Tensor&) = delete;

  Counters& counters;
  std::int64_t bytes;
  std::shared_ptr<Tensor> grad;
};
using Name = std::shared_ptr<Tensor>;

// What the grad_fn of an output refers to: the saved tensors, and the leaf at its far end.
struct Graph {
  std::map<std::int32_t, Name> tensors;  // by storage
  std::vector<int> uses_left;            // by storage, of forward and backward
  Name input;
};

struct Output {
  Name data;  // empty once the schedule has sent it (deallocate_output_tensor)
  std::shared_ptr<Graph> grad_fn;
};
using OutputName = std::shared_ptr<Output>;

// One process. Members that end in _ live between iterations.
class Process {
 public:
  Process(const Job& job, const OperatorGraph& graph, std::int64_t stage, const LaneRows& rows,
          std::int64_t lane)
      : job_(job),
        graph_(graph),
        stage_(stage),
        rows_(rows),
        lane_(lane),
        uses_(graph.storages.size()) {
    for (const auto* list : {&graph.forward, &graph.backward}) {
      for (const Operator& op : *list) {
        for (const auto* used : {&op.reads, &op.writes, &op.holds}) {
          for (StorageId s : *used) ++uses_[s.index()];
        }
      }
    }
  }

  // forward_backward_pipelining_without_interleaving; with one stage, the order of
  // forward_backward_no_pipelining is the same.
  void iteration() {
    high_water_.clear();
    counters_.high = counters_.live;
    const std::int64_t microbatches = job_.batch.num_microbatches(job_.layout);
    const std::int64_t warmup = std::min(job_.layout.pipeline - stage_ - 1, microbatches);
    const std::int64_t remaining = microbatches - warmup;
    std::deque<std::pair<Name, OutputName>> waiting;  // input_tensors, output_tensors
    Name input_tensor;
    OutputName output_tensor;
    Name output_tensor_grad;
    Name input_tensor_grad;

    for (std::int64_t i = 0; i < warmup; ++i) {
      exchange_with_previous([&] { input_tensor = receive(graph_.input); });
      output_tensor = forward_step(i, input_tensor);
      exchange_with_next([&] {});
      waiting.emplace_back(input_tensor, output_tensor);
      deallocate(output_tensor);
    }
    if (remaining > 0) {
      exchange_with_previous([&] { input_tensor = receive(graph_.input); });
    }
    for (std::int64_t i = 0; i < remaining; ++i) {
      const bool last_iteration = i == remaining - 1;
      output_tensor = forward_step(warmup + i, input_tensor);
      exchange_with_next([&] { output_tensor_grad = receive(graph_.output_gradient); });
      waiting.emplace_back(input_tensor, output_tensor);
      deallocate(output_tensor);
      std::tie(input_tensor, output_tensor) = pop(waiting);
      input_tensor_grad = backward_step(i, input_tensor, output_tensor, output_tensor_grad);
      if (last_iteration) {
        input_tensor = nullptr;
        exchange_with_previous([&] {});
      } else {
        exchange_with_previous([&] { input_tensor = receive(graph_.input); });
      }
    }
    for (std::int64_t i = remaining; i < microbatches; ++i) {
      std::tie(input_tensor, output_tensor) = pop(waiting);
      exchange_with_next([&] { output_tensor_grad = receive(graph_.output_gradient); });
      input_tensor_grad = backward_step(i, input_tensor, output_tensor, output_tensor_grad);
      exchange_with_previous([&] {});
    }
  }

  const Counters& counters() const { return counters_; }
  const std::vector<std::vector<std::int64_t>>& high_water() const { return high_water_; }

 private:
  static std::pair<Name, OutputName> pop(std::deque<std::pair<Name, OutputName>>& waiting) {
    auto front = std::move(waiting.front());
    waiting.pop_front();
    return front;
  }

  Name allocate(StorageId s, std::int64_t microbatch) {
    const Storage& storage = graph_.storages[s.index()];
    return std::make_shared<Tensor>(counters_, block_of(job_, storage, rows_, microbatch, lane_));
  }
  Name receive(StorageId s) { return allocate(s, 0); }  // its size is the same for all
  static void deallocate(const OutputName& output) { output->data = nullptr; }

  template <class F>
  void exchange_with_previous(F&& assign) {
    if (stage_ > 0) exchange(assign);
  }
  template <class F>
  void exchange_with_next(F&& assign) {
    if (stage_ + 1 < job_.layout.pipeline) exchange(assign);
  }
  template <class F>
  void exchange(F& assign) {
    const std::int64_t before = std::exchange(counters_.high, counters_.live);
    assign();
    high_water_.push_back({counters_.high});
    counters_.high = std::max(counters_.high, before);
  }

  OutputName forward_step(std::int64_t microbatch, const Name& input) {
    decoder_input_tensor_ = input;  // set_input_tensor
    auto grad_fn = std::make_shared<Graph>();
    grad_fn->input = input;
    grad_fn->uses_left = uses_;
    if (graph_.input.valid()) grad_fn->tensors[graph_.input.value] = input;
    run(graph_.forward, microbatch, *grad_fn);
    auto output = std::make_shared<Output>();
    if (graph_.output.valid()) {
      output->data = std::move(grad_fn->tensors.at(graph_.output.value));
      grad_fn->tensors.erase(graph_.output.value);
    }
    output->grad_fn = std::move(grad_fn);
    return output;
  }

  Name backward_step(std::int64_t microbatch, const Name& input, const OutputName& output,
                     const Name& output_grad) {
    Graph& graph = *output->grad_fn;
    if (output_grad != nullptr) graph.tensors[graph_.output_gradient.value] = output_grad;
    run(graph_.backward, microbatch, graph);
    if (input == nullptr) return nullptr;
    input->grad = std::move(graph.tensors.at(graph_.input_gradient.value));
    graph.tensors.clear();
    return input->grad;
  }

  // Runs a list of operators: allocates what each writes, and drops a tensor when no later operator
  // of the microbatch refers to it. The outputs of the pass are its caller's.
  void run(const std::vector<Operator>& list, std::int64_t microbatch, Graph& graph) {
    std::vector<std::int64_t> high;
    const std::int64_t before = counters_.high;
    std::int64_t highest = before;
    for (std::size_t i = 0; i < list.size(); ++i) {
      counters_.high = counters_.live;
      for (StorageId s : list[i].writes) {
        Name& name = graph.tensors[s.value];
        if (name != nullptr) continue;  // in place
        name = allocate(s, microbatch);
        if (graph_.storages[s.index()].role == StorageRole::kModuleState) {
          module_attributes_[s.value] = name;
        }
      }
      high.push_back(counters_.high);
      highest = std::max(highest, counters_.high);
      for (const auto* used : {&list[i].reads, &list[i].writes, &list[i].holds}) {
        for (StorageId s : *used) {
          const bool handed_on = s == graph_.output || s == graph_.input_gradient;
          if (--graph.uses_left[s.index()] == 0 && !handed_on) graph.tensors.erase(s.value);
        }
      }
    }
    counters_.high = highest;
    high_water_.push_back(std::move(high));
  }

  const Job& job_;
  const OperatorGraph& graph_;
  std::int64_t stage_;
  const LaneRows& rows_;
  std::int64_t lane_;
  std::vector<int> uses_;  // by storage
  std::vector<std::vector<std::int64_t>> high_water_;
  Counters counters_;                               // goes after what counts in it
  Name decoder_input_tensor_;                       // model.decoder.input_tensor
  std::map<std::int32_t, Name> module_attributes_;  // of the token dispatchers
};

}  // namespace

NaiveMemory replay(const Job& job, const OperatorGraph& graph, const MemorySequence& sequence,
                   const LaneRows& rows, std::int64_t lane) {
  const auto microbatches = static_cast<std::int32_t>(job.batch.num_microbatches(job.layout));
  NaiveMemory out;
  for (const bool first : {true, false}) {
    std::map<std::pair<std::int32_t, std::int32_t>, std::int64_t> live;  // -> bytes
    std::int64_t sum = 0;
    const auto allocate = [&](std::int32_t storage, std::int32_t microbatch) {
      const std::int64_t of = microbatch == kPreviousIteration ? microbatches - 1 : microbatch;
      const std::int64_t bytes =
          block_of(job, graph.storages[static_cast<std::size_t>(storage)], rows, of, lane);
      if (!live.emplace(std::pair(storage, microbatch), bytes).second) {
        throw std::logic_error("allocated twice: " +
                               graph.storages[static_cast<std::size_t>(storage)].name);
      }
      sum += bytes;
    };
    if (!first) {
      for (StorageId s : sequence.carried_over) allocate(s.value, kPreviousIteration);
    }
    std::int64_t& peak = first ? out.first_peak : out.peak;
    peak = sum;
    for (std::size_t i = 0; i < sequence.events.size(); ++i) {
      const MemoryEvent& e = sequence.events[i];
      if (first && e.microbatch == kPreviousIteration) continue;
      if (e.allocates) {
        allocate(e.storage, e.microbatch);
      } else {
        const auto it = live.find({e.storage, e.microbatch});
        if (it == live.end()) {
          throw std::logic_error("freed without being live: " +
                                 graph.storages[static_cast<std::size_t>(e.storage)].name);
        }
        sum -= it->second;
        live.erase(it);
      }
      if (sum > peak) {
        peak = sum;
        if (!first) out.first_peak_event = static_cast<std::int64_t>(i);
      }
    }
    out.left_behind = sum;
  }
  return out;
}

NaiveMemory run_schedule(const Job& job, const OperatorGraph& graph, std::int64_t stage,
                         const LaneRows& rows, std::int64_t lane) {
  NaiveMemory out;
  Process process(job, graph, stage, rows, lane);
  process.iteration();
  out.first_peak = process.counters().high;
  process.iteration();
  out.peak = process.counters().high;
  out.left_behind = process.counters().live;
  out.high_water = process.high_water();
  return out;
}

}  // namespace tidemark
