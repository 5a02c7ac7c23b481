#include "models/layer_operators.h"
#include "models/linear_operators.h"
#include "models/parameters.h"

namespace tidemark {
namespace {

struct HeadWidths {
  std::int64_t query = 0;  // of all heads on this card
  std::int64_t key = 0;
  std::int64_t value = 0;
  std::int64_t output = 0;
};

HeadWidths widths(const Job& job) {
  const AttentionSpec& a = job.model.attention;
  const std::int64_t heads = a.num_heads / job.layout.tensor;
  const bool latent = a.kind == AttentionKind::kMultiLatent;
  const std::int64_t groups = latent ? heads : a.num_query_groups / job.layout.tensor;
  return {heads * a.query_dim(), groups * a.query_dim(), groups * a.value_dim(),
          heads * a.value_dim()};
}

CollectiveWork context_collective(Collective op, std::int64_t bytes) {
  return {op, Group::kContext, {bytes, 0}, {bytes, 0}, 1};
}

// A copy between [sequence, batch, ..] and [batch, sequence, ..]; free where one of them is 1 long.
StorageId transpose_batch(GraphBuilder& g, const std::string& name, StorageId input) {
  const std::int64_t bytes = g.bytes_of(input);
  const Size traffic{2 * bytes, 0};
  return elementwise(g, {name, {bytes, 0}, traffic, traffic}, input);
}

// All-to-all context parallelism trades the sequence split for a split of heads (Ulysses).
StorageId exchange_heads(GraphBuilder& g, const std::string& name, StorageId input) {
  const std::int64_t bytes = g.bytes_of(input);
  const StorageId out = g.storage(name + ".output", bytes);
  g.emit(name, context_collective(Collective::kAllToAll, bytes), Stream::kContextComm, {input},
         {out});
  g.on_backward([=](GraphBuilder& b) {
    const StorageId dx = b.storage(name + ".input_gradient", bytes, StorageRole::kGradient);
    b.emit(name + ".backward", context_collective(Collective::kAllToAll, bytes),
           Stream::kContextComm, {b.gradient(out)}, {dx});
    b.add_gradient(input, dx);
  });
  return out;
}

bool rotates(const ModelSpec& m) {
  return m.position_embedding == PositionEmbedding::kRope ||
         m.position_embedding == PositionEmbedding::kYarn;
}

// Eager RoPE (rope_utils.py _apply_rotary_pos_emb_bshd) reads or writes its operand about this many
// times in each direction: two products with cos and sin, a half rotation, an addition, and MLA's
// concatenations around them. reference: operator lists of the source; no kernel is measured.
constexpr std::int64_t kUnfusedRotaryPasses = 12;

// cos and sin in bf16, saved by each of `calls` products: [sequence, dim] each.
std::vector<StorageId> rotary_tables(GraphBuilder& g, const std::string& name, int calls,
                                     std::int64_t dim) {
  std::vector<StorageId> tables;
  for (int call = 0; call < calls; ++call) {
    for (const char* part : {".cos", ".sin"}) {
      tables.push_back(g.storage(name + part, kBf16 * g.job().rank_sequence() * dim));
    }
  }
  return tables;
}

// Fused RoPE saves only the frequencies, which the module caches.
StorageId rotate(GraphBuilder& g, const std::string& name, StorageId input, std::int64_t dim) {
  const std::int64_t bytes = g.bytes_of(input);
  const bool fused = g.job().options.apply_rope_fusion;
  const auto work = [=](Direction direction) -> Work {
    if (fused) return RotaryWork{bytes / kBf16, direction};
    return StreamingWork{{kUnfusedRotaryPasses * bytes, 0}};
  };
  const StorageId out = g.storage(name + ".output", bytes);
  std::vector<StorageId> tables;
  if (!fused) tables = rotary_tables(g, name, 1, dim);
  std::vector<StorageId> writes{out};
  writes.insert(writes.end(), tables.begin(), tables.end());
  g.emit(name, work(Direction::kForward), {input}, writes);
  g.on_backward([=](GraphBuilder& b) {
    const StorageId dx = b.storage(name + ".input_gradient", bytes, StorageRole::kGradient);
    std::vector<StorageId> reads{b.gradient(out)};
    reads.insert(reads.end(), tables.begin(), tables.end());
    b.emit(name + ".backward", work(Direction::kBackward), reads, {dx});
    b.add_gradient(input, dx);
  });
  return out;
}

// What MLA's down-projection makes: the latent vector, on sharded tokens, and the part of the key
// that carries the position, on all tokens of the rank.
struct LatentParts {
  StorageId latent;
  StorageId position;
};

// [sharded, hidden] -> latent [sharded, rank] and position [rank tokens, rope]; rope may be 0.
// Core before 0.14 splits the weight over TP and gathers twice, over the sequence before and over
// the features after; the query's latent is then a view that keeps the gathered storage, the
// key-value's a copy. Later cores replicate the weight on the sharded tokens.
LatentParts down_projection(GraphBuilder& g, const std::string& name, StorageId input,
                            std::int64_t rank, std::int64_t rope) {
  const Job& job = g.job();
  const std::int64_t h = job.model.hidden_size;
  const std::int64_t t = job.layout.tensor;
  const std::int64_t tokens = rank_tokens(job);
  const std::int64_t sharded = job.sharded_tokens();
  const std::int64_t width = rank + rope;
  const bool split = mla_down_projection_is_split(job.versions) && t > 1;

  StorageId full;  // [rank tokens or sharded tokens, width]
  const std::int64_t full_bytes = kBf16 * (split ? tokens : sharded) * width;
  const auto gather_features = [full_bytes](Collective op) {
    return CollectiveWork{op, Group::kTensor, {full_bytes, 0}, {full_bytes, 0}, 1};
  };
  if (split) {
    const StorageId part = column_linear(g, name, input, h, width / t);
    full = g.storage(name + ".gathered_output", full_bytes);
    g.emit(name + ".gather_output", gather_features(Collective::kAllGather), Stream::kTensorComm,
           {part}, {full});
    g.on_backward([=](GraphBuilder& b) {
      // The gradient of a gather over features is a split of what every rank already has.
      const StorageId dpart =
          b.storage(name + ".output_gradient", full_bytes / t, StorageRole::kGradient);
      b.emit(name + ".split_gradient", StreamingWork{{2 * full_bytes / t, 0}}, {b.gradient(full)},
             {dpart});
      b.add_gradient(part, dpart);
    });
  } else {
    full = replicated_linear(g, name, input, sharded, h, width);
  }
  if (rope == 0 && (!split || !job.layout.splits_sequence())) return {full, {}};

  const bool scatters = job.layout.splits_sequence();
  const std::int64_t latent_bytes = kBf16 * sharded * rank;
  const std::int64_t position_bytes = kBf16 * tokens * rope;
  // The query's latent is a view of the gathered output: reading it keeps the whole storage.
  const StorageId latent = rope == 0 ? full : g.storage(name + ".latent", latent_bytes);
  StorageId position;
  if (rope > 0) {
    g.emit(name + ".copy_latent", StreamingWork{{2 * latent_bytes, 0}}, {full}, {latent});
    position = full;
    if (!split && scatters) {
      position = g.storage(name + ".position", position_bytes);
      g.emit(
          name + ".gather_position",
          CollectiveWork{
              Collective::kAllGather, Group::kTensor, {position_bytes, 0}, {position_bytes, 0}, 1},
          Stream::kTensorComm, {full}, {position});
    }
  }
  g.on_backward([=](GraphBuilder& b) {
    // Gradients of both parts come together in one tensor of the projection's output.
    const StorageId dfull = b.storage(name + ".full_gradient", full_bytes, StorageRole::kGradient);
    std::vector<StorageId> parts{rope == 0 ? b.gradient(full) : b.gradient(latent)};
    if (rope > 0) parts.push_back(b.gradient(position));
    if (scatters) {
      b.emit(name + ".gather_gradient",
             gather_features(split ? Collective::kAllGather : Collective::kReduceScatter),
             Stream::kTensorComm, parts, {dfull});
    } else {
      b.emit(name + ".concat_gradient", StreamingWork{{2 * full_bytes, 0}}, parts, {dfull});
    }
    b.replace_gradient(full, dfull);
  });
  return {latent, position};
}

// Norm over the latent (if the model has one) and the column-parallel projection to the heads.
StorageId up_projection(GraphBuilder& g, const std::string& name, StorageId latent,
                        std::int64_t rank, std::int64_t out_shard) {
  StorageId operand = latent;
  if (g.job().model.attention.qk_layernorm) {
    operand = norm(g, name + ".layer_norm", latent, g.job().sharded_tokens(), rank);
  }
  return column_linear(g, name, operand, rank, out_shard);
}

// Query, key and value of all heads of the card from the latent vectors.
std::vector<StorageId> up_and_rotate(GraphBuilder& g, StorageId query_up, const LatentParts& kv) {
  const Job& job = g.job();
  const AttentionSpec& a = job.model.attention;
  const std::int64_t tokens = rank_tokens(job);
  const std::int64_t heads = a.num_heads / job.layout.tensor;
  const HeadWidths w = widths(job);
  const std::int64_t rope = a.qk_pos_emb_head_dim;
  const StorageId kv_up = up_projection(g, "linear_kv_up_proj", kv.latent, a.kv_lora_rank,
                                        heads * (a.qk_head_dim + a.v_head_dim));

  // RoPE on a part of each head, then query and key are concatenated anew and the value made
  // contiguous: the up-projections' outputs are freed.
  const std::int64_t q_bytes = kBf16 * tokens * w.query;
  const std::int64_t k_bytes = kBf16 * tokens * w.key;
  const std::int64_t v_bytes = kBf16 * tokens * w.value;
  const bool fused = job.options.apply_rope_fusion;
  const std::int64_t passes = fused ? 2 : kUnfusedRotaryPasses;
  const std::int64_t traffic = passes * (q_bytes + k_bytes) + 2 * v_bytes;
  const StorageId query = g.storage("query", q_bytes);
  const StorageId key = g.storage("key", k_bytes);
  const StorageId value = g.storage("value", v_bytes);
  std::vector<StorageId> writes{query, key, value};
  std::vector<StorageId> tables;
  if (!fused) tables = rotary_tables(g, "rotary", 2, rope);
  writes.insert(writes.end(), tables.begin(), tables.end());
  g.emit("rotary_concat", StreamingWork{{traffic, 0}}, {query_up, kv_up, kv.position}, writes);
  g.on_backward([=](GraphBuilder& b) {
    const StorageId dq =
        b.storage("query_up_gradient", b.bytes_of(query_up), StorageRole::kGradient);
    const StorageId dkv = b.storage("kv_up_gradient", b.bytes_of(kv_up), StorageRole::kGradient);
    const StorageId dposition =
        b.storage("key_position_gradient", kBf16 * tokens * rope, StorageRole::kGradient);
    std::vector<StorageId> reads{b.gradient(query), b.gradient(key), b.gradient(value)};
    reads.insert(reads.end(), tables.begin(), tables.end());
    b.emit("rotary_concat.backward", StreamingWork{{traffic, 0}}, reads, {dq, dkv, dposition});
    b.add_gradient(query_up, dq);
    b.add_gradient(kv_up, dkv);
    b.add_gradient(kv.position, dposition);
  });
  return {query, key, value};
}

}  // namespace

AttentionWork attention_work(const Job& job, Direction direction) {
  const AttentionSpec& a = job.model.attention;
  AttentionShape shape;
  shape.batch = job.batch.micro_batch_size;
  shape.seq_q = job.batch.seq_length;
  shape.seq_kv = job.batch.seq_length;
  shape.heads = a.num_heads / job.layout.tensor;
  shape.qk_dim = a.query_dim();
  shape.v_dim = a.value_dim();
  return {shape, job.layout.context, direction};
}

StorageId core_attention(GraphBuilder& g, StorageId query, StorageId key, StorageId value) {
  const Job& job = g.job();
  const std::int64_t tokens = rank_tokens(job);
  const HeadWidths w = widths(job);
  const std::int64_t heads = job.model.attention.num_heads / job.layout.tensor;
  const bool rings =
      job.layout.context > 1 && job.options.cp_comm == ContextParallelComm::kPointToPoint;
  const bool exchanges =
      job.layout.context > 1 && job.options.cp_comm == ContextParallelComm::kAllToAll;
  if (exchanges) {
    query = exchange_heads(g, "core_attention.query_all_to_all", query);
    key = exchange_heads(g, "core_attention.key_all_to_all", key);
    value = exchange_heads(g, "core_attention.value_all_to_all", value);
  }
  // TE FlashAttention.forward: x.transpose(0, 1).contiguous() of its operands and its result.
  const bool transposes =
      job.options.attention_backend == AttentionBackend::kFlash && job.batch.micro_batch_size > 1;
  if (transposes) {
    query = transpose_batch(g, "core_attention.query_batch_first", query);
    key = transpose_batch(g, "core_attention.key_batch_first", key);
    value = transpose_batch(g, "core_attention.value_batch_first", value);
  }
  const StorageId out = g.storage("core_attention.output", kBf16 * tokens * w.output);
  // TE UnfusedDotProductAttention materializes the scores and keeps their softmax.
  const bool unfused = job.options.attention_backend == AttentionBackend::kUnfused;
  const std::int64_t score_bytes =
      kBf16 * job.batch.micro_batch_size * heads * job.rank_sequence() * job.batch.seq_length;
  StorageId probabilities;
  StorageId lse;
  if (!unfused) lse = g.storage("core_attention.logsumexp", kFp32 * tokens * heads);

  // Ring attention passes keys and values around while the blocks at hand are computed; two buffers
  // take turns.
  const std::int64_t block = kBf16 * tokens * (w.key + w.value);
  const std::int64_t sent = (job.layout.context - 1) * block;
  std::int32_t ring = -1;
  StorageId buffers;
  if (rings) {
    buffers = g.storage("core_attention.ring_buffers", 2 * block, StorageRole::kTemporary);
    ring = g.emit("core_attention.ring", context_collective(Collective::kSendReceive, sent),
                  Stream::kContextComm, {key, value}, {buffers});
  }
  if (unfused) {
    const StorageId scores = g.storage("core_attention.scores", score_bytes);
    probabilities = g.storage("core_attention.probabilities", score_bytes);
    g.emit("core_attention.scores", StreamingWork{{score_bytes, 0}}, {query, key}, {scores});
    g.emit("core_attention.softmax", StreamingWork{{2 * score_bytes, 0}}, {scores},
           {probabilities});
    g.emit("core_attention", attention_work(job, Direction::kForward), {probabilities, value},
           {out});
    g.hold({scores});  // matmul_result, until UnfusedDotProductAttention.forward returns
  } else {
    g.emit("core_attention", attention_work(job, Direction::kForward), Stream::kCompute,
           {query, key, value}, {out, lse}, ring);
  }
  if (rings) g.emit("core_attention.ring_wait", StreamingWork{}, {buffers, out}, {out});

  g.on_backward([=](GraphBuilder& b) {
    const StorageId dq = b.storage("core_attention.query_gradient", kBf16 * tokens * w.query,
                                   StorageRole::kGradient);
    const StorageId dk =
        b.storage("core_attention.key_gradient", kBf16 * tokens * w.key, StorageRole::kGradient);
    const StorageId dv = b.storage("core_attention.value_gradient", kBf16 * tokens * w.value,
                                   StorageRole::kGradient);
    std::int32_t back_ring = -1;
    StorageId back_buffers;
    if (rings) {
      // Keys, values and their gradients travel.
      back_buffers = b.storage("core_attention.ring_buffers", 4 * block, StorageRole::kTemporary);
      back_ring = b.emit("core_attention.ring.backward",
                         context_collective(Collective::kSendReceive, 2 * sent),
                         Stream::kContextComm, {key, value}, {back_buffers});
    }
    if (unfused) {
      const StorageId d =
          b.storage("core_attention.score_gradient", score_bytes, StorageRole::kGradient);
      b.emit("core_attention.backward", attention_work(job, Direction::kBackward),
             {b.gradient(out), probabilities, value}, {d, dv});
      // In place.
      b.emit("core_attention.softmax.backward", StreamingWork{{3 * score_bytes, 0}},
             {d, probabilities}, {d});
      b.emit("core_attention.scores.backward", StreamingWork{{2 * score_bytes, 0}}, {d, query, key},
             {dq, dk});
    } else {
      b.emit("core_attention.backward", attention_work(job, Direction::kBackward), Stream::kCompute,
             {b.gradient(out), query, key, value, out, lse}, {dq, dk, dv}, back_ring);
    }
    if (rings) {
      b.emit("core_attention.ring_wait.backward", StreamingWork{}, {back_buffers, dk, dv},
             {dk, dv});
    }
    b.add_gradient(query, dq);
    b.add_gradient(key, dk);
    b.add_gradient(value, dv);
  });
  const StorageId result =
      transposes ? transpose_batch(g, "core_attention.output_sequence_first", out) : out;
  return exchanges ? exchange_heads(g, "core_attention.output_all_to_all", result) : result;
}

namespace {

// Norm, packed projection, norms of the heads, RoPE. Returns: query, key, the value as a view of
// the packed tensor, that tensor.
std::vector<StorageId> grouped_projection(GraphBuilder& g, StorageId input) {
  const Job& job = g.job();
  const ModelSpec& m = job.model;
  const std::int64_t h = m.hidden_size;
  const std::int64_t d = m.attention.head_dim;
  const std::int64_t tokens = rank_tokens(job);
  const HeadWidths w = widths(job);
  const std::int64_t q_bytes = kBf16 * tokens * w.query;
  const std::int64_t k_bytes = kBf16 * tokens * w.key;
  const std::int64_t mixed_bytes = q_bytes + 2 * k_bytes;

  const StorageId normed = norm(g, "linear_qkv.layer_norm", input, job.sharded_tokens(), h);
  const StorageId mixed = column_linear(g, "linear_qkv", normed, h, w.query + 2 * w.key);

  // A group's query heads and its key and value are neighbours in the packed projection, so query
  // and key become contiguous copies and the attention copies the value (TE attention/utils.py):
  // the packed tensor is freed.
  const StorageId q_split = g.storage("query", q_bytes);
  const StorageId k_split = g.storage("key", k_bytes);
  const StorageId value_view = g.storage("value_view", 0);
  g.emit("split_qkv", StreamingWork{{2 * (q_bytes + k_bytes), 0}}, {mixed},
         {q_split, k_split, value_view});
  g.on_backward([=](GraphBuilder& b) {
    const StorageId dmixed = b.storage("packed_qkv_gradient", mixed_bytes, StorageRole::kGradient);
    b.emit("split_qkv.backward", StreamingWork{{2 * mixed_bytes, 0}},
           {b.gradient(q_split), b.gradient(k_split), b.gradient(value_view)}, {dmixed});
    b.add_gradient(mixed, dmixed);
  });
  StorageId query = q_split;
  StorageId key = k_split;
  if (m.attention.qk_layernorm) {
    query = norm(g, "q_layernorm", query, tokens * w.query / d, d);
    key = norm(g, "k_layernorm", key, tokens * w.key / d, d);
  }
  if (rotates(m)) {
    query = rotate(g, "rotary_query", query, m.rotary_dim());
    key = rotate(g, "rotary_key", key, m.rotary_dim());
  }
  return {query, key, value_view, mixed};
}

StorageId attend(GraphBuilder& g, const Module& attention) {
  if (g.job().options.recompute.core_attn) return g.checkpoint(attention)[0];
  return g.offloadable(OffloadModule::kCoreAttn, attention)[0];
}

StorageId output_projection(GraphBuilder& g, StorageId context) {
  return g.offloadable(OffloadModule::kAttnProj, [=](GraphBuilder& b) {
    return std::vector{
        row_linear(b, "linear_proj", context, widths(b.job()).output, b.job().model.hidden_size)};
  })[0];
}

}  // namespace

StorageId grouped_attention(GraphBuilder& g, StorageId input) {
  const std::vector<StorageId> projected = g.offloadable(
      OffloadModule::kQkvLinear, [=](GraphBuilder& b) { return grouped_projection(b, input); });
  const StorageId context = attend(g, [=](GraphBuilder& b) {
    const std::int64_t bytes = kBf16 * rank_tokens(b.job()) * widths(b.job()).key;
    const StorageId value_view = projected[2];
    const StorageId value = b.storage("value", bytes);
    b.emit("value_contiguous", StreamingWork{{2 * bytes, 0}}, {projected[3], value_view}, {value});
    b.on_backward(
        [=](GraphBuilder& back) { back.replace_gradient(value_view, back.gradient(value)); });
    return std::vector{core_attention(b, projected[0], projected[1], value)};
  });
  return output_projection(g, context);
}

StorageId multi_latent_attention(GraphBuilder& g, StorageId input) {
  const Job& job = g.job();
  const AttentionSpec& a = job.model.attention;
  const std::int64_t h = job.model.hidden_size;
  const HeadWidths w = widths(job);
  const std::int64_t rope = a.qk_pos_emb_head_dim;

  RecomputedNorm input_norm(g, "input_layernorm", OffloadModule::kAttnNorm, input);
  const StorageId normed = input_norm.output();
  GraphBuilder::DiscardedOutput discarded;
  const bool projects_again = job.options.recompute.mla_up_proj;
  const auto project = [&](GraphBuilder& b) {
    LatentParts q;
    if (a.q_lora_rank > 0) {
      q = down_projection(b, "linear_q_down_proj", normed, a.q_lora_rank, 0);
    }
    const LatentParts kv = down_projection(b, "linear_kv_down_proj", normed, a.kv_lora_rank, rope);
    const auto project_up = [q, kv, normed, a, w, h](GraphBuilder& up) {
      const StorageId query_up =
          a.q_lora_rank > 0
              ? up_projection(up, "linear_q_up_proj", q.latent, a.q_lora_rank, w.query)
              : column_linear(up, "linear_q_proj", normed, h, w.query);
      return up_and_rotate(up, query_up, kv);
    };
    if (!projects_again) return project_up(b);
    discarded = b.checkpoint_without_output(project_up);
    return discarded.outputs();
  };
  const std::vector<StorageId> heads = g.offloadable(OffloadModule::kQkvLinear, project);
  const StorageId context = attend(g, [=](GraphBuilder& b) {
    return std::vector{core_attention(b, heads[0], heads[1], heads[2])};
  });
  if (projects_again) g.discard_and_recompute(discarded);
  const StorageId out = output_projection(g, context);
  input_norm.discard();
  return out;
}

}  // namespace tidemark
