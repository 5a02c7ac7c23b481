#include <string>
#include <vector>

#include "models/layer_operators.h"
#include "models/linear_operators.h"

namespace tidemark {
namespace {

std::int64_t vocabulary_shard(const Job& job) {
  return job.model.padded_vocab_size(job.layout.tensor) / job.layout.tensor;
}

GemmWork vocabulary_gemm(const Job& job, Pass pass) {
  GemmWork work = gemm(job, vocabulary_shard(job), rank_tokens(job), job.model.hidden_size, pass);
  work.vocabulary = true;
  return work;
}

}  // namespace

StorageId embedding(GraphBuilder& g, const std::string& name) {
  const Job& job = g.job();
  const std::int64_t h = job.model.hidden_size;
  const std::int64_t full = kBf16 * rank_tokens(job) * h;
  const bool scatters = job.layout.splits_sequence();
  const bool reduces = job.layout.tensor > 1 && !scatters;
  const std::int64_t weight_bytes = kBf16 * vocabulary_shard(job) * h;

  const StorageId looked_up = g.storage(name + ".lookup", full);
  const StorageId out = g.storage(name + ".output", scatters ? full / job.layout.tensor : full);
  const CollectiveWork reduce{scatters ? Collective::kReduceScatter : Collective::kAllReduce,
                              Group::kTensor,
                              {full, 0},
                              {full, 0},
                              1};
  g.emit(name, StreamingWork{{2 * full, 0}}, {}, {looked_up});
  if (scatters || reduces) {
    g.emit(name + ".reduce", reduce, Stream::kTensorComm, {looked_up}, {out});
  } else {
    g.emit(name + ".transpose", StreamingWork{{2 * full, 0}}, {looked_up}, {out});
  }
  g.on_backward([=](GraphBuilder& b) {
    StorageId dy = b.gradient(out);
    if (scatters) {
      const StorageId gathered =
          b.storage(name + ".gathered_gradient", full, StorageRole::kGradient);
      b.emit(name + ".all_gather.backward",
             CollectiveWork{Collective::kAllGather, Group::kTensor, {full, 0}, {full, 0}, 1},
             Stream::kTensorComm, {dy}, {gathered});
      dy = gathered;
    }
    // embedding_dense_backward makes the whole table, which is then added to the fp32 buffer.
    const StorageId dense =
        b.storage(name + ".weight_gradient", weight_bytes, StorageRole::kTemporary);
    b.emit(name + ".backward", StreamingWork{{full + 6 * weight_bytes, 0}}, {dy}, {dense});
  });
  return out;
}

StorageId output_and_loss(GraphBuilder& g, StorageId normed) {
  const Job& job = g.job();
  const std::int64_t h = job.model.hidden_size;
  const std::int64_t vocabulary = vocabulary_shard(job);
  const std::int64_t tokens = rank_tokens(job);
  const std::int64_t full = kBf16 * tokens * h;
  const std::int64_t cells = tokens * vocabulary;
  const bool gathers = job.layout.splits_sequence();
  const bool reduces = job.layout.tensor > 1 && !gathers;
  const CrossEntropy path = job.options.cross_entropy;

  // Output layer. The gathered input lies in a buffer that Megatron keeps for ever
  // (GlobalMemoryBuffer "mpu"), so it is no storage of a microbatch.
  const CollectiveWork gather{Collective::kAllGather, Group::kTensor, {full, 0}, {full, 0}, 1};
  const StorageId logits = g.storage("output_layer.logits", kBf16 * cells);
  std::vector<StorageId> operands{normed};
  if (gathers) {
    const StorageId marker = g.storage("output_layer.gathered", 0);
    g.emit("output_layer.all_gather", gather, Stream::kTensorComm, {normed}, {marker});
    operands = {marker};
  }
  g.emit("output_layer", vocabulary_gemm(job, Pass::kForward), operands, {logits});
  g.on_backward([=](GraphBuilder& b) {
    const StorageId dlogits = b.gradient(logits);
    std::vector<StorageId> reads{dlogits, normed};
    std::int32_t regather = -1;
    if (gathers) {
      const StorageId again = b.storage("output_layer.gathered_again", 0, StorageRole::kTemporary);
      reads.push_back(again);
      regather =
          b.emit("output_layer.all_gather_again", gather, Stream::kTensorComm, {normed}, {again});
    }
    const StorageId partial =
        b.storage("output_layer.full_input_gradient", full, StorageRole::kGradient);
    b.emit("output_layer.dgrad", vocabulary_gemm(job, Pass::kBackwardInput), Stream::kCompute,
           {dlogits}, {partial}, regather);
    StorageId dx = partial;
    std::int32_t reduce = -1;
    if (gathers) {
      dx = b.storage("output_layer.input_gradient", full / job.layout.tensor,
                     StorageRole::kGradient);
      reduce = b.emit(
          "output_layer.reduce_scatter",
          CollectiveWork{Collective::kReduceScatter, Group::kTensor, {full, 0}, {full, 0}, 1},
          Stream::kTensorComm, {partial}, {dx});
    } else if (reduces) {
      reduce =
          b.emit("output_layer.all_reduce",
                 CollectiveWork{Collective::kAllReduce, Group::kTensor, {full, 0}, {full, 0}, 1},
                 Stream::kTensorComm, {partial}, {partial});
    }
    std::vector<StorageId> dummies;
    if (makes_temporary_output_gradient(b.job().versions)) {
      dummies.push_back(
          b.storage("output_layer.dummy_wgrad", kBf16 * vocabulary * h, StorageRole::kTemporary));
    }
    b.emit("output_layer.wgrad", vocabulary_gemm(job, Pass::kBackwardWeight), Stream::kCompute,
           reads, dummies, reduce);
    // Locals of the autograd function's backward.
    b.hold({partial, dx});
    b.add_gradient(normed, dx);
  });

  // Cross-entropy. `softmax` is what the path saves; the caller still names the bf16 logits until
  // the model's forward returns.
  const StorageId loss = g.storage("cross_entropy.loss", kFp32 * tokens);
  const auto loss_work = [path, cells](Direction d) { return CrossEntropyWork{path, cells, d}; };
  if (path == CrossEntropy::kTransformerEngine) {
    // The kernel writes the gradient over the logits.
    g.emit("cross_entropy", loss_work(Direction::kForward), {logits}, {loss});
    g.on_backward([=](GraphBuilder& b) {
      b.emit("cross_entropy.backward", loss_work(Direction::kBackward), {logits, loss}, {logits});
      b.add_gradient(logits, logits);
    });
    return loss;
  }
  const StorageId softmax = g.storage("cross_entropy.softmax", kFp32 * cells);
  std::vector<StorageId> writes{softmax, loss};
  if (path == CrossEntropy::kNativeFused || job.versions.fork == Fork::kKwai) {
    // The compiled pieces hand a second fp32 tensor from one to the next; Kwai's softmax was not in
    // place yet.
    writes.push_back(g.storage("cross_entropy.fp32_logits", kFp32 * cells));
  }
  g.emit("cross_entropy", loss_work(Direction::kForward), {logits}, writes);
  g.on_backward([=](GraphBuilder& b) {
    // In place on the saved softmax, then back to bf16.
    const StorageId dlogits =
        b.storage("cross_entropy.logits_gradient", kBf16 * cells, StorageRole::kGradient);
    b.emit("cross_entropy.backward", loss_work(Direction::kBackward), {softmax, loss}, {dlogits});
    b.add_gradient(logits, dlogits);
  });
  return loss;
}

StorageId loss_head(GraphBuilder& g, StorageId input) {
  const Job& job = g.job();
  const StorageId normed =
      norm(g, "final_layernorm", input, job.sharded_tokens(), job.model.hidden_size);
  std::vector<StorageId> predicted;
  StorageId hidden = normed;
  for (std::int64_t layer = job.model.num_layers; layer < job.model.total_layers(); ++layer) {
    hidden = multi_token_prediction(g, layer, hidden);
    predicted.push_back(hidden);
  }
  g.set_layer(-1);
  // Their losses come first and join the graph of the main one.
  std::vector<StorageId> losses;
  for (StorageId s : predicted) losses.push_back(output_and_loss(g, s));
  const StorageId loss = output_and_loss(g, normed);
  if (!losses.empty()) {
    g.emit("mtp.add_losses", StreamingWork{}, losses, {loss});
  }
  return loss;
}

}  // namespace tidemark
