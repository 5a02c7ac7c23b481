#include "models/operator_graph.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include <boost/graph/topological_sort.hpp>

#include "models/data_flow.h"
#include "models/overloaded.h"

namespace tidemark {
std::vector<Lifetime> lifetimes(const OperatorGraph& graph) {
  std::vector<Lifetime> out(graph.storages.size());
  std::vector<bool> settled(graph.storages.size(), false);
  for (const bool optional : {false, true}) {
    for (std::size_t i = 0; i < graph.size(); ++i) {
      const Operator& op = graph.at(i);
      if ((op.action >= 0) != optional) continue;
      const auto at = static_cast<std::int32_t>(i);
      for (StorageId s : op.writes) {
        if (!settled[s.index()] && out[s.index()].first < 0) out[s.index()].first = at;
      }
      for (const auto* list : {&op.reads, &op.writes, &op.holds}) {
        for (StorageId s : *list) {
          if (!settled[s.index()]) out[s.index()].last = std::max(out[s.index()].last, at);
        }
      }
    }
    for (std::size_t s = 0; s < out.size(); ++s) settled[s] = out[s].last >= 0;
  }
  for (const Chunk& chunk : graph.chunks) {
    for (StorageId received : {chunk.input, chunk.output_gradient}) {
      if (received.valid()) out[received.index()].first = -1;
    }
  }
  return out;
}

std::vector<StorageId> kept_storages(const OperatorGraph& graph) {
  const std::vector<Lifetime> lives = lifetimes(graph);
  const auto border = static_cast<std::int32_t>(graph.forward.size());
  std::vector<StorageId> kept;
  for (std::size_t i = 0; i < lives.size(); ++i) {
    if (lives[i].first >= 0 && lives[i].first < border && lives[i].last >= border) {
      kept.emplace_back(static_cast<std::int64_t>(i));
    }
  }
  return kept;
}

double flops(const Operator& op, std::int64_t rows) {
  const auto product = [](std::int64_t a, std::int64_t b, std::int64_t c) {
    return 2.0 * static_cast<double>(a) * static_cast<double>(b) * static_cast<double>(c);
  };
  return std::visit(
      Overloaded{
          [&](const GemmWork& w) {
            return product(w.shape.out_features, w.shape.tokens, w.shape.in_features);
          },
          [&](const GroupedGemmWork& w) { return product(w.out_features, rows, w.in_features); },
          [&](const AttentionWork& w) {
            const AttentionShape& s = w.shape;
            const double pairs = static_cast<double>(s.batch * s.heads) *
                                 static_cast<double>(s.seq_q) * static_cast<double>(s.seq_kv) *
                                 (s.causal ? 0.5 : 1.0);
            // Two products forward; five backward, three of them over the query-key dimension.
            const double dims = w.direction == Direction::kForward
                                    ? static_cast<double>(s.qk_dim + s.v_dim)
                                    : static_cast<double>(3 * s.qk_dim + 2 * s.v_dim);
            return 2.0 * pairs * dims / static_cast<double>(w.context_ranks);
          },
          [](const auto&) { return 0.0; }},
      op.work);
}

void check_operator_graph(const OperatorGraph& graph) {
  std::vector<bool> written(graph.storages.size(), false);
  for (const Chunk& chunk : graph.chunks) {
    for (StorageId received : {chunk.input, chunk.output_gradient}) {
      if (received.valid()) written[received.index()] = true;
    }
  }
  for (std::size_t i = 0; i < graph.size(); ++i) {
    const Operator& op = graph.at(i);
    for (const auto* list : {&op.reads, &op.holds}) {
      for (StorageId s : *list) {
        if (!written[s.index()]) {
          throw std::logic_error("operator " + op.name + " refers to " +
                                 graph.storages[s.index()].name + " before it is written");
        }
      }
    }
    for (StorageId s : op.writes) written[s.index()] = true;
  }
  // Issue order is a topological order of the flow; topological_sort throws on a cycle.
  const DataFlow flow = data_flow(graph);
  std::vector<DataFlow::vertex_descriptor> order;
  boost::topological_sort(flow, std::back_inserter(order));
  const auto [begin, end] = boost::edges(flow);
  for (auto edge = begin; edge != end; ++edge) {
    if (boost::source(*edge, flow) >= boost::target(*edge, flow)) {
      throw std::logic_error("operator " + graph.at(boost::target(*edge, flow)).name +
                             " is issued before its producer");
    }
  }
}

StorageId GraphBuilder::storage(std::string name, Size bytes, StorageRole role) {
  graph_.storages.push_back({std::move(name), bytes, layer_, role});
  return StorageId(std::ssize(graph_.storages) - 1);
}

std::int32_t GraphBuilder::emit(std::string name, Work work, Stream stream,
                                std::vector<StorageId> reads, std::vector<StorageId> writes,
                                std::int32_t contends_with) {
  for (StorageId& s : reads) s = current(s);
  for (StorageId& s : writes) s = current(s);
  std::vector<Operator>& list = in_backward_ ? graph_.backward : graph_.forward;
  list.push_back({std::move(name),
                  std::move(work),
                  stream,
                  layer_,
                  std::move(reads),
                  std::move(writes),
                  {},
                  contends_with,
                  part_});
  return static_cast<std::int32_t>(list.size()) - 1;
}

void GraphBuilder::hold(std::vector<StorageId> storages) {
  std::vector<StorageId>& holds = (in_backward_ ? graph_.backward : graph_.forward).back().holds;
  for (StorageId s : storages) holds.push_back(current(s));
}

void GraphBuilder::add_gradient(StorageId of, StorageId gradient) {
  const auto [it, first] = gradients_.try_emplace(of, gradient);
  if (first) return;
  // PyTorch's InputBuffer adds into the first gradient in place if nothing else refers to it; the
  // schedule still names a received gradient. Two reads, one write, bf16.
  const StorageId sum = it->second == chunk().output_gradient
                            ? storage("gradient_sum", bytes_of(gradient), StorageRole::kGradient)
                            : it->second;
  emit("gradient_add", StreamingWork{{3 * bytes_of(gradient), 0}}, {it->second, gradient}, {sum});
  it->second = sum;
}

StorageId GraphBuilder::gradient(StorageId of) const { return gradients_.at(of); }

StorageId GraphBuilder::current(StorageId id) const {
  const auto it = replacements_.find(id);
  return it == replacements_.end() ? id : it->second;
}

void GraphBuilder::run_backwards(const Backwards& backwards) {
  for (auto it = backwards.rbegin(); it != backwards.rend(); ++it) {
    layer_ = it->layer;
    part_ = it->part;
    it->emit(*this);
  }
}

std::vector<StorageId> GraphBuilder::run_again(const Module& module, Backwards& backwards) {
  const bool kept_nothing = std::exchange(keeps_nothing_, true);
  std::swap(backward_, backwards);
  std::vector<StorageId> outputs = module(*this);
  std::swap(backward_, backwards);
  keeps_nothing_ = kept_nothing;
  return outputs;
}

std::vector<StorageId> GraphBuilder::offloadable(OffloadModule name, const Module& module) {
  if (keeps_nothing_ || !job_.options.offload.offloads(name)) return module(*this);
  const std::size_t at = offload_groups_.size();
  OffloadGroup& group = offload_groups_.emplace_back();
  group.module = name;
  group.layer = layer_;
  group.forward.begin = static_cast<std::int32_t>(graph_.forward.size());
  const auto backward_size = [](GraphBuilder& b) {
    return static_cast<std::int32_t>(b.graph_.backward.size());
  };
  on_backward([=](GraphBuilder& b) { b.offload_groups_[at].backward.end = backward_size(b); });
  std::vector<StorageId> outputs = module(*this);
  offload_groups_[at].forward.end = static_cast<std::int32_t>(graph_.forward.size());
  on_backward([=](GraphBuilder& b) { b.offload_groups_[at].backward.begin = backward_size(b); });
  return outputs;
}

std::vector<StorageId> GraphBuilder::checkpoint(const Module& module) {
  Backwards dropped;
  const std::vector<StorageId> outputs = run_again(module, dropped);
  on_backward([module, outputs](GraphBuilder& b) {
    Backwards backwards;
    const std::vector<StorageId> again = b.run_again(module, backwards);
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      b.replace_gradient(again[i], b.gradient(outputs[i]));
    }
    b.run_backwards(backwards);
  });
  return outputs;
}

