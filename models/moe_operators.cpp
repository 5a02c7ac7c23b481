#include <cmath>

#include "models/layer_operators.h"
#include "models/linear_operators.h"

namespace tidemark {
namespace {

constexpr std::int64_t kInt32 = 4;
constexpr std::int64_t kInt64 = 8;
constexpr std::int64_t kBool = 1;

// Sizes of one MoE layer on one card. A "row" is one token for one expert. The rows a card sends
// are fixed; those its experts receive follow from the routing (Size::per_row).
struct MoeSizes {
  std::int64_t tokens = 0;       // that the router of this card sees
  std::int64_t assignments = 0;  // tokens * top-k
  std::int64_t sent_rows = 0;    // assignments, or experts * capacity when padded
  std::int64_t local_experts = 0;
  std::int64_t hidden = 0;
  std::int64_t fc1_width = 0;
  std::int64_t fc2_width = 0;
  std::int64_t row_bytes = 0;   // of a hidden vector in bf16
  std::int64_t wire_bytes = 0;  // of a hidden vector on the network
};

MoeSizes moe_sizes(const Job& job) {
  const MoeSpec& moe = *job.model.moe;
  MoeSizes z;
  z.tokens = job.sharded_tokens();
  z.assignments = z.tokens * moe.topk;
  z.sent_rows = rows_sent(job);
  z.local_experts = moe.num_experts / job.layout.expert;
  z.hidden = job.model.hidden_size;
  z.fc2_width = moe.ffn_hidden_size / job.layout.expert_tensor;
  z.fc1_width = job.model.gated() ? 2 * z.fc2_width : z.fc2_width;
  z.row_bytes = kBf16 * z.hidden;
  // 8-bit values and one fp32 scale for each 128 of them (vendor's quantize-comm).
  z.wire_bytes = job.options.quantize_comm_bits ? z.hidden + kFp32 * z.hidden / 128 : z.row_bytes;
  return z;
}

// Transformer Engine's fused router (pytorch/router.py, since 2.6) saves the map and one fp32
// intermediate of the scores, and another of the auxiliary loss.
bool fuses_router(const Job& job) {
  return job.options.moe_router_fusion && job.versions.transformer_engine >= Version{2, 6};
}

// Gating projection, scores, top-k. Returns what the permutation needs.
struct RouterOutputs {
  StorageId map;            // [tokens, experts] bool
  StorageId probabilities;  // [tokens, experts] bf16
};

RouterOutputs router(GraphBuilder& g, const MoeSizes& z, StorageId normed) {
  const Job& job = g.job();
  const std::int64_t experts = job.model.moe->num_experts;
  const std::int64_t cells = z.tokens * experts;
  const std::int64_t logit_bytes = job.options.moe_router_fp32 ? kFp32 : kBf16;
  const StorageId logits = g.storage("router.logits", logit_bytes * cells);
  const StorageId map = g.storage("router.routing_map", kBool * cells, StorageRole::kModuleState);
  const StorageId probabilities =
      g.storage("router.probabilities", kBf16 * cells, StorageRole::kModuleState);
  std::vector<StorageId> saved{map, g.storage("router.scores", kFp32 * cells)};
  if (fuses_router(job)) {
    if (job.options.moe_aux_loss) {
      saved.push_back(g.storage("router.auxiliary_scores", kFp32 * cells));
    }
  } else {
    saved.push_back(g.storage("router.topk_indices", kInt64 * z.assignments));
    saved.push_back(g.storage("router.topk_scores", kFp32 * z.assignments));
    saved.push_back(probabilities);
    if (job.options.moe_aux_loss) {
      saved.push_back(g.storage("router.auxiliary_scores", kFp32 * cells));
    }
  }
  std::vector<StorageId> outputs = saved;
  if (fuses_router(job)) outputs.push_back(probabilities);
  g.emit("router.gating", GemmWork{{experts, z.tokens, z.hidden}, Pass::kForward, false, false},
         {normed}, {logits});
  g.emit("router", RouterWork{Direction::kForward}, {logits}, outputs);
  g.on_backward([=](GraphBuilder& b) {
    const StorageId dlogits =
        b.storage("router.logits_gradient", logit_bytes * cells, StorageRole::kGradient);
    std::vector<StorageId> reads = saved;
    reads.push_back(b.gradient(probabilities));
    b.emit("router.backward", RouterWork{Direction::kBackward}, reads, {dlogits});
    const StorageId dx =
        b.storage("router.input_gradient", z.row_bytes * z.tokens, StorageRole::kGradient);
    b.emit("router.gating.dgrad",
           GemmWork{{experts, z.tokens, z.hidden}, Pass::kBackwardInput, false, false}, {dlogits},
           {dx});
    b.emit("router.gating.wgrad",
           GemmWork{{experts, z.tokens, z.hidden}, Pass::kBackwardWeight, false, false},
           {dlogits, normed}, {});
    b.add_gradient(normed, dx);
  });
  return {map, probabilities};
}

// A permutation of rows: one kernel each way over a saved index map.
struct Permutation {
  std::string name;
  Size out_bytes;
  Size traffic;
  StorageId saved_map;
};
StorageId permute_rows(GraphBuilder& g, const Permutation& p, StorageId input) {
  const Size in_bytes = g.graph().storages[input.index()].bytes;
  const StorageId out = g.storage(p.name + ".output", p.out_bytes);
  g.emit(p.name, StreamingWork{p.traffic}, {input, p.saved_map}, {out});
  g.on_backward([=](GraphBuilder& b) {
    const StorageId dx = b.storage(p.name + ".input_gradient", in_bytes, StorageRole::kGradient);
    b.emit(p.name + ".backward", StreamingWork{p.traffic}, {b.gradient(out), p.saved_map}, {dx});
    b.add_gradient(input, dx);
  });
  return out;
}

Size scaled(Size size, std::int64_t numerator, std::int64_t denominator) {
  return {size.fixed * numerator / denominator, size.per_row * numerator / denominator};
}

// One direction of an all-to-all of hidden vectors between the expert-parallel cards; `send` and
// `receive` are their bytes in bf16. Quantized, the autograd function's locals (its input and the
// 8-bit copies) live until the result exists. Returns: the position of the collective.
std::int32_t exchange_rows(GraphBuilder& g, const MoeSizes& z, const std::string& name,
                           StorageId input, StorageId output, Size send, Size receive) {
  const CollectiveWork work{Collective::kAllToAll, Group::kExpert,
                            scaled(send, z.wire_bytes, z.row_bytes),
                            scaled(receive, z.wire_bytes, z.row_bytes), 1};
  if (!g.job().options.quantize_comm_bits) {
    return g.emit(name, work, Stream::kExpertComm, {input}, {output});
  }
  const StorageId packed = g.storage(name + ".quantized", work.send, StorageRole::kTemporary);
  const StorageId arrived =
      g.storage(name + ".arrived_quantized", work.receive, StorageRole::kTemporary);
  // Reads bf16 and writes 8 bits, or the other way round.
  g.emit(name + ".quantize", StreamingWork{scaled(send, 3, 2)}, {input}, {packed});
  const std::int32_t at = g.emit(name, work, Stream::kExpertComm, {packed}, {arrived});
  g.emit(name + ".dequantize", StreamingWork{scaled(receive, 3, 2)}, {arrived}, {output});
  g.hold({input, packed});
  return at;
}

struct Exchange {
  StorageId output;
  std::int32_t collective = -1;  // position in the forward list
};
Exchange all_to_all(GraphBuilder& g, const MoeSizes& z, const std::string& name, StorageId input,
                    Size send, Size receive) {
  if (g.job().layout.expert == 1) return {input, -1};  // a group of one returns its input
  const StorageId out = g.storage(name + ".output", receive);
  const std::int32_t at = exchange_rows(g, z, name, input, out, send, receive);
  g.on_backward([=](GraphBuilder& b) {
    const StorageId dx = b.storage(name + ".input_gradient", send, StorageRole::kGradient);
    exchange_rows(b, z, name + ".backward", b.gradient(out), dx, receive, send);
    b.add_gradient(input, dx);
  });
  return {out, at};
}

// Each expert's weight is split over ETP cards, which all see the rows of the whole group.
StorageId expert_tensor_gather(GraphBuilder& g, const MoeSizes& z, StorageId input) {
  if (g.job().layout.expert_tensor == 1) return input;
  const Size whole{0, z.row_bytes};
  const Size part = g.graph().storages[input.index()].bytes;
  const StorageId out = g.storage("dispatch.expert_tensor_rows", whole);
  const auto work = [whole](Collective op) {
    return CollectiveWork{op, Group::kExpertTensor, whole, whole, 1};
  };
  g.emit("dispatch.expert_tensor_gather", work(Collective::kAllGather), Stream::kTensorComm,
         {input}, {out});
  g.on_backward([=](GraphBuilder& b) {
    const StorageId dx = b.storage("dispatch.expert_tensor_gradient", part, StorageRole::kGradient);
    b.emit("dispatch.expert_tensor_gather.backward", work(Collective::kReduceScatter),
           Stream::kTensorComm, {b.gradient(out)}, {dx});
    b.add_gradient(input, dx);
  });
  return out;
}

StorageId expert_tensor_reduce(GraphBuilder& g, const MoeSizes& z, StorageId input, Size part) {
  if (g.job().layout.expert_tensor == 1) return input;
  const Size whole{0, z.row_bytes};
  const StorageId out = g.storage("combine.expert_tensor_rows", part);
  const auto work = [whole](Collective op) {
    return CollectiveWork{op, Group::kExpertTensor, whole, whole, 1};
  };
  g.emit("combine.expert_tensor_reduce", work(Collective::kReduceScatter), Stream::kTensorComm,
         {input}, {out});
  g.on_backward([=](GraphBuilder& b) {
    const StorageId dx = b.storage("combine.expert_tensor_gradient", whole, StorageRole::kGradient);
    b.emit("combine.expert_tensor_reduce.backward", work(Collective::kAllGather),
           Stream::kTensorComm, {b.gradient(out)}, {dx});
    b.add_gradient(input, dx);
  });
  return out;
}

StorageId grouped_linear(GraphBuilder& g, const MoeSizes& z, const std::string& name,
                         StorageId input, std::int64_t in, std::int64_t out_width) {
  const Job& job = g.job();
  const auto work = [=, fp32 = job.options.optimizer.main_grad_bytes == kFp32](Pass pass) {
    return GroupedGemmWork{out_width, in, z.local_experts, pass,
                           fp32 && pass == Pass::kBackwardWeight};
  };
  const StorageId out = g.storage(name + ".output", Size{0, kBf16 * out_width});
  g.emit(name, work(Pass::kForward), {input}, {out});
  g.on_backward([=](GraphBuilder& b) {
    const StorageId dx =
        b.storage(name + ".input_gradient", Size{0, kBf16 * in}, StorageRole::kGradient);
    b.emit(name + ".dgrad", work(Pass::kBackwardInput), {b.gradient(out)}, {dx});
    std::vector<StorageId> dummies;
    if (makes_temporary_weight_gradient(b.job().versions, true)) {
      dummies.push_back(b.storage(name + ".dummy_wgrad", kBf16 * z.local_experts * out_width * in,
                                  StorageRole::kTemporary));
    }
    b.emit_weight_gradient(name + ".wgrad", work(Pass::kBackwardWeight), Stream::kCompute,
                           {b.gradient(out), input}, dummies);
    b.add_gradient(input, dx);
  });
  return out;
}

// The shared expert, in Megatron's overlap mode in two halves on a side stream: the first beside
// the dispatch, the second beside the combine. There the gathered input is what is saved.
class SharedExpert {
 public:
  SharedExpert(GraphBuilder& g, StorageId normed)
      : g_(g),
        normed_(normed),
        width_(g.job().model.moe->shared_ffn_hidden_size / g.job().layout.tensor),
        tokens_(rank_tokens(g.job())),
        hidden_(g.job().model.hidden_size) {}

