#include "tests/support/skewed_jobs.h"

#include <vector>

#include "tests/support/jobs.h"
#include "tests/support/random_jobs.h"

namespace tidemark {

Job skewed_job(std::uint64_t seed) {
  Rng rng(seed ^ 0x736b65776564ULL);
  Job job = rng.coin() ? qwen3_30b_a3b() : deepseek_v3_1024();
  job.hardware = rng.pick({"bw1000", "h100"});
  job.versions.megatron_core = {0, 13};
  job.model.num_layers = rng.between(2, 4);
  const std::int64_t dense = rng.below(2);
  job.model.moe_layer.assign(static_cast<std::size_t>(job.model.num_layers), true);
  if (dense > 0) job.model.moe_layer[0] = false;
  job.model.hidden_size = rng.pick<std::int64_t>({2048, 4096, 5120, 7168});
  job.model.moe->num_experts = rng.pick<std::int64_t>({16, 32, 64});
  job.model.moe->topk = rng.between(2, 8);
  job.model.moe->ffn_hidden_size = rng.pick<std::int64_t>({768, 1024, 1536, 2048});
  job.layout.pipeline = job.model.num_layers % 2 == 0 ? rng.between(1, 2) : 1;
  job.layout.first_stage_layers = {};
  job.layout.tensor = rng.pick<std::int64_t>({1, 2});
  job.layout.sequence_parallel = job.layout.tensor > 1;
  job.layout.expert = 8;
  job.layout.cards = 8 * job.layout.pipeline;
  const std::int64_t microbatches = rng.between(3, 8);
  job.batch = {1, microbatches * job.layout.data(), rng.pick<std::int64_t>({2048, 4096, 8192})};
  job.options.moe_expert_capacity_factor = {};
  job.options.moe_pad_expert_input_to_capacity = false;
  if (rng.coin()) job.options.recompute.moe_act = job.options.recompute.layernorm = true;
  validate(job, "/");
  return job;
}

RoutingCounts skewed_routing(const Job& job, std::uint64_t seed) {
  RoutingCounts out = balanced_routing(job);
  Rng rng(seed ^ 0x726f7574696e67ULL);
  const auto popularity = [&] { return static_cast<double>(1 << rng.below(5)); };
  std::vector<double> lasting;
  for (std::int64_t e = 0; e < out.experts; ++e) lasting.push_back(popularity());
  for (std::int64_t i = 0; i < out.microbatches * out.moe_layers; ++i) {
    std::int64_t* const row = out.counts.data() + i * out.experts;
    std::int64_t total = 0;
    double sum = 0;
    std::vector<double> share;
    for (std::int64_t e = 0; e < out.experts; ++e) {
      total += row[e];
      share.push_back(lasting[static_cast<std::size_t>(e)] + popularity());
      sum += share.back();
    }
    for (std::int64_t e = 0; e < out.experts; ++e) {
      row[e] = static_cast<std::int64_t>(static_cast<double>(total) *
                                         share[static_cast<std::size_t>(e)] / sum);
    }
  }
  return out;
}

}  // namespace tidemark
