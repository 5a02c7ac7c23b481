#include "tests/support/skewed_jobs.h"

#include <cmath>
#include <vector>

#include "tests/support/jobs.h"
#include "tests/support/random_jobs.h"

namespace tidemark {
namespace {

Job deepseek(Rng& rng) {
  Job job = deepseek_v3_1024();
  job.hardware = rng.pick({"bw1000", "h100"});
  job.layout.expert = rng.pick<std::int64_t>({16, 32, 64});
  job.model.moe->num_experts = 4 * job.layout.expert;
  job.layout.cards = 8 * job.layout.expert;
  job.options.moe_expert_capacity_factor = {};
  job.options.moe_pad_expert_input_to_capacity = false;
  job.options.quantize_comm_bits = {};
  if (rng.coin()) job.options.recompute.moe_act = job.options.recompute.mla_up_proj = true;
  return job;
}

Job qwen(Rng& rng) {
  Job job = qwen3_30b_a3b();
  job.hardware = rng.pick({"bw1100", "h100"});
  job.layout.pipeline = rng.pick<std::int64_t>({1, 2, 4});
  job.layout.expert = rng.pick<std::int64_t>({8, 16});
  job.layout.cards = job.layout.pipeline * job.layout.expert;
  if (rng.coin()) job.options.recompute.moe_act = job.options.recompute.layernorm = true;
  return job;
}

}  // namespace

Job skewed_job(std::uint64_t seed) {
  Rng rng(seed ^ 0x736b65776564ULL);
  Job job = rng.coin() ? deepseek(rng) : qwen(rng);
  const std::int64_t microbatches = rng.between(8, 24);
  job.batch.global_batch_size = microbatches * job.layout.data();
  job.batch.seq_length = rng.pick<std::int64_t>({2048, 4096});
  validate(job, "/");
  return job;
}

RoutingCounts skewed_routing(const Job& job, std::uint64_t seed) {
  RoutingCounts out = balanced_routing(job);
  Rng rng(seed ^ 0x726f7574696e67ULL);
  const auto power_of_two_up_to = [&](double most) {
    return std::exp2(most * static_cast<double>(rng.below(1024)) / 1024);
  };
  std::vector<double> popularity;  // [MoE layer][expert]
  for (std::int64_t i = 0; i < out.moe_layers * out.experts; ++i) {
    popularity.push_back(power_of_two_up_to(4));
  }
  for (std::int64_t i = 0; i < out.microbatches * out.moe_layers; ++i) {
    std::int64_t* const row = out.counts.data() + i * out.experts;
    const double* const lasting = popularity.data() + i % out.moe_layers * out.experts;
    std::vector<double> share;
    double sum = 0;
    std::int64_t total = 0;
    for (std::int64_t e = 0; e < out.experts; ++e) {
      share.push_back(lasting[e] * power_of_two_up_to(0.5));
      sum += share.back();
      total += row[e];
    }
    for (std::int64_t e = 0; e < out.experts; ++e) {
      row[e] = static_cast<std::int64_t>(static_cast<double>(total) *
                                         share[static_cast<std::size_t>(e)] / sum);
    }
  }
  return out;
}

}  // namespace tidemark