  // Everything at once, on the compute stream.
  StorageId whole() {
    const std::int64_t fc1 = fc1_width();
    const StorageId up = column_linear(g_, "shared_experts.linear_fc1", normed_, hidden_, fc1);
    return row_linear(g_, "shared_experts.linear_fc2", activation(up), width_, hidden_);
  }

  void gather() {
    const Job& job = g_.job();
    const std::int64_t full = kBf16 * tokens_ * hidden_;
    gathered_ = normed_;
    if (!job.layout.splits_sequence()) return;
    gathered_ = g_.storage("shared_experts.gathered_input", full);
    const StorageId normed = normed_;
    const StorageId gathered = gathered_;
    const auto work = [full](Collective op) {
      return CollectiveWork{op, Group::kTensor, {full, 0}, {full, 0}, 1};
    };
    g_.emit("shared_experts.all_gather", work(Collective::kAllGather), Stream::kTensorComm,
            {normed}, {gathered});
    g_.on_backward([=](GraphBuilder& b) {
      const StorageId dx =
          b.storage("shared_experts.input_gradient", b.bytes_of(normed), StorageRole::kGradient);
      b.emit("shared_experts.reduce_scatter.backward", work(Collective::kReduceScatter),
             Stream::kTensorComm, {b.gradient(gathered)}, {dx});
      b.add_gradient(normed, dx);
    });
  }

