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
    if (step < static_cast<std::int64_t>(steps_.size())) {
      const Step& s = steps_[static_cast<std::size_t>(step)];
      return s.end_ns - (((step * kStep - tokens) * s.slope_q20) >> 20);
    }
    const std::int64_t most = (static_cast<std::int64_t>(steps_.size()) - 1) * kStep;
    return tokens / most * steps_.back().end_ns + at(tokens % most);
  }

  // duration[lane] += at(tokens[lane])
  void add(std::span<const std::int32_t> tokens, std::int64_t* duration) const;

 private:
  struct Step {
    std::int64_t end_ns = 0;     // with all tokens of the step
    std::int64_t slope_q20 = 0;  // 2^-20 ns a token
  };
  std::vector<Step> steps_;  // [ceil(tokens / kStep)]
};

}  // namespace tidemark