GraphBuilder::DiscardedOutput GraphBuilder::checkpoint_without_output(const Module& module) {
  Backwards dropped;
  DiscardedOutput out;
  out.state_ = std::make_shared<DiscardedOutput::State>();
  out.state_->module = module;
  out.state_->part = part_;
  out.state_->outputs = run_again(module, dropped);
  on_backward([state = out.state_](GraphBuilder& b) {
    for (std::size_t i = 0; i < state->outputs.size(); ++i) {
      b.replace_gradient(state->again[i], b.gradient(state->outputs[i]));
    }
    b.run_backwards(state->backwards);
  });
  return out;
}

void GraphBuilder::discard_and_recompute(const DiscardedOutput& discarded) {
  hold(discarded.outputs());
  on_backward([state = discarded.state_](GraphBuilder& b) {
    state->again = b.run_again(state->module, state->backwards);
    for (ModuleBackward& backward : state->backwards) backward.part = state->part;
    for (std::size_t i = 0; i < state->outputs.size(); ++i) {
      b.replacements_[state->outputs[i]] = state->again[i];
    }
  });
}

Chunk& GraphBuilder::begin_chunk() {
  Chunk& chunk = graph_.chunks.emplace_back();
  chunk.forward.begin = static_cast<std::int32_t>(graph_.forward.size());
  chunk.backward.begin = static_cast<std::int32_t>(graph_.backward.size());
  return chunk;
}

void GraphBuilder::end_chunk() {
  in_backward_ = true;
  run_backwards(std::exchange(backward_, {}));
  in_backward_ = false;
  chunk().forward.end = static_cast<std::int32_t>(graph_.forward.size());
  chunk().backward.end = static_cast<std::int32_t>(graph_.backward.size());
  layer_ = -1;
}

OperatorGraph GraphBuilder::finish() {
  check_operator_graph(graph_);
  return std::move(graph_);
}

}  // namespace tidemark