  void first_half(std::int32_t beside) {
    up_ = side_linear("shared_experts.linear_fc1", gathered_, hidden_, fc1_width(), beside);
    activated_ = activation(up_, Stream::kSharedExpert);
  }

  StorageId second_half(std::int32_t beside) {
    const Job& job = g_.job();
    const StorageId partial =
        side_linear("shared_experts.linear_fc2", activated_, width_, hidden_, beside);
    if (!job.layout.splits_sequence()) return partial;
    const std::int64_t full = kBf16 * tokens_ * hidden_;
    const StorageId out = g_.storage("shared_experts.output", full / job.layout.tensor);
    const auto work = [full](Collective op) {
      return CollectiveWork{op, Group::kTensor, {full, 0}, {full, 0}, 1};
    };
    g_.emit("shared_experts.reduce_scatter", work(Collective::kReduceScatter), Stream::kTensorComm,
            {partial}, {out});
    g_.on_backward([=](GraphBuilder& b) {
      const StorageId dpartial =
          b.storage("shared_experts.output_gradient", full, StorageRole::kGradient);
      b.emit("shared_experts.all_gather.backward", work(Collective::kAllGather),
             Stream::kTensorComm, {b.gradient(out)}, {dpartial});
      b.add_gradient(partial, dpartial);
    });
    return out;
  }

