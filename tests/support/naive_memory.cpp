#include "tests/support/naive_memory.h"

#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <stdexcept>
#include <utility>

#include "sim/slot_operators.h"

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
  const Chunk* chunk = nullptr;
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

  void iteration() {
    high_water_.clear();
    counters_.high = counters_.live;
    if (job_.layout.virtual_pipeline > 1) {
      interleaved();
    } else {
      plain();
    }
  }

  const Counters& counters() const { return counters_; }
  const std::vector<std::vector<std::int64_t>>& high_water() const { return high_water_; }

 private:
  // forward_backward_pipelining_without_interleaving; with one stage, the order of
  // forward_backward_no_pipelining is the same.
  void plain() {
    const Chunk& chunk = graph_.chunks[0];
    const std::int64_t microbatches = job_.batch.num_microbatches(job_.layout);
    const std::int64_t warmup = std::min(job_.layout.pipeline - stage_ - 1, microbatches);
    const std::int64_t remaining = microbatches - warmup;
    std::deque<std::pair<Name, OutputName>> waiting;  // input_tensors, output_tensors
    Name input_tensor;
    OutputName output_tensor;
    Name output_tensor_grad;
    Name input_tensor_grad;

    for (std::int64_t i = 0; i < warmup; ++i) {
      exchange_with_previous([&] { input_tensor = receive(chunk.input); });
      output_tensor = forward_step(chunk, i, input_tensor);
      exchange_with_next([&] {});
      waiting.emplace_back(input_tensor, output_tensor);
      deallocate(output_tensor);
    }
    if (remaining > 0) {
      exchange_with_previous([&] { input_tensor = receive(chunk.input); });
    }
    for (std::int64_t i = 0; i < remaining; ++i) {
      const bool last_iteration = i == remaining - 1;
      output_tensor = forward_step(chunk, warmup + i, input_tensor);
      exchange_with_next([&] { output_tensor_grad = receive(chunk.output_gradient); });
      waiting.emplace_back(input_tensor, output_tensor);
      deallocate(output_tensor);
      std::tie(input_tensor, output_tensor) = pop(waiting);
      input_tensor_grad = backward_step(i, input_tensor, output_tensor, output_tensor_grad);
      if (last_iteration) {
        input_tensor = nullptr;
        exchange_with_previous([&] {});
      } else {
        exchange_with_previous([&] { input_tensor = receive(chunk.input); });
      }
    }
    for (std::int64_t i = remaining; i < microbatches; ++i) {
      std::tie(input_tensor, output_tensor) = pop(waiting);
      exchange_with_next([&] { output_tensor_grad = receive(chunk.output_gradient); });
      input_tensor_grad = backward_step(i, input_tensor, output_tensor, output_tensor_grad);
      exchange_with_previous([&] {});
    }
  }

  // forward_backward_pipelining_with_interleaving, followed line by line; a transfer happens where
  // the stage's schedule has one.
  void interleaved() {
    const std::size_t chunks = graph_.chunks.size();
    const std::int32_t p = static_cast<std::int32_t>(job_.layout.pipeline);
    const std::int32_t rank = static_cast<std::int32_t>(stage_);
    const auto m = static_cast<std::int32_t>(job_.batch.num_microbatches(job_.layout));
    const auto n = static_cast<std::int32_t>(job_.layout.microbatches_in_a_row());
    const auto v = static_cast<std::int32_t>(chunks);
    const bool overlap = job_.options.overlap_p2p_comm;
    const std::int32_t total = m * v;
    const std::int32_t longer = job_.options.overlap_moe_expert_parallel_comm ? 1 : 0;
    const std::int32_t warmup = std::min(2 * (p - rank - 1) + (v - 1) * n + longer, total);
    const std::int32_t remaining = total - warmup;
    std::vector<std::pair<std::int32_t, std::int32_t>> table;  // microbatch, chunk
    for (std::int32_t begin = 0; begin < m; begin += n) {
      for (std::int32_t c = 0; c < v; ++c) {
        for (std::int32_t i = begin; i < std::min(begin + n, m); ++i) table.emplace_back(i, c);
      }
    }
    const auto chunk_id = [&](std::int32_t k, bool forward) {
      const std::int32_t c = table[static_cast<std::size_t>(k % total)].second;
      return forward ? c : v - c - 1;
    };
    // recv_tensor_from_previous_stage: the chunk it is for, -1 if nothing is received.
    const auto receives = [&](std::int32_t k, bool forward) -> std::int32_t {
      const bool leading = forward ? rank == 0 : rank == p - 1;
      if (!leading) return chunk_id(k + 1, forward);
      if (k < p - 1) return -1;
      const std::int32_t c = chunk_id(k - (p - 1), forward);
      if (c == (forward ? v - 1 : 0)) return -1;
      return forward ? c + 1 : c - 1;
    };
    std::vector<std::deque<Name>> input_tensors(chunks);
    std::vector<std::deque<OutputName>> output_tensors(chunks);
    std::vector<std::deque<Name>> output_tensor_grads(chunks);
    std::vector<std::int32_t> forwards_of(chunks, 0);
    Name input_tensor;
    Name output_tensor_grad;
    OutputName output_tensor;
    Name input_tensor_grad;
    const auto chunk_of = [&](std::int32_t c) -> const Chunk& {
      return graph_.chunks[static_cast<std::size_t>(c)];
    };
    const auto receive_input = [&](std::int32_t c) {
      Name received = receive(chunk_of(c).input);
      input_tensors[static_cast<std::size_t>(c)].push_back(received);
      return received;
    };
    const auto receive_gradient = [&](std::int32_t c) {
      Name received = receive(chunk_of(c).output_gradient);
      output_tensor_grads[static_cast<std::size_t>(c)].push_back(received);
      return received;
    };
    const auto forward = [&](std::int32_t k) {
      const auto c = static_cast<std::size_t>(chunk_id(k, true));
      const std::int32_t microbatch = table[static_cast<std::size_t>(k)].first;
      const bool first_of_all = rank == 0 && c == 0;
      if (first_of_all && input_tensors[c].size() == output_tensors[c].size()) {
        input_tensors[c].push_back(nullptr);
      }
      // Backwards of the chunk have popped the earlier ones.
      const std::size_t index = output_tensors[c].size();
      OutputName output = forward_step(graph_.chunks[c], microbatch, input_tensors[c][index]);
      output_tensors[c].push_back(output);
      return output;
    };
    const auto backward = [&](std::int32_t k) {
      const auto c = static_cast<std::size_t>(chunk_id(k, false));
      if (rank == p - 1 && c + 1 == chunks) output_tensor_grads[c].push_back(nullptr);
      const Name input = input_tensors[c].front();
      input_tensors[c].pop_front();
      const OutputName output = output_tensors[c].front();
      output_tensors[c].pop_front();
      const Name gradient = output_tensor_grads[c].front();
      output_tensor_grads[c].pop_front();
      const std::int32_t microbatch = table[static_cast<std::size_t>(k)].first;
      return backward_step(microbatch, input, output, gradient);
    };
    const auto blocking = [&](auto&& assign) { exchange(assign); };
    // Posted without blocking; nothing is posted where there is nothing to send or to receive.
    const auto post = [&](bool sends, std::int32_t receives_for, auto&& receive_for) {
      if (!sends && receives_for < 0) return;
      const auto assign = [&] {
        if (receives_for >= 0) receive_for(receives_for);
      };
      exchange(assign);
    };
    // A wait is a step in which nothing is allocated.
    std::vector<bool> pending_input(static_cast<std::size_t>(total), false);
    std::vector<bool> pending_gradient(static_cast<std::size_t>(total), false);
    const auto index_of = [&](std::int32_t c, std::int32_t microbatch, bool forward_pass) {
      for (std::int32_t k = 0; k < total; ++k) {
        if (chunk_id(k, forward_pass) == c &&
            table[static_cast<std::size_t>(k)].first == microbatch)
          return static_cast<std::size_t>(k);
      }
      throw std::logic_error("no such microbatch");
    };
    const auto wait = [&](std::vector<bool>& pending, std::int32_t k) {
      if (!pending[static_cast<std::size_t>(k)]) return;
      pending[static_cast<std::size_t>(k)] = false;
      exchange([] {});
    };
    // Which step of the stage uses what arrives after step k.
    const auto used_at = [&](std::int32_t k, bool forward_pass) {
      const bool leading = forward_pass ? rank == 0 : rank == p - 1;
      if (!leading) return static_cast<std::size_t>(k + 1);
      const auto sent = static_cast<std::size_t>(k - (p - 1));
      return index_of(receives(k, forward_pass), table[sent].first, forward_pass);
    };
    const auto sends_activation = [&](std::int32_t k) {
      return !(rank == p - 1 && chunk_id(k, true) == v - 1);
    };
    const auto sends_gradient = [&](std::int32_t k) {
      return !(rank == 0 && chunk_id(k, false) == 0);
    };

    if (rank > 0) blocking([&] { receive_input(0); });
    for (std::int32_t k = 0; k < warmup; ++k) {
      std::int32_t from = receives(k, true);
      if (k == total - 1) from = -1;
      output_tensor = forward(k);
      const bool turns = k == warmup - 1 && warmup < total;
      blocking([&] {
        Name input = from >= 0 ? receive_input(from) : nullptr;
        Name gradient;
        if (turns && !overlap && rank < p - 1) gradient = receive_gradient(v - 1);
        input_tensor = std::move(input);
        if (turns && !overlap) output_tensor_grad = std::move(gradient);
      });
      if (sends_activation(k)) deallocate(output_tensor);
      if (overlap && turns && rank < p - 1) {
        post(false, v - 1, receive_gradient);
        pending_gradient[0] = true;
      }
    }
    // combined_forward_backward_step, between the two posts of the helper's wrapper.
    const auto combined = [&](std::int32_t f, std::int32_t k) {
      const auto fc = static_cast<std::size_t>(chunk_id(f, true));
      const auto bc = static_cast<std::size_t>(chunk_id(k, false));
      if (rank == 0 && fc == 0 && input_tensors[fc].size() == output_tensors[fc].size()) {
        input_tensors[fc].push_back(nullptr);
      }
      if (rank == p - 1 && bc + 1 == chunks) output_tensor_grads[bc].push_back(nullptr);
      const Name forward_input = input_tensors[fc][output_tensors[fc].size()];
      const Name input = input_tensors[bc].front();
      const OutputName of = output_tensors[bc].front();
      const Name gradient = output_tensor_grads[bc].front();
      const std::int32_t fm = table[static_cast<std::size_t>(f)].first;
      const std::int32_t bm = table[static_cast<std::size_t>(k)].first;
      const auto made = begin_forward(graph_.chunks[fc], forward_input);
      begin_backward(*of->grad_fn, gradient);
      std::vector<Item> items;
      for (const IssuedOperator& op :
           slot_operators(graph_, {SlotKind::kForwardBackward,
                                   fm,
                                   static_cast<std::int32_t>(fc),
                                   {static_cast<std::int32_t>(bc), bm}})) {
        const Operator& source = graph_.at(static_cast<std::size_t>(op.index));
        items.push_back({&source, op.beside ? bm : fm, op.beside ? of->grad_fn.get() : made.get()});
      }
      run(items);
      OutputName output = finish_forward(made);
      output_tensors[fc].push_back(output);
      const bool later = job_.options.delay_wgrad_compute;
      if (later) owed_ = of->grad_fn;
      const Name input_gradient = finish_backward(*of->grad_fn, input, !later);
      input_tensors[bc].pop_front();
      output_tensors[bc].pop_front();
      output_tensor_grads[bc].pop_front();
      return std::pair(output, input_gradient);
    };
    const auto delayed_weights = [&](std::int32_t k) {
      if (owed_ == nullptr) return;
      std::vector<Item> items =
          pass(owed_->chunk->weight, false, table[static_cast<std::size_t>(k)].first, *owed_);
      run(items);
      owed_ = nullptr;
    };

    OutputName undeallocated;
    for (std::int32_t k = 0; k < remaining; ++k) {
      const std::int32_t f = k + warmup;
      std::int32_t from = k == remaining - 1 ? -1 : receives(f, true);
      const std::int32_t gradient_from = k == total - 1 ? -1 : receives(k, false);
      OutputName forward_output_tensor;
      Name backward_input_tensor_grad;
      if (job_.combines_slots()) {
        wait(pending_input, f);
        wait(pending_gradient, k);
        if (undeallocated != nullptr) deallocate(undeallocated);
        undeallocated = nullptr;
        auto made = combined(f, k);
        if (overlap) {
          output_tensor = std::move(made.first);
          input_tensor_grad = std::move(made.second);
          if (from >= 0) pending_input[used_at(f, true)] = true;
          if (gradient_from >= 0) pending_gradient[used_at(k, false)] = true;
          post(sends_activation(f), from, receive_input);
          post(sends_gradient(k), gradient_from, receive_gradient);
          if (sends_activation(f)) undeallocated = output_tensor;
        } else {
          output_tensor = std::move(made.first);
          input_tensor_grad = std::move(made.second);
          blocking([&] {
            Name input = from >= 0 ? receive_input(from) : nullptr;
            Name gradient = gradient_from >= 0 ? receive_gradient(gradient_from) : nullptr;
            input_tensor = std::move(input);
            output_tensor_grad = std::move(gradient);
          });
          if (sends_activation(f)) deallocate(output_tensor);
        }
        delayed_weights(k);
      } else if (overlap) {
        wait(pending_input, f);
        if (undeallocated != nullptr) deallocate(undeallocated);
        undeallocated = nullptr;
        forward_output_tensor = forward(f);
        if (from >= 0) pending_input[used_at(f, true)] = true;
        post(sends_activation(f), from, receive_input);
        wait(pending_gradient, k);
        backward_input_tensor_grad = backward(k);
        if (gradient_from >= 0) pending_gradient[used_at(k, false)] = true;
        output_tensor = forward_output_tensor;
        if (sends_activation(f)) undeallocated = output_tensor;
        input_tensor_grad = backward_input_tensor_grad;
        post(sends_gradient(k), gradient_from, receive_gradient);
      } else {
        forward_output_tensor = forward(f);
        backward_input_tensor_grad = backward(k);
        output_tensor = forward_output_tensor;
        input_tensor_grad = backward_input_tensor_grad;
        forward_output_tensor = nullptr;
        backward_input_tensor_grad = nullptr;
        blocking([&] {
          Name input = from >= 0 ? receive_input(from) : nullptr;
          Name gradient = gradient_from >= 0 ? receive_gradient(gradient_from) : nullptr;
          input_tensor = std::move(input);
          output_tensor_grad = std::move(gradient);
        });
        if (sends_activation(f)) deallocate(output_tensor);
      }
    }
    if (undeallocated != nullptr) deallocate(undeallocated);
    undeallocated = nullptr;
    if (warmup == total && rank < p - 1) blocking([&] { receive_gradient(v - 1); });
    for (std::int32_t k = remaining; k < total; ++k) {
      wait(pending_gradient, k);
      const std::int32_t from = k == total - 1 ? -1 : receives(k, false);
      input_tensor_grad = backward(k);
      blocking([&] {
        Name gradient = from >= 0 ? receive_gradient(from) : nullptr;
        output_tensor_grad = std::move(gradient);
      });
    }
  }

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
  void exchange(F&& assign) {
    const std::int64_t before = std::exchange(counters_.high, counters_.live);
    assign();
    high_water_.push_back({counters_.high});
    counters_.high = std::max(counters_.high, before);
  }

  OutputName forward_step(const Chunk& chunk, std::int64_t microbatch, const Name& input) {
    const std::shared_ptr<Graph> grad_fn = begin_forward(chunk, input);
    run(pass(chunk.forward, true, microbatch, *grad_fn));
    return finish_forward(grad_fn);
  }

  std::shared_ptr<Graph> begin_forward(const Chunk& chunk, const Name& input) {
    decoder_input_tensors_[&chunk] = input;  // set_input_tensor
    auto grad_fn = std::make_shared<Graph>();
    grad_fn->input = input;
    grad_fn->chunk = &chunk;
    grad_fn->uses_left = uses_;
    if (chunk.input.valid()) grad_fn->tensors[chunk.input.value] = input;
    return grad_fn;
  }

  static OutputName finish_forward(std::shared_ptr<Graph> grad_fn) {
    const Chunk& chunk = *grad_fn->chunk;
    auto output = std::make_shared<Output>();
    if (chunk.output.valid()) {
      output->data = std::move(grad_fn->tensors.at(chunk.output.value));
      grad_fn->tensors.erase(chunk.output.value);
    }
    output->grad_fn = std::move(grad_fn);
    return output;
  }

  Name backward_step(std::int64_t microbatch, const Name& input, const OutputName& output,
                     const Name& output_grad) {
    Graph& graph = *output->grad_fn;
    begin_backward(graph, output_grad);
    std::vector<Item> items = pass(graph.chunk->backward, false, microbatch, graph);
    const std::vector<Item> weights = pass(graph.chunk->weight, false, microbatch, graph);
    items.insert(items.end(), weights.begin(), weights.end());
    run(items);
    return finish_backward(graph, input, true);
  }

  static void begin_backward(Graph& graph, const Name& output_grad) {
    if (output_grad != nullptr) graph.tensors[graph.chunk->output_gradient.value] = output_grad;
  }

  // Weight gradients that come later still need some of the graph's tensors.
  static Name finish_backward(Graph& graph, const Name& input, bool done) {
    const StorageId gradient = graph.chunk->input_gradient;
    if (input != nullptr) {
      input->grad = std::move(graph.tensors.at(gradient.value));
      graph.tensors.erase(gradient.value);
    }
    if (done && input != nullptr) graph.tensors.clear();
    if (!done) graph.input = nullptr;
    return input == nullptr ? nullptr : input->grad;
  }

  // An operator with the microbatch and the tensors that it works on.
  struct Item {
    const Operator* op = nullptr;
    std::int64_t microbatch = 0;
    Graph* graph = nullptr;
  };
  std::vector<Item> pass(OperatorRange range, bool forward, std::int64_t microbatch,
                         Graph& graph) const {
    std::vector<Item> items;
    for (std::int32_t i = range.begin; i < range.end; ++i) {
      const auto at = static_cast<std::size_t>(i);
      items.push_back({&(forward ? graph_.forward : graph_.backward)[at], microbatch, &graph});
    }
    return items;
  }

  // Runs a list of operators: allocates what each writes, and drops a tensor when no later operator
  // of the microbatch refers to it. The outputs of the pass are its caller's.
  void run(const std::vector<Item>& items) {
    std::vector<std::int64_t> high;
    const std::int64_t before = counters_.high;
    std::int64_t highest = before;
    for (const auto& [op, microbatch, of] : items) {
      Graph& graph = *of;
      counters_.high = counters_.live;
      for (StorageId s : op->writes) {
        Name& name = graph.tensors[s.value];
        if (name != nullptr) continue;  // in place
        name = allocate(s, microbatch);
        if (graph_.storages[s.index()].role == StorageRole::kModuleState) {
          const Storage& storage = graph_.storages[s.index()];
          module_attributes_[{storage.layer, storage.name}] = name;
        }
      }
      high.push_back(counters_.high);
      highest = std::max(highest, counters_.high);
      for (const auto* used : {&op->reads, &op->writes, &op->holds}) {
        for (StorageId s : *used) {
          const bool handed_on = s == graph.chunk->output || s == graph.chunk->input_gradient;
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
  std::vector<int> uses_;        // by storage
  std::shared_ptr<Graph> owed_;  // weight gradients to come
  std::vector<std::vector<std::int64_t>> high_water_;
  Counters counters_;                                   // goes after what counts in it
  std::map<const Chunk*, Name> decoder_input_tensors_;  // model.decoder.input_tensor
  // Of the token dispatchers, by layer and name.
  std::map<std::pair<std::int32_t, std::string>, Name> module_attributes_;
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

MemorySequence decided(const MemorySequence& sequence, const StageDecisions& decisions) {
  MemorySequence out{{}, sequence.carried_over};
  for (const MemoryEvent& e : sequence.events) {
    if (e.action >= 0 && !decisions.takes(e.microbatch, e.action)) continue;
    out.events.push_back(e);
    out.events.back().action = -1;
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
