#include <algorithm>
#include <utility>

#include "models/activation_offload.h"
#include "models/combined_order.h"
#include "models/kwai_operators.h"
#include "models/layer_operators.h"
#include "models/linear_operators.h"
#include "models/weight_gradients.h"

namespace tidemark {

StorageId decoder_layer(GraphBuilder& g, std::int64_t layer, StorageId input) {
  const ModelSpec& m = g.job().model;
  g.set_layer(layer);
  if (g.job().versions.fork == Fork::kKwai) return kwai_layer(g, input);
  const bool latent = m.attention.kind == AttentionKind::kMultiLatent;
  const StorageId attended =
      latent ? multi_latent_attention(g, input) : grouped_attention(g, input);
  const StorageId x = bias_dropout_add(g, "self_attn_bda", attended, input);
  const StorageId mlp = m.is_moe(layer) ? moe_mlp(g, x) : dense_mlp(g, x);
  return bias_dropout_add(g, "mlp_bda", mlp, x);
}

namespace {

// TransformerBlock._checkpointed_forward, or the layers as they are.
StorageId decoder_layers(GraphBuilder& g, const ParallelLayout::LayerRange& layers, StorageId x) {
  const std::optional<FullRecompute>& full = g.job().options.full_recompute;
  std::int64_t layer = layers.begin;
  while (layer < layers.end) {
    const bool block = full && full->method == RecomputeMethod::kBlock;
    if (!full || (block && layer - layers.begin >= full->num_layers)) {
      x = decoder_layer(g, layer++, x);
      continue;
    }
    const std::int64_t end = block ? layer + 1 : std::min(layers.end, layer + full->num_layers);
    x = g.checkpoint([=](GraphBuilder& b) {
      StorageId y = x;
      for (std::int64_t l = layer; l < end; ++l) y = decoder_layer(b, l, y);
      return std::vector{y};
    })[0];
    layer = end;
  }
  return x;
}

void chunk_operators(GraphBuilder& g, std::int64_t virtual_stage) {
  const Job& job = g.job();
  const ModelSpec& m = job.model;
  const bool first = virtual_stage == 0;
  const bool last = virtual_stage == job.layout.virtual_stages() - 1;
  const std::int64_t border = kBf16 * job.sharded_tokens() * m.hidden_size;
  Chunk& chunk = g.begin_chunk();

  // get_batch makes the causal mask on the first and last stage; forward_step names it until the
  // model's forward returns, although no kernel reads it.
  StorageId mask;
  if ((first || last) && job.options.create_attention_mask_in_dataloader) {
    const std::int64_t s = job.batch.seq_length;
    mask = g.storage("attention_mask", job.batch.micro_batch_size * s * job.rank_sequence(),
                     StorageRole::kTemporary);
    g.emit("attention_mask", StreamingWork{}, {}, {mask});
  }

  StorageId x;
  if (first) {
    x = embedding(g);
  } else {
    x = g.storage("input_tensor", border);
    chunk.input = x;
    g.on_backward([x](GraphBuilder& b) { b.chunk().input_gradient = b.gradient(x); });
  }
  const auto layers = job.layout.chunk_layers(virtual_stage, m.num_layers);
  x = decoder_layers(g, layers, x);
  g.set_layer(-1);
  if (last) {
    const StorageId loss = loss_head(g, x);
    // loss_func asks the device whether the loss is a number.
    if (job.options.check_for_nan_in_loss_and_grad) {
      g.emit("loss_nan_check", HostWaitWork{}, {loss}, {});
    }
  } else {
    chunk.output = x;
    const StorageId received = g.storage("output_tensor_grad", border, StorageRole::kGradient);
    chunk.output_gradient = received;
    // In combined slots the expert stream writes the first and reads the second; transfers go by
    // the compute stream.
    const bool combines = job.combines_slots();
    if (combines) g.emit("wait_for_output", StreamingWork{}, {x}, {});
    g.on_backward([=](GraphBuilder& b) {
      b.add_gradient(x, received);
      if (combines) b.emit("gradient_received", StreamingWork{}, {received}, {});
    });
  }
  if (mask.valid()) g.hold({mask});
  g.end_chunk();
}

}  // namespace

OperatorGraph build_operator_graph(const Job& job, std::int64_t stage) {
  GraphBuilder g(job);
  for (std::int64_t c = 0; c < job.layout.virtual_pipeline; ++c) {
    chunk_operators(g, job.layout.virtual_stage(stage, c));
  }
  OperatorGraph graph = g.finish();
  if (job.combines_slots()) {
    graph = arrange_for_combined_slots(
        std::move(graph),
        {job.options.delay_wgrad_compute, job.options.ep_overlap_early_attn_memory_release});
  }
  if (job.layout.splits_weight_gradients()) return split_weight_gradients(std::move(graph));
  if (g.offload_groups().empty()) return graph;
  return offload_activations(std::move(graph), g.offload_groups(), job, stage);
}

}  // namespace tidemark