 private:
  std::int64_t fc1_width() const { return g_.job().model.gated() ? 2 * width_ : width_; }

  StorageId activation(StorageId up, Stream stream = Stream::kCompute) {
    const std::int64_t in = kBf16 * tokens_ * fc1_width();
    const std::int64_t out_bytes = kBf16 * tokens_ * width_;
    const StorageId out = g_.storage("shared_experts.activation.output", out_bytes);
    g_.emit("shared_experts.activation", StreamingWork{{in + out_bytes, 0}}, stream, {up}, {out});
    g_.on_backward([=](GraphBuilder& b) {
      const StorageId dx =
          b.storage("shared_experts.activation.input_gradient", in, StorageRole::kGradient);
      b.emit("shared_experts.activation.backward", StreamingWork{{2 * in + out_bytes, 0}}, stream,
             {b.gradient(out), up}, {dx});
      b.add_gradient(up, dx);
    });
    return out;
  }

  // A linear without collectives on the side stream.
  StorageId side_linear(const std::string& name, StorageId input, std::int64_t in,
                        std::int64_t out_width, std::int32_t beside) {
    const Job& job = g_.job();
    const std::int64_t tokens = tokens_;
    const StorageId out = g_.storage(name + ".output", kBf16 * tokens * out_width);
    g_.emit(name, gemm(job, out_width, tokens, in, Pass::kForward), Stream::kSharedExpert, {input},
            {out}, beside);
    g_.on_backward([=](GraphBuilder& b) {
      const StorageId dy = b.gradient(out);
      const StorageId dx =
          b.storage(name + ".input_gradient", kBf16 * tokens * in, StorageRole::kGradient);
      b.emit(name + ".dgrad", gemm(b.job(), out_width, tokens, in, Pass::kBackwardInput),
             Stream::kSharedExpert, {dy}, {dx});
      b.emit_weight_gradient(name + ".wgrad",
                             gemm(b.job(), out_width, tokens, in, Pass::kBackwardWeight),
                             Stream::kSharedExpert, {dy, input}, {});
      b.add_gradient(input, dx);
    });
    return out;
  }

