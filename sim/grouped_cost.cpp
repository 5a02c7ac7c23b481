#include "sim/grouped_cost.h"

#include "hw_profiles/cost.h"
#include "sim/lane_loops.h"

namespace tidemark {

GroupedCost::GroupedCost(const KernelCosts& kernels, const GroupedGemmWork& work,
                         std::int64_t tokens) {
  const auto seconds = [&](std::int64_t n) {
    return kernels.grouped_gemm(work.out_features, work.in_features, 1, n, work.pass).seconds;
  };
  const std::int64_t last = std::max<std::int64_t>(1, ceil_div(tokens, kStep));
  end_ns_.resize(static_cast<std::size_t>(last) + 1);
  slope_q20_.resize(end_ns_.size());
  for (std::int64_t step = 1; step <= last; ++step) {
    const double begin = seconds((step - 1) * kStep + 1);
    const double end = seconds(step * kStep);
    const auto s = static_cast<std::size_t>(step);
    end_ns_[s] = round_up_ns(end).count();
    slope_q20_[s] = static_cast<std::int64_t>((end - begin) * 1e9 * (1 << 20) / (kStep - 1));
  }
}

void GroupedCost::add(std::span<const std::int32_t> tokens, std::int64_t* duration) const {
  const auto tabulated = static_cast<std::int32_t>((std::ssize(end_ns_) - 1) * kStep);
  if (lane_loops::most(tokens.size(), tokens.data()) <= tabulated) {
    lane_loops::add_stepped_cost(tokens.size(), tokens.data(), end_ns_.data(), slope_q20_.data(),
                                 duration);
    return;
  }
  for (std::size_t l = 0; l < tokens.size(); ++l) duration[l] += at(tokens[l]);
}

}  // namespace tidemark
