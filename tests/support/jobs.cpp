#include "tests/support/jobs.h"

namespace tidemark {
namespace {

Job dense_job(const char* name, std::int64_t layers, std::int64_t hidden, std::int64_t ffn,
              std::int64_t heads, std::int64_t vocabulary) {
  Job job;
  job.name = name;
  job.source = name;
  job.hardware = "bw1000";
  job.model.num_layers = layers;
  job.model.hidden_size = hidden;
  job.model.ffn_hidden_size = ffn;
  job.model.attention.num_heads = heads;
  job.model.attention.num_query_groups = 8;
  job.model.attention.head_dim = 128;
  job.model.moe_layer.assign(static_cast<std::size_t>(layers), false);
  job.model.vocab_size = vocabulary;
  job.options.overlap_grad_reduce = true;
  return job;
}

void spread(Job& job, std::int64_t cards, std::int64_t tensor, std::int64_t pipeline) {
  job.layout.cards = cards;
  job.layout.tensor = tensor;
  job.layout.sequence_parallel = tensor > 1;
  job.layout.pipeline = pipeline;
}

constexpr std::int64_t kQwenTokens = 151669;

}  // namespace

Job deepseek_v3_1024() {
  // The log's vocabulary of 129,280 is not padded to 128 * TP.
  Job job = dense_job("deepseek-v3-1024", 61, 7168, 18432, 128, 129280);
  job.model.make_vocab_size_divisible_by = 1;
  AttentionSpec& a = job.model.attention;
  a.kind = AttentionKind::kMultiLatent;
  a.num_query_groups = 128;
  a.qk_layernorm = true;
  a.q_lora_rank = 1536;
  a.kv_lora_rank = 512;
  a.qk_head_dim = 128;
  a.qk_pos_emb_head_dim = 64;
  a.v_head_dim = 128;
  MoeSpec moe;
  moe.num_experts = 256;
  moe.topk = 8;
  moe.ffn_hidden_size = 2048;
  moe.shared_ffn_hidden_size = 2048;
  job.model.moe = moe;
  for (std::size_t layer = 3; layer < 61; ++layer) job.model.moe_layer[layer] = true;
  job.versions.megatron_core = {0, 13};
  job.versions.transformer_engine = {2, 0};
  job.versions.dtk = Version{25, 4};
  spread(job, 1024, 4, 8);
  job.layout.expert = 64;
  job.layout.first_stage_layers = 5;
  job.batch = {1, 2048, 4096};
  TrainingOptions& o = job.options;
  o.overlap_param_gather = true;
  o.cross_entropy = CrossEntropy::kTransformerEngine;
  o.apply_rope_fusion = false;
  o.moe_permute_fusion = true;
  o.moe_expert_capacity_factor = 1.0;
  o.moe_pad_expert_input_to_capacity = true;
  o.moe_shared_expert_overlap = true;
  o.quantize_comm_bits = 8;
  return job;
}

Job qwen3_30b_a3b() {
  Job job = dense_job("qwen3-30b-a3b", 48, 2048, 6144, 32, kQwenTokens);
  job.hardware = "bw1100";
  job.model.attention.num_query_groups = 4;
  job.model.attention.qk_layernorm = true;
  MoeSpec moe;
  moe.num_experts = 128;
  moe.topk = 8;
  moe.ffn_hidden_size = 768;
  job.model.moe = moe;
  job.model.moe_layer.assign(48, true);
  spread(job, 8, 1, 1);
  job.layout.expert = 8;
  job.batch = {1, 32, 4096};
  job.options.overlap_param_gather = true;
  job.options.moe_permute_fusion = true;
  job.options.moe_router_fusion = true;
  return job;
}

Job qwen3_32b() {
  Job job = dense_job("qwen3-32b", 64, 5120, 25600, 64, kQwenTokens);
  job.model.attention.qk_layernorm = true;
  spread(job, 32, 4, 4);
  job.batch = {1, 64, 8192};
  return job;
}

Job qwen3_8b() {
  Job job = dense_job("qwen3-8b", 36, 4096, 12288, 32, kQwenTokens);
  job.model.attention.qk_layernorm = true;
  spread(job, 8, 2, 1);
  job.batch = {1, 32, 4096};
  return job;
}

Job llama2_70b() {
  Job job = dense_job("llama2-70b", 80, 8192, 28672, 64, 32000);
  spread(job, 64, 4, 8);
  job.batch = {1, 1024, 4096};
  job.options.linear_impl = LinearImpl::kFluxKeepGather;
  return job;
}

Job two_stage_job() {
  Job job = dense_job("two-stages", 2, 64, 128, 4, 256);
  job.model.attention.num_query_groups = 4;
  job.model.attention.head_dim = 16;
  spread(job, 2, 1, 2);
  job.batch = {1, 2, 16};
  job.options.overlap_grad_reduce = false;
  job.options.create_attention_mask_in_dataloader = false;
  return job;
}

Job small_moe_job(std::int64_t layers, std::int64_t microbatches) {
  Job job = qwen3_30b_a3b();
  job.hardware = "bw1000";
  job.model.num_layers = layers;
  job.model.moe_layer.assign(static_cast<std::size_t>(layers), true);
  job.layout.cards = 16;
  job.layout.pipeline = 2;
  job.batch.global_batch_size = 8 * microbatches;
  validate(job, "");
  return job;
}

RoutingCounts spiked_routing(const Job& job, double ratio) {
  RoutingCounts counts = balanced_routing(job);
  const std::int64_t per_rank = counts.experts / job.layout.expert;
  for (std::int64_t mb = 0; mb < counts.microbatches; ++mb) {
    for (std::int64_t layer = 0; layer < counts.moe_layers; ++layer) {
      for (std::int64_t& count : counts.row(mb, layer).first(static_cast<std::size_t>(per_rank))) {
        count = static_cast<std::int64_t>(static_cast<double>(count) * ratio);
      }
    }
  }
  return counts;
}

}  // namespace tidemark
