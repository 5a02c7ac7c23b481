// Time of one expert's part of a grouped product, by the tokens it received.
//
// The tiled model (hw_profiles/kernel_rates.h) jumps at every 256 rows where tokens are rows of the
// output; otherwise it is the larger of two lines. So the time at both ends of each 64 tokens is
// tabulated and interpolated between: exact but for the 64 tokens in which the two lines cross.
// More tokens than the table has run as several products.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "hw_profiles/kernel_costs.h"
#include "models/operator_graph.h"

namespace tidemark {

class GroupedCost {
 public:
  static constexpr std::int64_t kStep = 64;

  // `tokens`: how far the table reaches at least.
  GroupedCost(const KernelCosts& kernels, const GroupedGemmWork& work, std::int64_t tokens);

  // ns; 0 for an expert without tokens.
  std::int64_t at(std::int64_t tokens) const {
    const std::int64_t step = (tokens + kStep - 1) / kStep;
    if (step < static_cast<std::int64_t>(end_ns_.size())) {
      const auto s = static_cast<std::size_t>(step);
      return end_ns_[s] - (((step * kStep - tokens) * slope_q20_[s]) >> 20);
    }
    const std::int64_t most = (static_cast<std::int64_t>(end_ns_.size()) - 1) * kStep;
    return tokens / most * end_ns_.back() + at(tokens % most);
  }

  // duration[lane] += at(tokens[lane])
  void add(std::span<const std::int32_t> tokens, std::int64_t* duration) const;

 private:
  // [ceil(tokens / kStep)]
  std::vector<std::int64_t> end_ns_;     // with all tokens of the step
  std::vector<std::int64_t> slope_q20_;  // 2^-20 ns a token
};

}  // namespace tidemark
