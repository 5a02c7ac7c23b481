#include "tests/support/random_jobs.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "models/job_reader.h"
#include "models/layer_operators.h"

namespace tidemark {
namespace {

ModelSpec random_model(Rng& rng, const ParallelLayout& layout, bool with_experts) {
  ModelSpec m;
  m.num_layers = layout.pipeline * rng.between(1, 2);
  m.hidden_size = 64 * rng.between(1, 4);
  m.ffn_hidden_size = 16 * layout.tensor * rng.between(1, 6);
  AttentionSpec& a = m.attention;
  const std::int64_t groups = layout.tensor * rng.between(1, 2);
  a.num_query_groups = groups;
  a.num_heads = groups * rng.between(1, 3);
  a.head_dim = rng.pick<std::int64_t>({8, 24, 64});
  a.qk_layernorm = rng.coin();
  if (rng.below(3) == 0) {
    a.kind = AttentionKind::kMultiLatent;
    a.num_query_groups = a.num_heads;
    a.q_lora_rank = rng.pick<std::int64_t>({0, 32, 48});
    a.kv_lora_rank = 16 * layout.tensor;
    a.qk_head_dim = 16;
    a.qk_pos_emb_head_dim = 8 * layout.tensor;
    a.v_head_dim = rng.pick<std::int64_t>({16, 24});
  }
  m.moe_layer.assign(static_cast<std::size_t>(m.num_layers), false);
  if (with_experts) {
    MoeSpec moe;
    moe.num_experts = layout.expert * rng.between(1, 4);
    moe.topk = rng.between(1, std::min<std::int64_t>(3, moe.num_experts));
    moe.ffn_hidden_size = 16 * layout.expert_tensor * rng.between(1, 4);
    if (rng.coin()) moe.shared_ffn_hidden_size = 16 * layout.tensor * rng.between(1, 3);
    m.moe = moe;
    const bool mixed = rng.coin();
    for (std::size_t layer = 0; layer < m.moe_layer.size(); ++layer) {
      m.moe_layer[layer] = !mixed || rng.coin();
    }
    // Expert parallelism needs experts.
    m.moe_layer[static_cast<std::size_t>(rng.below(m.num_layers))] = true;
  }
  m.activation = rng.pick({Activation::kSwiglu, Activation::kGelu, Activation::kSquaredRelu});
  if (rng.below(5) == 0) m.mtp_num_layers = rng.between(1, 2);
  m.rotary_percent = rng.pick({1.0, 0.5});
  m.normalization = rng.pick({Normalization::kRmsNorm, Normalization::kLayerNorm});
  m.position_embedding = rng.pick({PositionEmbedding::kRope, PositionEmbedding::kNone});
  m.untie_embeddings_and_output_weights = rng.coin();
  m.vocab_size = 16 * layout.tensor * rng.between(1, 12);
  m.make_vocab_size_divisible_by = 16;
  return m;
}

TrainingOptions random_options(Rng& rng, const ModelSpec& model, bool two_stages) {
  TrainingOptions o;
  o.optimizer.distributed = rng.coin();
  o.optimizer.main_grad_bytes = rng.pick<std::int64_t>({2, 4});
  o.overlap_grad_reduce = rng.coin();
  o.overlap_param_gather = o.overlap_grad_reduce && o.optimizer.distributed && rng.coin();
  if (rng.coin()) o.ddp_bucket_size = rng.between(1, 100) * 1000;
  o.check_for_nan_in_loss_and_grad = rng.coin();
  o.cross_entropy = rng.pick(
      {CrossEntropy::kUnfused, CrossEntropy::kNativeFused, CrossEntropy::kTransformerEngine});
  o.linear_impl = rng.pick({LinearImpl::kDefault, LinearImpl::kFluxKeepGather});
  o.attention_backend =
      rng.pick({AttentionBackend::kFlash, AttentionBackend::kFused, AttentionBackend::kUnfused});
  o.cp_comm = rng.pick({ContextParallelComm::kPointToPoint, ContextParallelComm::kAllToAll});
  o.apply_rope_fusion = rng.coin();
  o.create_attention_mask_in_dataloader = rng.coin();
  o.hidden_dropout = rng.pick({0.0, 0.1});
  o.overlap_p2p_comm = rng.coin() || two_stages;
  o.overlap_moe_expert_parallel_comm = rng.coin();
  if (rng.below(4) == 0) {
    o.full_recompute = FullRecompute{rng.pick({RecomputeMethod::kUniform, RecomputeMethod::kBlock}),
                                     rng.between(1, 3)};
  } else if (rng.below(3) == 0) {
    SelectiveRecompute& r = o.recompute;
    r = {rng.coin(), rng.coin(), rng.coin(), rng.coin(), rng.coin(), rng.coin(), rng.coin()};
    r.activation_function = model.has_dense_layers() && rng.coin();
    r.mla_up_proj &= model.attention.kind == AttentionKind::kMultiLatent;
    r.moe &= model.moe.has_value();
    r.moe_act &= model.moe.has_value();
    r.shared_experts &= model.moe && model.moe->shared_ffn_hidden_size > 0;
  }
  const bool recomputes = o.full_recompute || o.recompute != SelectiveRecompute{};
  if (!recomputes && rng.coin()) {
    o.offload.min_tensor_elements = rng.pick<std::int64_t>({1, 256, 4096});
    o.offload.fraction = rng.pick({1.0, 0.6});
    if (rng.coin()) o.offload.max_inflight = rng.between(0, 2);
    for (const OffloadModule module : kOffloadModules) {
      const bool alone =
          module == OffloadModule::kAttnProj && !o.offload.offloads(OffloadModule::kCoreAttn);
      if (!alone && rng.coin()) o.offload.modules.push_back(module);
    }
  }
  if (!model.moe) return o;
  o.moe_aux_loss = rng.coin();
  o.moe_permute_fusion = rng.coin();
  o.moe_router_fp32 = rng.coin();
  if (rng.coin()) {
    o.moe_expert_capacity_factor = rng.pick({1.0, 1.3});
    o.moe_pad_expert_input_to_capacity = true;
  }
  o.moe_shared_expert_overlap =
      model.moe->shared_ffn_hidden_size > 0 && !o.recompute.shared_experts && rng.coin();
  if (rng.below(3) == 0) o.quantize_comm_bits = 8;
  if (rng.below(4) == 0 && !o.moe_shared_expert_overlap) {
    o.moe_dispatcher = MoeDispatcher::kHybridEp;
  }
  return o;
}

}  // namespace

Job random_job(std::uint64_t seed) {
  Rng rng(seed);
  Job job;
  job.name = "random";
  job.source = "random job " + std::to_string(seed);
  job.hardware = "bw1000";
  ParallelLayout& l = job.layout;
  l.tensor = rng.pick<std::int64_t>({1, 2, 4});
  l.context = rng.pick<std::int64_t>({1, 1, 2});
  l.pipeline = rng.between(1, 4);
  const bool with_experts = rng.below(3) != 0;
  if (with_experts) {
    l.expert = rng.pick<std::int64_t>({1, 2, 4, 8});
    l.expert_tensor = rng.pick<std::int64_t>({1, 1, 2});
  }
  // All degrees are powers of two, so one of TP * CP and EP * ETP divides the other.
  l.cards = l.pipeline * l.lanes_per_stage() * rng.between(1, 2);
  l.sequence_parallel = l.tensor > 1 && (l.expert > 1 || rng.coin());
  job.model = random_model(rng, l, with_experts);
  if (l.pipeline > 1 && rng.below(4) == 0) {
    l.first_stage_layers = 1;
    job.model.num_layers = 1 + 2 * (l.pipeline - 1);
    job.model.moe_layer.resize(static_cast<std::size_t>(job.model.num_layers), false);
  }
  if (l.pipeline > 1 && l.first_stage_layers == 0 && rng.coin()) {
    l.virtual_pipeline = rng.between(2, 3);
    job.model.num_layers = l.virtual_stages() * rng.between(1, 2);
    job.model.moe_layer.resize(static_cast<std::size_t>(job.model.num_layers), with_experts);
    l.microbatch_group = l.pipeline + rng.between(0, 2);
  }
  if (l.pipeline > 1 && l.first_stage_layers == 0 && rng.below(3) == 0) {
    l.listed_layers.assign(static_cast<std::size_t>(l.virtual_stages()), 1);
    for (std::int64_t i = l.virtual_stages(); i < job.model.num_layers; ++i) {
      ++l.listed_layers[static_cast<std::size_t>(rng.below(l.virtual_stages()))];
    }
  }
  job.options = random_options(rng, job.model, l.pipeline == 2);
  if (l.context > 1 && job.options.attention_backend == AttentionBackend::kUnfused) {
    job.options.attention_backend = AttentionBackend::kFused;
  }
  if (l.expert_tensor > 1) job.options.moe_dispatcher = MoeDispatcher::kAllToAll;
  job.versions.megatron_core = rng.pick<Version>({{0, 12}, {0, 13}, {0, 14}});
  job.versions.transformer_engine = rng.pick<Version>({{2, 0}, {2, 3}, {2, 10}});
  job.batch.micro_batch_size = rng.between(1, 2);
  job.batch.seq_length = 2 * l.context * l.tensor * rng.between(1, 12);
  const std::int64_t microbatches =
      l.virtual_pipeline > 1
          ? l.microbatch_group * rng.between(1, 2) + (rng.coin() ? l.pipeline : 0)
          : rng.between(1, 7);
  job.batch.global_batch_size = job.batch.micro_batch_size * l.data() * microbatches;
  if (job.combines_slots()) {
    // What Megatron refuses beside it, and what is not modelled there.
    TrainingOptions& o = job.options;
    o.overlap_moe_expert_parallel_comm = job.model.moe.has_value();
    o.delay_wgrad_compute = job.model.moe && rng.coin();
    o.ep_overlap_early_attn_memory_release = job.model.moe && rng.coin();
    o.moe_shared_expert_overlap = o.recompute.moe = false;
    o.full_recompute.reset();
    o.offload.modules.clear();
  }
  validate(job, "/");
  return job;
}

Job random_scheduled_job(std::uint64_t seed) {
  // Until one has stages.
  Job job = random_job(seed);
  for (std::uint64_t next = seed; job.layout.pipeline == 1;) job = random_job(next += 1000);
  Rng rng(seed);
  ParallelLayout& l = job.layout;
  const std::vector<std::pair<PipelineSchedule, std::string>>& all = pipeline_schedules();
  do {
    l.schedule = all[static_cast<std::size_t>(rng.between(1, std::ssize(all) - 1))].first;
  } while (l.schedule == PipelineSchedule::kDualPipe && l.pipeline % 2 != 0);
  l.virtual_pipeline = l.required_chunks();
  l.microbatch_group = 0;
  l.first_stage_layers = 0;
  job.model.num_layers = std::max(job.model.num_layers, l.virtual_stages());
  job.model.moe_layer.resize(static_cast<std::size_t>(job.model.num_layers), false);
  l.listed_layers.assign(static_cast<std::size_t>(l.virtual_stages()), 1);
  for (std::int64_t i = l.virtual_stages(); i < job.model.num_layers; ++i) {
    ++l.listed_layers[static_cast<std::size_t>(rng.below(l.virtual_stages()))];
  }
  TrainingOptions& o = job.options;
  o.overlap_moe_expert_parallel_comm = o.delay_wgrad_compute = false;
  o.ep_overlap_early_attn_memory_release = false;
  o.offload.modules.clear();
  if (job.combines_slots()) {
    o.moe_shared_expert_overlap = o.recompute.moe = false;
    o.full_recompute.reset();
  }
  if (l.schedule == PipelineSchedule::kCombined1F1B) {
    o.delay_wgrad_compute = rng.coin();
    o.ep_overlap_early_attn_memory_release = rng.coin();
  }
  const std::int64_t microbatches =
      l.fuses_slots() ? 2 * l.pipeline + 2 * rng.below(3) : rng.between(1, 9);
  job.batch.global_batch_size = job.batch.micro_batch_size * l.data() * microbatches;
  validate(job, "/");
  return job;
}

RoutingCounts random_routing(const Job& job, std::uint64_t seed) {
  RoutingCounts out = balanced_routing(job);
  if (out.moe_layers == 0 || job.options.moe_pad_expert_input_to_capacity) return out;
  Rng rng(seed ^ 0x726f7574696e67ULL);
  const std::int64_t total = rows_sent(job) * job.layout.lanes_per_stage();
  for (std::int64_t i = 0; i < out.microbatches * out.moe_layers; ++i) {
    std::int64_t* const row = out.counts.data() + i * out.experts;
    std::vector<std::int64_t> upto;  // cumulated popularity
    std::int64_t sum = 0;
    for (std::int64_t e = 0; e < out.experts; ++e) {
      upto.push_back(sum += std::int64_t{1} << rng.below(9));
      row[e] = 0;
    }
    for (std::int64_t r = 0; r < total; ++r) {
      const std::int64_t at = rng.below(sum);
      ++row[std::upper_bound(upto.begin(), upto.end(), at) - upto.begin()];
    }
  }
  return out;
}

std::string describe(const Job& job, std::uint64_t seed) {
  return "seed " + std::to_string(seed) + ": " + to_json(job).dump();
}

}  // namespace tidemark
