#include "sim/grouped_cost.h"

#include "hw_profiles/cost.h"

namespace tidemark {

GroupedCost::GroupedCost(const KernelCosts& kernels, const GroupedGemmWork& work,
                         std::int64_t tokens) {
  const auto seconds = [&](std::int64_t n) {
    return kernels.grouped_gemm(work.out_features, work.in_features, 1, n, work.pass).seconds;
  };
  const std::int64_t last = std::max<std::int64_t>(1, ceil_div(tokens, kStep));
  steps_.resize(static_cast<std::size_t>(last) + 1);
  for (std::int64_t step = 1; step <= last; ++step) {
    const double begin = seconds((step - 1) * kStep + 1);
    const double end = seconds(step * kStep);
    Step& s = steps_[static_cast<std::size_t>(step)];
    s.end_ns = round_up_ns(end).count();
    s.slope_q20 = static_cast<std::int64_t>((end - begin) * 1e9 * (1 << 20) / (kStep - 1));
  }
}

void GroupedCost::add(std::span<const std::int32_t> tokens, std::int64_t* duration) const {
  const Step* const steps = steps_.data();
  const auto most = static_cast<std::int32_t>((steps_.size() - 1) * kStep);
  for (std::size_t l = 0; l < tokens.size(); ++l) {
    const std::int32_t t = tokens[l];
    if (t > most) {
      duration[l] += at(t);
      continue;
    }
    const std::int32_t step =
        (t + static_cast<std::int32_t>(kStep) - 1) / static_cast<std::int32_t>(kStep);
    const Step& s = steps[step];
    duration[l] += s.end_ns - (((step * kStep - t) * s.slope_q20) >> 20);
  }
}

}  // namespace tidemark