  GraphBuilder& g_;
  StorageId normed_;
  std::int64_t width_;
  std::int64_t tokens_;
  std::int64_t hidden_;
  StorageId gathered_;
  StorageId up_;
  StorageId activated_;
};

// Before the gather over ETP.
Size received_rows(const Job& job, const MoeSizes& z) {
  if (job.layout.expert == 1) return {z.sent_rows * z.row_bytes, 0};
  return {0, z.row_bytes / job.layout.expert_tensor};
}

StorageId experts_and_routing(GraphBuilder& g, StorageId normed);

}  // namespace

std::int64_t rows_sent(const Job& job) {
  const MoeSpec& moe = *job.model.moe;
  const std::int64_t assignments = job.sharded_tokens() * moe.topk;
  if (!job.options.moe_pad_expert_input_to_capacity) return assignments;
  const double balanced = static_cast<double>(assignments) / static_cast<double>(moe.num_experts);
  const auto capacity =
      static_cast<std::int64_t>(std::ceil(balanced * *job.options.moe_expert_capacity_factor));
  return moe.num_experts * capacity;
}

std::int64_t balanced_lane_rows(const Job& job) {
  const bool has_experts = job.model.moe && job.model.num_moe_layers() > 0;
  return has_experts ? rows_sent(job) * job.layout.expert_tensor : 0;
}

StorageId moe_mlp(GraphBuilder& g, StorageId input) {
  const Job& job = g.job();
  RecomputedNorm pre_norm(g, "pre_mlp_layernorm", OffloadModule::kMlpNorm, input);
  const StorageId normed = pre_norm.output();
  const auto layer = [=](GraphBuilder& b) { return std::vector{experts_and_routing(b, normed)}; };
  const StorageId out = job.options.recompute.moe ? g.checkpoint(layer)[0] : layer(g)[0];
  pre_norm.discard();
  return out;
}

namespace {

// Where the experts' rows come from, and what the way back needs.
struct Dispatched {
  StorageId expert_input;
  StorageId row_probabilities;
  StorageId row_id_map;
  StorageId unsort_map;           // invalid with one local expert
  std::vector<StorageId> locals;  // of MoELayer.forward
};

// Permute, all-to-all, sort (MoEAlltoAllTokenDispatcher). `shared`: overlapped, or null.
Dispatched dispatch_all_to_all(GraphBuilder& g, const MoeSizes& z, StorageId normed,
                               const RouterOutputs& routed, SharedExpert* shared) {
  const Job& job = g.job();
  const std::int64_t experts = job.model.moe->num_experts;
  // `rows` counts what the experts of a card compute on; before the gather over ETP it has a part.
  const Size whole_row{0, z.row_bytes};
  const Size sent{z.sent_rows * z.row_bytes, 0};
  const Size received = received_rows(job, z);

  // Permutation by expert. Fused: a map of [tokens, 2 * experts + 1] (TE permutation.py); unfused:
  // the sorted token indices.
  const std::int64_t map_bytes =
      job.options.moe_permute_fusion ? kInt32 * z.tokens * (2 * experts + 1) : kInt64 * z.sent_rows;
  const StorageId row_id_map =
      g.storage("permute.row_id_map", map_bytes, StorageRole::kModuleState);
  const StorageId permuted = g.storage("permute.output", z.row_bytes * z.sent_rows);
  const StorageId permuted_probabilities = g.storage("permute.probabilities", kFp32 * z.sent_rows);
  const std::int64_t permute_traffic = 2 * z.row_bytes * z.sent_rows;
  g.emit("permute", StreamingWork{{permute_traffic, 0}}, {normed, routed.map, routed.probabilities},
         {row_id_map, permuted, permuted_probabilities});
  g.on_backward([=](GraphBuilder& b) {
    const StorageId dx =
        b.storage("permute.input_gradient", z.row_bytes * z.tokens, StorageRole::kGradient);
    const StorageId dprobabilities = b.storage("permute.probabilities_gradient",
                                               kFp32 * z.tokens * experts, StorageRole::kGradient);
    b.emit("permute.backward", StreamingWork{{permute_traffic, 0}},
           {b.gradient(permuted), b.gradient(permuted_probabilities), row_id_map},
           {dx, dprobabilities});
    b.add_gradient(normed, dx);
    b.add_gradient(routed.probabilities, dprobabilities);
  });

  g.set_part(LayerPart::kDispatch);
  const Exchange dispatched = all_to_all(g, z, "dispatch.all_to_all", permuted, sent, received);
  // The probabilities travel by themselves, four bytes a row.
  const StorageId row_probabilities = g.storage("dispatch.probabilities", Size{0, kFp32});
  const CollectiveWork probability_exchange{Collective::kAllToAll,
                                            Group::kExpert,
                                            {kFp32 * z.sent_rows, 0},
                                            {0, kFp32 / job.layout.expert_tensor},
                                            1};
  g.emit("dispatch.probabilities", probability_exchange, Stream::kExpertComm,
         {permuted_probabilities}, {row_probabilities});
  g.on_backward([=](GraphBuilder& b) {
    const StorageId d =
        b.storage("dispatch.probabilities_gradient", kFp32 * z.sent_rows, StorageRole::kGradient);
    CollectiveWork back = probability_exchange;
    std::swap(back.send, back.receive);
    b.emit("dispatch.probabilities.backward", back, Stream::kExpertComm,
           {b.gradient(row_probabilities)}, {d});
    b.add_gradient(permuted_probabilities, d);
  });
  g.set_part(LayerPart::kMlp);
  if (shared != nullptr) shared->first_half(dispatched.collective);
  const StorageId gathered = expert_tensor_gather(g, z, dispatched.output);

  // Chunks of one local expert from all senders become neighbours.
  const bool sorts = z.local_experts > 1;
  StorageId expert_input = gathered;
  StorageId sort_map;
  StorageId unsort_map;
  if (sorts) {
    sort_map = g.storage("dispatch.sort_map", Size{0, kInt32});
    unsort_map = g.storage("combine.sort_map", Size{0, kInt32});
    g.emit("dispatch.sort_map", StreamingWork{}, {routed.map}, {sort_map, unsort_map});
    expert_input = permute_rows(g, {"dispatch.sort", whole_row, 2 * whole_row, sort_map}, gathered);
  }
  return {expert_input, row_probabilities, row_id_map, unsort_map, {permuted, dispatched.output}};
}

struct Combined {
  StorageId output;         // [tokens, hidden]
  StorageId shared_output;  // where it is overlapped
  std::vector<StorageId> locals;
};

// Un-sort, all-to-all, unpermute.
Combined combine_all_to_all(GraphBuilder& g, const MoeSizes& z, const Dispatched& dispatched,
                            StorageId down, SharedExpert* shared) {
  const Job& job = g.job();
  const Size whole_row{0, z.row_bytes};
  const Size sent{z.sent_rows * z.row_bytes, 0};
  const Size received = received_rows(job, z);
  const std::int64_t permute_traffic = 2 * z.row_bytes * z.sent_rows;
  const StorageId row_id_map = dispatched.row_id_map;
  Combined c;

  StorageId unsorted = down;
  if (dispatched.unsort_map.valid()) {
    unsorted =
        permute_rows(g, {"combine.unsort", whole_row, 2 * whole_row, dispatched.unsort_map}, down);
  }
  unsorted = expert_tensor_reduce(g, z, unsorted, received);
  g.set_part(LayerPart::kCombine);
  const Exchange combined = all_to_all(g, z, "combine.all_to_all", unsorted, received, sent);
  if (shared != nullptr) c.shared_output = shared->second_half(combined.collective);

  const StorageId out = g.storage("unpermute.output", z.row_bytes * z.tokens);
  g.emit("unpermute", StreamingWork{{permute_traffic, 0}}, {combined.output, row_id_map}, {out});
  // Locals of MoELayer.forward: the permuted rows, the dispatched ones and, while `combine` runs,
  // its argument.
  c.locals = dispatched.locals;
  c.locals.push_back(unsorted);
  g.hold(c.locals);
  // Before core 0.13 the probabilities are applied here, which saves the experts' outputs.
  const bool saves_combined = job.versions.megatron_core < Version{0, 13};
  g.on_backward([=](GraphBuilder& b) {
    const StorageId dcombined =
        b.storage("unpermute.input_gradient", z.row_bytes * z.sent_rows, StorageRole::kGradient);
    std::vector<StorageId> reads{b.gradient(out), row_id_map};
    if (saves_combined) reads.push_back(combined.output);
    b.emit("unpermute.backward", StreamingWork{{permute_traffic, 0}}, reads, {dcombined});
    b.add_gradient(combined.output, dcombined);
  });
  c.output = out;
  return c;
}

// One exchange that permutes (fused_a2a.py HybridEPDispatch); its buffers are not PyTorch's.
Dispatched dispatch_hybrid_ep(GraphBuilder& g, const MoeSizes& z, StorageId normed,
                              const RouterOutputs& routed) {
  const CollectiveWork exchange{
      Collective::kAllToAll, Group::kExpert, {z.sent_rows * z.row_bytes, 0}, {0, z.row_bytes}, 1};
  Dispatched d;
  d.expert_input = g.storage("dispatch.hybrid_ep.output", Size{0, z.row_bytes});
  d.row_probabilities = g.storage("dispatch.probabilities", Size{0, kFp32});
  g.set_part(LayerPart::kDispatch);
  g.emit("dispatch.hybrid_ep", exchange, Stream::kExpertComm,
         {normed, routed.map, routed.probabilities}, {d.expert_input, d.row_probabilities});
  const std::int64_t cells = z.tokens * g.job().model.moe->num_experts;
  g.on_backward([=](GraphBuilder& b) {
    const StorageId dx = b.storage("dispatch.hybrid_ep.input_gradient", z.row_bytes * z.tokens,
                                   StorageRole::kGradient);
    const StorageId dprobabilities = b.storage("dispatch.hybrid_ep.probabilities_gradient",
                                               kFp32 * cells, StorageRole::kGradient);
    CollectiveWork back = exchange;
    std::swap(back.send, back.receive);
    b.emit("dispatch.hybrid_ep.backward", back, Stream::kExpertComm,
           {b.gradient(d.expert_input), b.gradient(d.row_probabilities)}, {dx, dprobabilities});
    b.add_gradient(normed, dx);
    b.add_gradient(routed.probabilities, dprobabilities);
  });
  g.set_part(LayerPart::kMlp);
  return d;
}

Combined combine_hybrid_ep(GraphBuilder& g, const MoeSizes& z, StorageId down) {
  const CollectiveWork exchange{
      Collective::kAllToAll, Group::kExpert, {0, z.row_bytes}, {z.sent_rows * z.row_bytes, 0}, 1};
  const StorageId out = g.storage("combine.hybrid_ep.output", z.row_bytes * z.tokens);
  g.set_part(LayerPart::kCombine);
  g.emit("combine.hybrid_ep", exchange, Stream::kExpertComm, {down}, {out});
  g.on_backward([=](GraphBuilder& b) {
    const StorageId d =
        b.storage("combine.hybrid_ep.input_gradient", Size{0, z.row_bytes}, StorageRole::kGradient);
    CollectiveWork back = exchange;
    std::swap(back.send, back.receive);
    b.emit("combine.hybrid_ep.backward", back, Stream::kExpertComm, {b.gradient(out)}, {d});
    b.add_gradient(down, d);
  });
  return {out, {}, {down}};
}

// MoELayer.forward: what --recompute-modules moe runs again.
StorageId experts_and_routing(GraphBuilder& g, StorageId normed) {
  const Job& job = g.job();
  const MoeSizes z = moe_sizes(job);
  const bool padded = job.options.moe_pad_expert_input_to_capacity;
  const bool shares = job.model.moe->shared_ffn_hidden_size > 0;
  const bool overlaps = shares && job.options.moe_shared_expert_overlap;
  const RouterOutputs routed = router(g, z, normed);
  // Dropless dispatch reads the received counts on the CPU; padded dispatch never does.
  if (!padded) g.emit("gate", HostWaitWork{}, {routed.map}, {});

  SharedExpert shared(g, normed);
  StorageId shared_output;
  const auto share = [&] {
    const auto whole = [=](GraphBuilder& b) {
      return std::vector{SharedExpert(b, normed).whole()};
    };
    shared_output = job.options.recompute.shared_experts ? g.checkpoint(whole)[0] : whole(g)[0];
  };
  if (overlaps) shared.gather();
  if (shares && !overlaps && !job.combines_slots()) share();

  SharedExpert* const beside = overlaps ? &shared : nullptr;
  const bool hybrid = job.options.moe_dispatcher == MoeDispatcher::kHybridEp;
  const Dispatched dispatched = hybrid ? dispatch_hybrid_ep(g, z, normed, routed)
                                       : dispatch_all_to_all(g, z, normed, routed, beside);
  const StorageId row_probabilities = dispatched.row_probabilities;
  if (shares && job.combines_slots()) share();  // with the experts

  const StorageId up = g.offloadable(OffloadModule::kExpertFc1, [=](GraphBuilder& b) {
    return std::vector{
        grouped_linear(b, z, "experts.linear_fc1", dispatched.expert_input, z.hidden, z.fc1_width)};
  })[0];
  const Size up_bytes{0, kBf16 * z.fc1_width};
  const Size activated_bytes{0, kBf16 * z.fc2_width};
  const auto activate = [=](GraphBuilder& f) {
    const StorageId out = f.storage("experts.activation.output", activated_bytes);
    f.emit("experts.activation", StreamingWork{up_bytes + activated_bytes}, {up, row_probabilities},
           {out});
    f.on_backward([=](GraphBuilder& b) {
      const StorageId dup =
          b.storage("experts.activation.input_gradient", up_bytes, StorageRole::kGradient);
      const StorageId dprobabilities = b.storage("experts.activation.probabilities_gradient",
                                                 Size{0, kFp32}, StorageRole::kGradient);
      b.emit("experts.activation.backward", StreamingWork{2 * up_bytes + activated_bytes},
             {b.gradient(out), up, row_probabilities}, {dup, dprobabilities});
      b.add_gradient(up, dup);
      b.add_gradient(row_probabilities, dprobabilities);
    });
    return std::vector{out};
  };
  GraphBuilder::DiscardedOutput discarded;
  if (job.options.recompute.moe_act) discarded = g.checkpoint_without_output(activate);
  const StorageId activated = job.options.recompute.moe_act
                                  ? discarded.outputs()[0]
                                  : g.offloadable(OffloadModule::kMoeAct, activate)[0];
  const StorageId down =
      grouped_linear(g, z, "experts.linear_fc2", activated, z.fc2_width, z.hidden);
  if (job.options.recompute.moe_act) g.discard_and_recompute(discarded);

  const Combined combined =
      hybrid ? combine_hybrid_ep(g, z, down) : combine_all_to_all(g, z, dispatched, down, beside);
  const StorageId out = combined.output;
  if (overlaps) shared_output = combined.shared_output;
  if (!shares) return out;

  const std::int64_t bytes = z.row_bytes * z.tokens;
  const StorageId total = g.storage("moe.output", bytes);
  g.emit("add_shared_expert", StreamingWork{{3 * bytes, 0}}, {out, shared_output}, {total});
  g.hold(combined.locals);
  g.on_backward([=](GraphBuilder& b) {
    b.add_gradient(out, b.gradient(total));
    b.add_gradient(shared_output, b.gradient(total));
  });
  return total;
}

}  // namespace

}  // namespace tidemark
