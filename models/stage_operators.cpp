#include "models/layer_operators.h"
#include "models/linear_operators.h"

namespace tidemark {

OperatorGraph build_operator_graph(const Job& job, std::int64_t stage) {
  const ModelSpec& m = job.model;
  const bool first = stage == 0;
  const bool last = stage == job.layout.pipeline - 1;
  const std::int64_t border = kBf16 * job.sharded_tokens() * m.hidden_size;
  GraphBuilder g(job);

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
    g.graph().input = x;
    g.on_backward([x](GraphBuilder& b) { b.graph().input_gradient = b.gradient(x); });
  }
  const auto layers = job.layout.stage_layers(stage, m.num_layers);
  for (std::int64_t layer = layers.begin; layer < layers.end; ++layer) {
    g.set_layer(layer);
    const bool latent = m.attention.kind == AttentionKind::kMultiLatent;
    const StorageId attended = latent ? multi_latent_attention(g, x) : grouped_attention(g, x);
    x = bias_dropout_add(g, "self_attn_bda", attended, x);
    const StorageId mlp = m.is_moe(layer) ? moe_mlp(g, x) : dense_mlp(g, x);
    x = bias_dropout_add(g, "mlp_bda", mlp, x);
  }
  g.set_layer(-1);
  if (last) {
    const StorageId loss = loss_head(g, x);
    // loss_func asks the device whether the loss is a number.
    if (job.options.check_for_nan_in_loss_and_grad) {
      g.emit("loss_nan_check", HostWaitWork{}, {loss}, {});
    }
  } else {
    g.graph().output = x;
    const StorageId received = g.storage("output_tensor_grad", border, StorageRole::kGradient);
    g.graph().output_gradient = received;
    g.on_backward([x, received](GraphBuilder& b) { b.add_gradient(x, received); });
  }
  if (mask.valid()) g.hold({mask});
  return g.finish();
}

}  // namespace tidemark
