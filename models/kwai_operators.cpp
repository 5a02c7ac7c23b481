#include "models/kwai_operators.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "models/layer_operators.h"
#include "models/linear_operators.h"

namespace tidemark {
namespace {

// Bytes of the tensors of a layer, bf16.
struct Sizes {
  explicit Sizes(const Job& job)
      : hidden(kBf16 * job.sharded_tokens() * job.model.hidden_size),
        gathered_hidden(kBf16 * rank_tokens(job) * job.model.hidden_size),
        heads(kBf16 * rank_tokens(job) * job.model.attention.num_heads *
              job.model.attention.head_dim / job.layout.tensor),
        gathered_key_value(2 * heads * job.layout.context),
        ffn(kBf16 * rank_tokens(job) * job.model.ffn_hidden_size / job.layout.tensor) {}

  std::int64_t hidden;              // [sharded tokens, hidden]
  std::int64_t gathered_hidden;     // [rank tokens, hidden]
  std::int64_t heads;               // query, key, value or attention output of a rank
  std::int64_t gathered_key_value;  // of all context-parallel ranks
  std::int64_t ffn;                 // half of fc1's output
};

// Into or out of a buffer that is kept for ever. Returns: a storage without bytes to wait for.
StorageId gather(GraphBuilder& b, const std::string& name, StorageId input) {
  if (b.job().layout.tensor == 1) return input;
  const std::int64_t bytes = Sizes(b.job()).gathered_hidden;
  const StorageId gathered = b.storage(name + ".gathered", 0);
  b.emit(name + ".all_gather",
         CollectiveWork{Collective::kAllGather, Group::kTensor, {bytes, 0}, {bytes, 0}, 1},
         Stream::kTensorComm, {input}, {gathered});
  return gathered;
}

StorageId reduce_scatter(GraphBuilder& b, const std::string& name, StorageId partial,
                         StorageRole role) {
  if (b.job().layout.tensor == 1) return partial;
  const Sizes sizes(b.job());
  const std::int64_t bytes = sizes.gathered_hidden;
  const StorageId out = b.storage(name + ".scattered", sizes.hidden, role);
  b.emit(name + ".reduce_scatter",
         CollectiveWork{Collective::kReduceScatter, Group::kTensor, {bytes, 0}, {bytes, 0}, 1},
         Stream::kTensorComm, {partial}, {out});
  return out;
}

CollectiveWork context_collective(const Job& job, Collective op) {
  const std::int64_t bytes = Sizes(job).gathered_key_value;
  return {op, Group::kContext, {bytes, 0}, {bytes, 0}, 1};
}

// What a column-parallel linear reads: the output of a norm that is a module by itself, or of one
// inside the linear, which then saves the norm's input only.
struct Operand {
  StorageId value;
  StorageId rstd;  // valid: the norm is inside
};

Operand normalize_inside(GraphBuilder& b, const std::string& name, StorageId input) {
  const Job& job = b.job();
  const Operand x{b.storage(name + ".norm.output", b.bytes_of(input)),
                  b.storage(name + ".norm.rstd", kFp32 * job.sharded_tokens())};
  b.emit(name + ".norm", NormWork{job.sharded_tokens(), job.model.hidden_size, Direction::kForward},
         {input}, {x.value, x.rstd});
  return x;
}

Operand normalize(GraphBuilder& g, const std::string& name, StorageId input) {
  const Job& job = g.job();
  if (job.options.recompute.layernorm) return normalize_inside(g, name, input);
  return {norm(g, name + ".norm", input, job.sharded_tokens(), job.model.hidden_size), {}};
}

// Ends a linear's backward: `dx` is the gradient of `x`, `locals` what its function still names.
void return_gradient(GraphBuilder& b, const std::string& name, StorageId input, const Operand& x,
                     StorageId dx, std::vector<StorageId> locals) {
  if (!x.rstd.valid()) {
    b.hold(std::move(locals));
    b.add_gradient(x.value, dx);
    return;
  }
  const Job& job = b.job();
  const StorageId of_input =
      b.storage(name + ".norm.input_gradient", b.bytes_of(input), StorageRole::kGradient);
  b.emit(name + ".norm.backward",
         NormWork{job.sharded_tokens(), job.model.hidden_size, Direction::kBackward},
         {dx, input, x.rstd}, {of_input});
  locals.push_back(x.value);
  b.hold(std::move(locals));
  b.add_gradient(input, of_input);
}

// [sharded tokens, hidden] -> [rank tokens, width], its norm before it.
StorageId column_parallel(GraphBuilder& g, const std::string& name, StorageId input,
                          std::int64_t width) {
  const Job& job = g.job();
  const Sizes sizes(job);
  const std::int64_t tokens = rank_tokens(job);
  const std::int64_t hidden = job.model.hidden_size;
  const bool again = job.options.recompute.layernorm;

  const Operand x = normalize(g, name, input);
  const StorageId gathered = gather(g, name, x.value);
  const StorageId out = g.storage(name + ".output", kBf16 * tokens * width);
  g.emit(name, gemm(job, width, tokens, hidden, Pass::kForward), {gathered}, {out});
  if (again) g.hold({x.value, x.rstd});
  g.on_backward([=](GraphBuilder& b) {
    const StorageId dy = b.gradient(out);
    const Operand x_again = again ? normalize_inside(b, name, input) : x;
    const StorageId gathered_again = gather(b, name, x_again.value);
    const StorageId partial =
        b.storage(name + ".full_input_gradient", sizes.gathered_hidden, StorageRole::kGradient);
    b.emit(name + ".dgrad", gemm(b.job(), width, tokens, hidden, Pass::kBackwardInput), {dy},
           {partial});
    const StorageId dx = reduce_scatter(b, name + ".backward", partial, StorageRole::kGradient);
    b.emit(name + ".wgrad", gemm(b.job(), width, tokens, hidden, Pass::kBackwardWeight),
           {dy, gathered_again, x_again.value}, {});
    return_gradient(b, name, input, x_again, dx, {partial, dy});
  });
  return out;
}

struct Heads {
  StorageId query;
  StorageId key_value;  // gathered
};

// V, K, Q one after the other, K and V gathered over the context-parallel ranks beside Q.
Heads query_key_value(GraphBuilder& g, StorageId input) {
  const Job& job = g.job();
  const Sizes sizes(job);
  const std::int64_t tokens = rank_tokens(job);
  const std::int64_t hidden = job.model.hidden_size;
  const std::int64_t width =
      job.model.attention.num_heads * job.model.attention.head_dim / job.layout.tensor;
  const bool again = job.options.recompute.layernorm;
  const GemmWork product = gemm(job, width, tokens, hidden, Pass::kForward);
  const RotaryWork rotary{sizes.heads / kBf16, Direction::kForward};

  const Operand x = normalize(g, "linear_qkv", input);
  const StorageId gathered = gather(g, "linear_qkv", x.value);
  const StorageId key_value = g.storage("gathered_key_value", sizes.gathered_key_value);
  const StorageId value = g.storage("value", sizes.heads);
  const StorageId key = g.storage("key", sizes.heads);
  const StorageId rotated_key = g.storage("rotated_key", sizes.heads);
  const StorageId unrotated_query = g.storage("unrotated_query", sizes.heads);
  const StorageId query = g.storage("query", sizes.heads);
  g.emit("linear_v", product, {gathered}, {key_value, value});
  g.emit("linear_k", product, {gathered}, {key});
  g.emit("rotary_key", rotary, {key}, {rotated_key});
  g.emit("linear_q", product, {gathered}, {unrotated_query});
  g.emit("gather_key_value", context_collective(job, Collective::kAllGather), Stream::kContextComm,
         {value, rotated_key}, {key_value});
  if (again) g.hold({x.value, x.rstd});
  g.emit("rotary_query", rotary, {unrotated_query}, {query});

  g.on_backward([=](GraphBuilder& b) {
    const auto gradient = [&](const char* name, std::int64_t bytes) {
      return b.storage(name, bytes, StorageRole::kGradient);
    };
    const RotaryWork back{sizes.heads / kBf16, Direction::kBackward};
    const GemmWork dgrad = gemm(b.job(), width, tokens, hidden, Pass::kBackwardInput);
    const StorageId dkv = b.gradient(key_value);
    const StorageId dquery = gradient("query_gradient", sizes.heads);
    b.emit("rotary_query.backward", back, {b.gradient(query)}, {dquery});
    const Operand x_again = again ? normalize_inside(b, "linear_qkv", input) : x;
    const StorageId gathered_again = gather(b, "linear_qkv", x_again.value);
    const StorageId drotated_key = gradient("rotated_key_gradient", sizes.heads);
    const StorageId partial = gradient("linear_qkv.full_input_gradient", sizes.gathered_hidden);
    const StorageId dvalue = gradient("value_gradient", sizes.heads);
    const StorageId dkey = gradient("key_gradient", sizes.heads);
    const StorageId packed = gradient("packed_qkv_gradient", 3 * sizes.heads);
    b.emit("scatter_key_value_gradient", context_collective(b.job(), Collective::kReduceScatter),
           Stream::kContextComm, {dkv}, {drotated_key, dvalue});
    b.emit("linear_q.dgrad", dgrad, {dquery}, {partial});
    b.emit("rotary_key.backward", back, {drotated_key}, {dkey});
    b.emit("linear_k.dgrad", dgrad, {dkey}, {partial});
    b.emit("linear_v.dgrad", dgrad, {dvalue}, {partial});
    b.emit("pack_qkv_gradient", StreamingWork{{6 * sizes.heads, 0}}, {dquery, dkey, dvalue},
           {packed});
    const StorageId dx = reduce_scatter(b, "linear_qkv.backward", partial, StorageRole::kGradient);
    b.emit("linear_qkv.wgrad", gemm(b.job(), 3 * width, tokens, hidden, Pass::kBackwardWeight),
           {packed, gathered_again, x_again.value}, {});
    return_gradient(b, "linear_qkv", input, x_again, dx,
                    {partial, packed, dquery, dkey, dvalue, dkv});
  });
  return {query, key_value};
}

// One of the two calls of a rank.
AttentionWork half_attention(const Job& job, Direction direction) {
  AttentionWork work = attention_work(job, direction);
  work.context_ranks *= 2;
  return work;
}

// `again`: K and V as the backward has gathered them.
StorageId attention(GraphBuilder& g, const Heads& heads, StorageId again) {
  const Job& job = g.job();
  const Sizes sizes(job);
  const std::int64_t c = job.layout.context;
  const std::int64_t lse_bytes =
      kFp32 * rank_tokens(job) / 2 * job.model.attention.num_heads / job.layout.tensor;
  const StorageId out = g.storage("attention.output", sizes.heads);
  StorageId lse[2];
  StorageId half[2];
  for (int i = 0; i < 2; ++i) {
    half[i] = g.storage("attention.half_output", sizes.heads / 2);
    lse[i] = g.storage("attention.logsumexp", lse_bytes);
    g.emit("attention", half_attention(job, Direction::kForward), {heads.query, heads.key_value},
           {half[i], lse[i]});
  }
  g.emit("attention.concatenate", StreamingWork{{2 * sizes.heads, 0}}, {half[0], half[1]}, {out});

  // Rank r has pieces r and 2c - 1 - r of the 2c pieces of the sequence. The gradients of the keys
  // that the shorter of its calls sees lie in a tensor of their own: of the rank with most.
  std::int64_t shorter = 0;
  for (std::int64_t r = 0; r < c; ++r)
    shorter = std::max(shorter, std::min(2 * r + 1, 2 * (c - r)));
  const std::int64_t shorter_bytes = sizes.gathered_key_value / (2 * c) * shorter;
  g.on_backward([=, query = heads.query, key_value = heads.key_value, first = lse[0],
                 second = lse[1]](GraphBuilder& b) {
    const StorageId dout = b.gradient(out);
    const StorageId dq = b.storage("rotated_query_gradient", sizes.heads, StorageRole::kGradient);
    const StorageId dkv =
        b.storage("gathered_key_value_gradient", sizes.gathered_key_value, StorageRole::kGradient);
    const StorageId dshorter =
        b.storage("shorter_key_value_gradient", shorter_bytes, StorageRole::kTemporary);
    std::vector<StorageId> writes{dq, dkv, dshorter};
    for (const StorageId saved : {first, second}) {
      // flash-attn: the product of output and its gradient, and dq of half the queries in fp32.
      writes.push_back(b.storage("attention.row_product", lse_bytes, StorageRole::kTemporary));
      writes.push_back(b.storage("attention.query_gradient_fp32", kFp32 * sizes.heads / kBf16 / 2,
                                 StorageRole::kTemporary));
      b.emit("attention.backward", half_attention(b.job(), Direction::kBackward),
             {dout, query, again, out, saved}, writes);
      writes.clear();
    }
    b.emit("attention.add_shorter", StreamingWork{{3 * shorter_bytes, 0}}, {dshorter, dkv}, {dkv});
    b.hold({again, dout, query, out, first, second});
    b.add_gradient(query, dq);
    b.replace_gradient(key_value, dkv);
  });
  return out;
}

// Without context parallelism: one product of which Q, K and V are views, RoPE on two of them, a
// copy of the third, and one call of the attention kernel.
struct Attended {
  StorageId output;
  StorageId held;  // the product's output: until the attention module returns
};

Attended attention_of_one(GraphBuilder& g, StorageId input) {
  const Job& job = g.job();
  const Sizes sizes(job);
  const AttentionSpec& a = job.model.attention;
  const std::int64_t tokens = rank_tokens(job);
  const std::int64_t heads = a.num_heads / job.layout.tensor;
  const std::int64_t groups = a.num_query_groups / job.layout.tensor;
  const std::int64_t key_bytes = sizes.heads / heads * groups;
  const StorageId mixed =
      column_parallel(g, "linear_qkv", input, (heads + 2 * groups) * a.head_dim);
  const auto rotary = [](std::int64_t bytes, Direction direction) {
    return RotaryWork{bytes / kBf16, direction};
  };
  StorageId unrotated_query = mixed;
  if (groups < heads) {  // heads of several groups are not one view
    unrotated_query = g.storage("unrotated_query", sizes.heads);
    g.emit("copy_query", StreamingWork{{2 * sizes.heads, 0}}, {mixed}, {unrotated_query});
  }
  const StorageId query = g.storage("query", sizes.heads);
  const StorageId key = g.storage("key", key_bytes);
  const StorageId value = g.storage("value", key_bytes);
  const StorageId out = g.storage("attention.output", sizes.heads);
  const StorageId lse = g.storage("attention.logsumexp", kFp32 * tokens * heads);
  g.emit("rotary_query", rotary(sizes.heads, Direction::kForward), {unrotated_query}, {query});
  g.emit("rotary_key", rotary(key_bytes, Direction::kForward), {mixed}, {key});
  g.emit("copy_value", StreamingWork{{2 * key_bytes, 0}}, {mixed}, {value});
  g.emit("attention", attention_work(job, Direction::kForward), {query, key, value}, {out, lse});
  g.on_backward([=](GraphBuilder& b) {
    const auto gradient = [&](const char* name, std::int64_t bytes) {
      return b.storage(name, bytes, StorageRole::kGradient);
    };
    const auto temporary = [&](const char* name, std::int64_t bytes) {
      return b.storage(name, bytes, StorageRole::kTemporary);
    };
    const StorageId drotated_query = gradient("rotated_query_gradient", sizes.heads);
    const StorageId drotated_key = gradient("rotated_key_gradient", key_bytes);
    const StorageId dvalue = gradient("value_gradient", key_bytes);
    // flash-attn: the product of output and its gradient, dq in fp32, and gradients of K and V for
    // each head, which are then added up.
    std::vector<StorageId> writes{
        drotated_query, drotated_key, dvalue,
        temporary("attention.row_product", kFp32 * tokens * heads),
        temporary("attention.query_gradient_fp32", kFp32 * sizes.heads / kBf16)};
    if (groups < heads) writes.push_back(temporary("attention.gradients_by_head", 2 * sizes.heads));
    b.emit("attention.backward", attention_work(b.job(), Direction::kBackward),
           {b.gradient(out), query, key, value, out, lse}, writes);
    const StorageId dkey = gradient("key_gradient", key_bytes);
    const StorageId dquery = gradient("query_gradient", sizes.heads);
    const std::int64_t packed_bytes = sizes.heads + 2 * key_bytes;
    const StorageId packed = gradient("packed_qkv_gradient", packed_bytes);
    b.emit("rotary_key.backward", rotary(key_bytes, Direction::kBackward), {drotated_key}, {dkey});
    b.emit("rotary_query.backward", rotary(sizes.heads, Direction::kBackward), {drotated_query},
           {dquery});
    b.emit("pack_qkv_gradient", StreamingWork{{2 * packed_bytes, 0}}, {dquery, dkey, dvalue},
           {packed});
    b.replace_gradient(mixed, packed);
  });
  return {out, mixed};
}

// [rank tokens, in] -> [sharded tokens, hidden]. `held`: named while the backward runs; invalid:
// nothing is.
StorageId projection(GraphBuilder& g, StorageId input, StorageId held) {
  const Job& job = g.job();
  const Sizes sizes(job);
  const std::int64_t tokens = rank_tokens(job);
  const std::int64_t hidden = job.model.hidden_size;
  const std::int64_t width =
      job.model.attention.num_heads * job.model.attention.head_dim / job.layout.tensor;
  const StorageId partial = g.storage("linear_proj.partial_output", sizes.gathered_hidden);
  g.emit("linear_proj", gemm(job, hidden, tokens, width, Pass::kForward), {input}, {partial});
  const StorageId out = reduce_scatter(g, "linear_proj", partial, StorageRole::kActivation);
  g.on_backward([=](GraphBuilder& b) {
    const StorageId dy = gather(b, "linear_proj.backward", b.gradient(out));
    const StorageId dx =
        b.storage("linear_proj.input_gradient", sizes.heads, StorageRole::kGradient);
    b.emit("linear_proj.dgrad", gemm(b.job(), hidden, tokens, width, Pass::kBackwardInput), {dy},
           {dx});
    b.emit("linear_proj.wgrad", gemm(b.job(), hidden, tokens, width, Pass::kBackwardWeight),
           {dy, input}, {});
    if (held.valid()) b.hold({held});
    b.add_gradient(input, dx);
  });
  return out;
}

struct Activated {
  StorageId silu;
  StorageId product;
};

Activated activate(GraphBuilder& b, StorageId gate_up) {
  const std::int64_t ffn = Sizes(b.job()).ffn;
  const Activated out{b.storage("silu", ffn), b.storage("swiglu", ffn)};
  b.emit("silu", StreamingWork{{2 * ffn, 0}}, {gate_up}, {out.silu});
  b.emit("swiglu", StreamingWork{{3 * ffn, 0}}, {gate_up, out.silu}, {out.product});
  return out;
}

// SwiGLU and fc2.
StorageId activate_and_project(GraphBuilder& g, StorageId gate_up) {
  const Job& job = g.job();
  const Sizes sizes(job);
  const std::int64_t tokens = rank_tokens(job);
  const std::int64_t hidden = job.model.hidden_size;
  const std::int64_t width = job.model.ffn_hidden_size / job.layout.tensor;
  const bool again = job.options.recompute.mlp_act;
  if (!again) g.graph().storages[gate_up.index()].saved_as_views = true;

  const Activated x = activate(g, gate_up);
  const StorageId partial = g.storage("linear_fc2.partial_output", sizes.gathered_hidden);
  g.emit("linear_fc2", gemm(job, hidden, tokens, width, Pass::kForward), {x.product}, {partial});
  const StorageId out = reduce_scatter(g, "linear_fc2", partial, StorageRole::kActivation);
  g.hold({x.product});
  g.on_backward([=](GraphBuilder& b) {
    const auto gradient = [&](const char* name, std::int64_t bytes) {
      return b.storage(name, bytes, StorageRole::kGradient);
    };
    const Activated x_again = again ? activate(b, gate_up) : x;
    const StorageId dy = gather(b, "linear_fc2.backward", b.gradient(out));
    const StorageId dproduct = gradient("linear_fc2.input_gradient", sizes.ffn);
    const StorageId dsilu = gradient("silu_gradient", sizes.ffn);
    const StorageId dup = gradient("up_gradient", sizes.ffn);
    const StorageId dgate = gradient("gate_gradient", sizes.ffn);
    const StorageId dgate_up = gradient("gate_up_gradient", 2 * sizes.ffn);
    b.emit("linear_fc2.dgrad", gemm(b.job(), hidden, tokens, width, Pass::kBackwardInput), {dy},
           {dproduct});
    b.emit("linear_fc2.wgrad", gemm(b.job(), hidden, tokens, width, Pass::kBackwardWeight),
           {dy, x_again.product}, {});
    b.emit("swiglu.backward", StreamingWork{{5 * sizes.ffn, 0}}, {dproduct, x_again.silu, gate_up},
           {dsilu, dup});
    b.emit("silu.backward", StreamingWork{{3 * sizes.ffn, 0}}, {dsilu, gate_up}, {dgate});
    b.emit("concatenate_gate_up", StreamingWork{{4 * sizes.ffn, 0}}, {dgate, dup}, {dgate_up});
    if (again) b.hold({dproduct, x_again.product, gate_up});
    b.replace_gradient(gate_up, dgate_up);
  });
  return out;
}

}  // namespace

StorageId kwai_layer(GraphBuilder& g, StorageId input) {
  const std::int64_t gate_and_up = 2 * g.job().model.ffn_hidden_size / g.job().layout.tensor;
  if (g.job().layout.context == 1) {
    const Attended attended = attention_of_one(g, input);
    const StorageId projected = projection(g, attended.output, {});
    g.hold({attended.held});
    const StorageId x = bias_dropout_add(g, "self_attn_bda", projected, input);
    const StorageId mlp = activate_and_project(g, column_parallel(g, "linear_fc1", x, gate_and_up));
    const StorageId out = bias_dropout_add(g, "mlp_bda", mlp, x);
    g.hold({projected, input});  // names of the layer's forward
    return out;
  }
  const Job& job = g.job();
  const Sizes sizes(job);
  const StorageId shard =
      g.storage("key_value_shard", sizes.gathered_key_value / job.layout.context);
  const StorageId gathered_again =
      g.storage("gathered_key_value_again", sizes.gathered_key_value, StorageRole::kTemporary);

  const Heads heads = query_key_value(g, input);
  const StorageId attended = attention(g, heads, gathered_again);
  // The handle of the second gather holds the shard until the attention's backward waits for it.
  const StorageId projected = projection(g, attended, shard);
  const StorageId x = bias_dropout_add(g, "self_attn_bda", projected, input);
  const StorageId mlp = activate_and_project(g, column_parallel(g, "linear_fc1", x, gate_and_up));
  g.emit("clone_key_value_shard", StreamingWork{{2 * g.bytes_of(shard), 0}}, {heads.key_value},
         {shard});
  g.on_backward([=](GraphBuilder& b) {
    b.emit("gather_key_value_again", context_collective(b.job(), Collective::kAllGather),
           Stream::kContextComm, {shard}, {gathered_again});
  });
  const StorageId out = bias_dropout_add(g, "mlp_bda", mlp, x);
  g.hold({projected, heads.key_value, input});  // names of the layer's forward
  return out;
}

}  // namespace tidemark
