#include "hw_profiles/kernel_costs.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <cmath>

namespace tidemark {
namespace {

CostKind kind_of(const SourcedNumber& number) {
  switch (number.kind) {
    case NumberKind::kMeasured:
      return CostKind::kMeasured;
    case NumberKind::kDatasheet:
      return CostKind::kRoofline;
    case NumberKind::kAssumed:
      break;
  }
  return CostKind::kAssumed;
}

// Rows, columns and depth of the product of a pass.
std::array<std::int64_t, 3> product(const GemmShape& shape, Pass pass) {
  switch (pass) {
    case Pass::kForward:
      return {shape.tokens, shape.out_features, shape.in_features};
    case Pass::kBackwardInput:
      return {shape.tokens, shape.in_features, shape.out_features};
    case Pass::kBackwardWeight:
      break;
  }
  return {shape.out_features, shape.in_features, shape.tokens};
}

// The rate of these head dimensions, else of the nearest ones by FLOPs.
double attention_seconds_per_flop(const std::vector<AttentionRate>& rates, std::int64_t qk_dim,
                                  std::int64_t v_dim, bool& exact) {
  const auto distance = [&](const AttentionRate& rate) {
    return std::abs(std::log(as_double(rate.qk_dim + rate.v_dim) / as_double(qk_dim + v_dim)));
  };
  const auto best = std::min_element(
      rates.begin(), rates.end(),
      [&](const AttentionRate& a, const AttentionRate& b) { return distance(a) < distance(b); });
  exact = best->qk_dim == qk_dim && best->v_dim == v_dim;
  return best->seconds_per_flop;
}

}  // namespace

KernelCosts::KernelCosts(const HardwareProfile& profile)
    : rates_(kernel_rates(profile)),
      launch_{profile.kernel_launch_us.value * kMicro, kind_of(profile.kernel_launch_us)},
      issue_{profile.host_issue_us.value * kMicro, kind_of(profile.host_issue_us)},
      router_{profile.router_us.value * kMicro, kind_of(profile.router_us)} {}

Cost KernelCosts::linear(const GemmShape& shape, Pass pass, const SlownessTable& slowness) const {
  const auto [rows, columns, depth] = product(shape, pass);
  if (rows == 0 || columns == 0 || depth == 0) return {0, rates_.measured};
  const double modelled = rates_.gemm.seconds(rows, columns, depth);
  const auto it = slowness.exact.find({shape.out_features, shape.in_features});
  if (it == slowness.exact.end()) return {modelled * slowness.typical, rates_.fitted};
  const SlownessTable::Entry& entry = it->second;
  if (entry.tokens == shape.tokens) return {modelled * entry.slowness, rates_.measured};
  // Fewer tokens than a tile run on narrower tiles than modelled: that gain is theirs alone.
  const bool padded = entry.tokens < rates_.gemm.tile_rows;
  return {modelled * (padded ? std::max(1.0, entry.slowness) : entry.slowness), rates_.fitted};
}

Cost KernelCosts::gemm(const GemmShape& shape, Pass pass) const {
  return linear(shape, pass, rates_.linear);
}

Cost KernelCosts::logits_gemm(const GemmShape& shape, Pass pass) const {
  return linear(shape, pass, rates_.logits);
}

Cost KernelCosts::grouped_gemm(std::int64_t out_features, std::int64_t in_features,
                               std::span<const std::int64_t> tokens_per_expert, Pass pass) const {
  Cost total{0, rates_.measured};
  for (const std::int64_t tokens : tokens_per_expert) {
    const Cost one = linear({out_features, tokens, in_features}, pass, rates_.grouped);
    total.seconds += one.seconds;
    if (tokens > 0) total.kind = std::max(total.kind, one.kind);
  }
  return total;
}

Cost KernelCosts::grouped_gemm(std::int64_t out_features, std::int64_t in_features,
                               std::int64_t experts, std::int64_t tokens_of_each, Pass pass) const {
  const Cost one = linear({out_features, tokens_of_each, in_features}, pass, rates_.grouped);
  return {one.seconds * as_double(experts), one.kind};
}

Cost KernelCosts::attention(const AttentionShape& shape, Direction direction) const {
  const bool forward = direction == Direction::kForward;
  const double heads = as_double(shape.batch * shape.heads);
  const double all_flops = attention_flops_forward(shape.qk_dim, shape.v_dim) +
                           attention_flops_backward(shape.qk_dim, shape.v_dim);
  const double flops = forward ? attention_flops_forward(shape.qk_dim, shape.v_dim)
                               : attention_flops_backward(shape.qk_dim, shape.v_dim);
  const double bytes = forward ? attention_bytes_forward(shape.qk_dim, shape.v_dim)
                               : attention_bytes_backward(shape.qk_dim, shape.v_dim);
  bool exact = false;
  const double seconds_per_flop =
      attention_seconds_per_flop(rates_.attention, shape.qk_dim, shape.v_dim, exact);
  const double pairs =
      heads * attention_pairs(shape.seq_q, shape.seq_kv, shape.causal) * flops * seconds_per_flop;
  const double streamed = heads * as_double(shape.seq_q) * bytes / rates_.bytes_per_second;
  // One block of the mask's longest row; without a mask all blocks are alike and none is left over.
  const double tail = shape.causal ? rates_.attention_tail_seconds_per_token *
                                         as_double(shape.seq_kv) * flops / all_flops
                                   : 0;
  return {pairs + streamed + tail, exact ? rates_.fitted : CostKind::kAssumed};
}

Cost KernelCosts::rms_norm(std::int64_t rows, std::int64_t width, Direction direction) const {
  const double elements = as_double(rows) * as_double(width);
  const double bytes = direction == Direction::kForward ? kNormBytesForward : kNormBytesBackward;
  if (has_tuned_rms_norm(width)) return streaming(elements * bytes);
  const double share = bytes / (kNormBytesForward + kNormBytesBackward);
  return {elements * rates_.general_norm_seconds_per_element * share, rates_.fitted};
}

Cost KernelCosts::rope(std::int64_t elements, Direction) const {
  return {as_double(elements) * rates_.rope_seconds_per_element / 2, rates_.fitted};
}

Cost KernelCosts::streaming(double bytes) const {
  return {bytes / rates_.bytes_per_second, rates_.streamed};
}

Cost KernelCosts::cross_entropy(CrossEntropy path, std::int64_t logits, Direction direction) const {
  if (path == CrossEntropy::kTransformerEngine) {
    // bf16 throughout. Forward reads the row for its maximum and sum, then reads it again and
    // overwrites it with the gradient; backward scales that.
    constexpr double kForwardBytes = 6;
    constexpr double kBackwardBytes = 4;
    return streaming(as_double(logits) *
                     (direction == Direction::kForward ? kForwardBytes : kBackwardBytes));
  }
  const CostKind kind = path == CrossEntropy::kUnfused ? rates_.fitted : CostKind::kAssumed;
  return {as_double(logits) * rates_.cross_entropy_seconds_per_logit / 2, kind};
}

Cost KernelCosts::router(Direction) const { return {router_.seconds / 2, router_.kind}; }

Cost KernelCosts::gradient_accumulation(std::int64_t parameters) const {
  constexpr double kBytes = 6;
  return streaming(as_double(parameters) * kBytes);
}

Cost KernelCosts::kernel_launch() const { return launch_; }

Cost KernelCosts::host_issue() const { return issue_; }

}  // namespace tidemark
