#include "models/linear_operators.h"

namespace tidemark {
namespace {

CollectiveWork tensor_collective(const Job& job, Collective op, std::int64_t bytes) {
  const bool fused = job.options.linear_impl == LinearImpl::kFluxKeepGather;
  return {op, Group::kTensor, {bytes, 0}, {bytes, 0}, fused ? job.layout.tensor : 1};
}

// What a version's weight-gradient product writes besides the fp32 buffer.
std::vector<StorageId> weight_gradient_outputs(GraphBuilder& g, const std::string& name,
                                               std::int64_t parameters) {
  if (!makes_temporary_weight_gradient(g.job().versions, false)) return {};
  return {g.storage(name + ".dummy_wgrad", kBf16 * parameters, StorageRole::kTemporary)};
}

}  // namespace

GemmWork gemm(const Job& job, std::int64_t out, std::int64_t tokens, std::int64_t in, Pass pass) {
  const bool accumulates =
      pass == Pass::kBackwardWeight && job.options.optimizer.main_grad_bytes == kFp32;
  return {{out, tokens, in}, pass, accumulates, false};
}

bool makes_temporary_weight_gradient(const FrameworkVersions& versions, bool grouped) {
  // TE module/base.py get_dummy_wgrad: one tensor per shape for ever, for Linear and
  // LayerNormLinear since 2.3, for GroupedLinear since 2.10; before, torch.empty each time.
  return versions.transformer_engine < (grouped ? Version{2, 10} : Version{2, 3});
}

bool makes_temporary_output_gradient(const FrameworkVersions& versions) {
  if (versions.fork == Fork::kKwai) return false;  // returns None
  return versions.megatron_core < Version{0, 14} ||
         makes_temporary_weight_gradient(versions, false);
}

StorageId norm(GraphBuilder& g, const std::string& name, StorageId input, std::int64_t rows,
               std::int64_t width) {
  const bool has_mean = g.job().model.normalization == Normalization::kLayerNorm;
  const StorageId out = g.storage(name + ".output", kBf16 * rows * width);
  const StorageId statistics = g.storage(name + ".rstd", kFp32 * rows * (has_mean ? 2 : 1));
  g.emit(name, NormWork{rows, width, Direction::kForward}, {input}, {out, statistics});
  g.on_backward([=](GraphBuilder& b) {
    const StorageId dx =
        b.storage(name + ".input_gradient", kBf16 * rows * width, StorageRole::kGradient);
    b.emit(name + ".backward", NormWork{rows, width, Direction::kBackward},
           {b.gradient(out), input, statistics}, {dx});
    b.add_gradient(input, dx);
  });
  return out;
}

RecomputedNorm::RecomputedNorm(GraphBuilder& g, const std::string& name, OffloadModule module,
                               StorageId input)
    : g_(g), recomputes_(g.job().options.recompute.layernorm) {
  const Module emit = [=](GraphBuilder& b) {
    return std::vector{norm(b, name, input, b.job().sharded_tokens(), b.job().model.hidden_size)};
  };
  if (recomputes_) discarded_ = g.checkpoint_without_output(emit);
  output_ = recomputes_ ? discarded_.outputs()[0] : g.offloadable(module, emit)[0];
}

void RecomputedNorm::discard() {
  if (recomputes_) g_.discard_and_recompute(discarded_);
}

StorageId column_linear(GraphBuilder& g, const std::string& name, StorageId input, std::int64_t in,
                        std::int64_t out_shard) {
  const Job& job = g.job();
  const std::int64_t tokens = rank_tokens(job);
  const bool gathers = job.layout.splits_sequence();
  const bool reduces = job.layout.tensor > 1 && !gathers;
  const bool keeps_gather = gathers && job.options.linear_impl == LinearImpl::kFluxKeepGather;
  const std::int64_t full = kBf16 * tokens * in;

  const StorageId out = g.storage(name + ".output", kBf16 * tokens * out_shard);
  StorageId operand = input;
  std::int32_t gather = -1;
  if (gathers) {
    operand = g.storage(name + ".gathered_input", full);
    gather = g.emit(name + ".all_gather", tensor_collective(job, Collective::kAllGather, full),
                    Stream::kTensorComm, {input}, {operand});
    if (keeps_gather) {
      // The fused kernel gathers into its own buffer; the saved tensor is a clone of it.
      g.emit(name + ".clone_gathered", StreamingWork{{2 * full, 0}}, {operand}, {});
    }
  }
  g.emit(name, gemm(job, out_shard, tokens, in, Pass::kForward), Stream::kCompute, {operand}, {out},
         keeps_gather ? gather : -1);

  g.on_backward([=](GraphBuilder& b) {
    const StorageId dy = b.gradient(out);
    const StorageId dx =
        b.storage(name + ".input_gradient", gathers ? full / job.layout.tensor : full,
                  StorageRole::kGradient);
    StorageId saved = keeps_gather ? operand : input;
    std::int32_t regather = -1;
    if (gathers && !keeps_gather) {
      saved = b.storage(name + ".regathered_input", full, StorageRole::kTemporary);
      regather =
          b.emit(name + ".all_gather_again", tensor_collective(job, Collective::kAllGather, full),
                 Stream::kTensorComm, {input}, {saved});
    }
    const StorageId partial =
        gathers ? b.storage(name + ".full_input_gradient", full, StorageRole::kGradient) : dx;
    const std::int32_t dgrad =
        b.emit(name + ".dgrad", gemm(job, out_shard, tokens, in, Pass::kBackwardInput),
               Stream::kCompute, {dy}, {partial}, regather);
    std::int32_t reduce = -1;
    if (gathers) {
      reduce =
          b.emit(name + ".reduce_scatter", tensor_collective(job, Collective::kReduceScatter, full),
                 Stream::kTensorComm, {partial}, {dx});
    } else if (reduces) {
      reduce = b.emit(name + ".all_reduce", tensor_collective(job, Collective::kAllReduce, full),
                      Stream::kTensorComm, {partial}, {dx});
    }
    if (keeps_gather) b.emitted(dgrad).contends_with = reduce;
    b.emit_weight_gradient(
        name + ".wgrad", gemm(job, out_shard, tokens, in, Pass::kBackwardWeight), Stream::kCompute,
        {dy, saved}, weight_gradient_outputs(b, name, out_shard * in), keeps_gather ? -1 : reduce);
    b.add_gradient(input, dx);
  });
  return out;
}

StorageId row_linear(GraphBuilder& g, const std::string& name, StorageId input,
                     std::int64_t in_shard, std::int64_t out_width) {
  const Job& job = g.job();
  const std::int64_t tokens = rank_tokens(job);
  const bool scatters = job.layout.splits_sequence();
  const bool reduces = job.layout.tensor > 1 && !scatters;
  const bool fused = job.options.linear_impl == LinearImpl::kFluxKeepGather && scatters;
  const std::int64_t full = kBf16 * tokens * out_width;

  const StorageId out = g.storage(name + ".output", scatters ? full / job.layout.tensor : full);
  const StorageId partial = scatters ? g.storage(name + ".partial_output", full) : out;
  const std::int32_t product =
      g.emit(name, gemm(job, out_width, tokens, in_shard, Pass::kForward), {input}, {partial});
  if (scatters) {
    const std::int32_t scatter =
        g.emit(name + ".reduce_scatter", tensor_collective(job, Collective::kReduceScatter, full),
               Stream::kTensorComm, {partial}, {out});
    if (fused) g.emitted(product).contends_with = scatter;
  } else if (reduces) {
    g.emit(name + ".all_reduce", tensor_collective(job, Collective::kAllReduce, full),
           Stream::kTensorComm, {partial}, {out});
  }

  g.on_backward([=](GraphBuilder& b) {
    StorageId dy = b.gradient(out);
    std::int32_t gather = -1;
    if (scatters) {
      const StorageId gathered =
          b.storage(name + ".gathered_gradient", full, StorageRole::kTemporary);
      gather = b.emit(name + ".all_gather_gradient",
                      tensor_collective(job, Collective::kAllGather, full), Stream::kTensorComm,
                      {dy}, {gathered});
      dy = gathered;
    }
    const StorageId dx =
        b.storage(name + ".input_gradient", kBf16 * tokens * in_shard, StorageRole::kGradient);
    b.emit(name + ".dgrad", gemm(job, out_width, tokens, in_shard, Pass::kBackwardInput),
           Stream::kCompute, {dy}, {dx}, fused ? gather : -1);
    b.emit_weight_gradient(
        name + ".wgrad", gemm(job, out_width, tokens, in_shard, Pass::kBackwardWeight),
        Stream::kCompute, {dy, input}, weight_gradient_outputs(b, name, out_width * in_shard));
    b.add_gradient(input, dx);
  });
  return out;
}

StorageId replicated_linear(GraphBuilder& g, const std::string& name, StorageId input,
                            std::int64_t tokens, std::int64_t in, std::int64_t out_width) {
  const Job& job = g.job();
  const StorageId out = g.storage(name + ".output", kBf16 * tokens * out_width);
  g.emit(name, gemm(job, out_width, tokens, in, Pass::kForward), {input}, {out});
  g.on_backward([=](GraphBuilder& b) {
    const StorageId dy = b.gradient(out);
    const StorageId dx =
        b.storage(name + ".input_gradient", kBf16 * tokens * in, StorageRole::kGradient);
    b.emit(name + ".dgrad", gemm(job, out_width, tokens, in, Pass::kBackwardInput), {dy}, {dx});
    b.emit_weight_gradient(name + ".wgrad", gemm(job, out_width, tokens, in, Pass::kBackwardWeight),
                           Stream::kCompute, {dy, input},
                           weight_gradient_outputs(b, name, out_width * in));
    b.add_gradient(input, dx);
  });
  return out;
}

StorageId bias_dropout_add(GraphBuilder& g, const std::string& name, StorageId branch,
                           StorageId residual) {
  const std::int64_t bytes = g.bytes_of(residual);
  const bool drops = g.job().options.hidden_dropout > 0;
  const StorageId out = g.storage(name + ".output", bytes);
  std::vector<StorageId> writes{out};
  if (drops) writes.push_back(g.storage(name + ".mask", bytes / kBf16));
  g.emit(name, StreamingWork{{3 * bytes, 0}}, {branch, residual}, writes);
  g.on_backward([=](GraphBuilder& b) {
    const StorageId incoming = b.gradient(out);
    StorageId to_branch = incoming;
    if (drops) {
      to_branch = b.storage(name + ".branch_gradient", bytes, StorageRole::kGradient);
      b.emit(name + ".backward", StreamingWork{{3 * bytes, 0}}, {incoming, writes[1]}, {to_branch});
    }
    b.add_gradient(branch, to_branch);
    b.add_gradient(residual, incoming);
  });
  return out;
}

StorageId elementwise(GraphBuilder& g, const Elementwise& op, StorageId input) {
  const Size in_bytes = g.graph().storages[input.index()].bytes;
  const StorageId out = g.storage(op.name + ".output", op.out_bytes, op.out_role);
  g.emit(op.name, StreamingWork{op.forward_traffic}, {input}, {out});
  g.on_backward([=](GraphBuilder& b) {
    const StorageId dx = b.storage(op.name + ".input_gradient", in_bytes, StorageRole::kGradient);
    std::vector<StorageId> reads{b.gradient(out)};
    if (op.saves_input) reads.push_back(input);
    b.emit(op.name + ".backward", StreamingWork{op.backward_traffic}, reads, {dx});
    b.add_gradient(input, dx);
  });
  return out;
}

}  // namespace tidemark
