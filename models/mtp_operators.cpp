#include "models/layer_operators.h"
#include "models/linear_operators.h"

namespace tidemark {

StorageId multi_token_prediction(GraphBuilder& g, std::int64_t layer, StorageId hidden) {
  const Job& job = g.job();
  const std::int64_t h = job.model.hidden_size;
  const std::int64_t tokens = job.sharded_tokens();
  const std::int64_t bytes = kBf16 * tokens * h;
  g.set_layer(layer);

  const StorageId next_tokens = embedding(g, "mtp.embedding");
  const StorageId embedded = norm(g, "mtp.enorm", next_tokens, tokens, h);
  const StorageId normed = norm(g, "mtp.hnorm", hidden, tokens, h);
  const StorageId both = g.storage("mtp.concatenated", 2 * bytes);
  g.emit("mtp.concat", StreamingWork{{4 * bytes, 0}}, {embedded, normed}, {both});
  g.on_backward([=](GraphBuilder& b) {
    const StorageId d_embedded = b.storage("mtp.embedded_gradient", bytes, StorageRole::kGradient);
    const StorageId d_normed = b.storage("mtp.normed_gradient", bytes, StorageRole::kGradient);
    b.emit("mtp.concat.backward", StreamingWork{{4 * bytes, 0}}, {b.gradient(both)},
           {d_embedded, d_normed});
    b.add_gradient(embedded, d_embedded);
    b.add_gradient(normed, d_normed);
  });

  // Column-parallel; its output is gathered over the features and, with sequence parallelism, split
  // over the sequence again.
  const std::int64_t t = job.layout.tensor;
  StorageId projected = column_linear(g, "mtp.eh_proj", both, 2 * h, h / t);
  if (t > 1) {
    const std::int64_t full = kBf16 * rank_tokens(job) * h;
    const StorageId part = projected;
    const StorageId gathered = g.storage("mtp.gathered_projection", full);
    g.emit("mtp.gather_projection",
           CollectiveWork{Collective::kAllGather, Group::kTensor, {full, 0}, {full, 0}, 1},
           Stream::kTensorComm, {part}, {gathered});
    projected = gathered;
    if (job.layout.splits_sequence()) {
      projected = g.storage("mtp.projection", bytes);
      g.emit("mtp.scatter_projection", StreamingWork{{2 * bytes, 0}}, {gathered}, {projected});
    }
    const StorageId out = projected;
    g.on_backward([=](GraphBuilder& b) {
      StorageId d = b.gradient(out);
      if (out != gathered) {
        const StorageId whole =
            b.storage("mtp.gathered_projection_gradient", full, StorageRole::kGradient);
        b.emit("mtp.gather_projection_gradient",
               CollectiveWork{Collective::kAllGather, Group::kTensor, {full, 0}, {full, 0}, 1},
               Stream::kTensorComm, {d}, {whole});
        d = whole;
      }
      const StorageId d_part =
          b.storage("mtp.projection_gradient", full / t, StorageRole::kGradient);
      b.emit("mtp.split_projection_gradient", StreamingWork{{2 * full / t, 0}}, {d}, {d_part});
      b.add_gradient(part, d_part);
    });
  }
  const StorageId out = decoder_layer(g, layer, projected);
  return norm(g, "mtp.final_layernorm", out, tokens, h);
}

}  // namespace tidemark
