// Durations of single kernels on one card, by the rules and rates of kernel_rates.h.
//
// A query that names a measured shape returns the measured time; other shapes follow the model that
// was fitted to the measurements; without measurements, shares of the peak.
#pragma once

#include <cstdint>
#include <span>

#include "hw_profiles/cost.h"
#include "hw_profiles/hardware_profile.h"
#include "hw_profiles/kernel_rates.h"
#include "models/job.h"
#include "models/kernel_shapes.h"

namespace tidemark {

class KernelCosts {
 public:
  explicit KernelCosts(const HardwareProfile& profile);

  // A linear layer of Transformer Engine, bf16 in and out.
  Cost gemm(const GemmShape& shape, Pass pass) const;

  // The vocabulary projection (torch.matmul).
  Cost logits_gemm(const GemmShape& shape, Pass pass) const;

  // One grouped product over the experts of a card; experts without tokens cost nothing.
  Cost grouped_gemm(std::int64_t out_features, std::int64_t in_features,
                    std::span<const std::int64_t> tokens_per_expert, Pass pass) const;
  Cost grouped_gemm(std::int64_t out_features, std::int64_t in_features, std::int64_t experts,
                    std::int64_t tokens_of_each, Pass pass) const;

  Cost attention(const AttentionShape& shape, Direction direction) const;

  Cost rms_norm(std::int64_t rows, std::int64_t width, Direction direction) const;

  // Transformer Engine's fused rotary embedding over `elements` of q and k together.
  Cost rope(std::int64_t elements, Direction direction) const;

  // A fused elementwise kernel: `bytes` read plus written in HBM.
  Cost streaming(double bytes) const;

  // Vocabulary-parallel loss over `logits` = tokens * vocabulary / TP elements.
  Cost cross_entropy(CrossEntropy path, std::int64_t logits, Direction direction) const;

  // Scores, top-k and auxiliary loss of one MoE layer, without the router's projection.
  Cost router(Direction direction) const;

  // What adding dW to the fp32 gradient buffer, instead of writing it in bf16, adds to the
  // backward-weight product: 6 bytes a parameter (read 4, write 4, not write 2), in the epilogue of
  // a tile while its compute unit multiplies nothing.
  Cost gradient_accumulation(std::int64_t parameters) const;

  Cost kernel_launch() const;  // device time of an empty kernel between two others
  Cost host_issue() const;     // host time to issue one framework operator

  const KernelRates& rates() const { return rates_; }

 private:
  Cost linear(const GemmShape& shape, Pass pass, const SlownessTable& slowness) const;

  KernelRates rates_;
  Cost launch_;
  Cost issue_;
  Cost router_;
};

}  // namespace tidemark
