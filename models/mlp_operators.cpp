#include "models/layer_operators.h"
#include "models/linear_operators.h"

namespace tidemark {

namespace {

StorageId mlp_operators(GraphBuilder& g, StorageId input) {
  const Job& job = g.job();
  const ModelSpec& m = job.model;
  const std::int64_t h = m.hidden_size;
  const std::int64_t f = m.ffn_hidden_size / job.layout.tensor;
  const std::int64_t fc1_width = m.gated() ? 2 * f : f;
  const std::int64_t tokens = rank_tokens(job);
  const std::int64_t in = kBf16 * tokens * fc1_width;
  const std::int64_t out = kBf16 * tokens * f;

  const StorageId normed = norm(g, "linear_fc1.layer_norm", input, job.sharded_tokens(), h);
  const StorageId hidden = column_linear(g, "linear_fc1", normed, h, fc1_width);
  const auto activate = [=](GraphBuilder& b) {
    return std::vector{elementwise(b,
                                   {.name = "activation",
                                    .out_bytes = {out, 0},
                                    .forward_traffic = {in + out, 0},
                                    .backward_traffic = {2 * in + out, 0},
                                    .saves_input = true},
                                   hidden)};
  };
  if (!job.options.recompute.activation_function) {
    return row_linear(g, "linear_fc2", activate(g)[0], f, h);
  }
  const GraphBuilder::DiscardedOutput activated = g.checkpoint_without_output(activate);
  const StorageId result = row_linear(g, "linear_fc2", activated.outputs()[0], f, h);
  g.discard_and_recompute(activated);
  return result;
}

}  // namespace

StorageId dense_mlp(GraphBuilder& g, StorageId input) {
  g.set_part(LayerPart::kMlp);
  if (!g.job().options.recompute.mlp) return mlp_operators(g, input);
  return g.checkpoint([=](GraphBuilder& b) { return std::vector{mlp_operators(b, input)}; })[0];
}

}  // namespace tidemark
