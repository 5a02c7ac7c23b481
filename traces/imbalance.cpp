#include "traces/imbalance.h"

#include <algorithm>

namespace tidemark {

const std::vector<std::string>& ratio_names() {
  static const std::vector<std::string> kNames = {"microbatch", "layer", "card"};
  return kNames;
}

const std::string& name_of(RatioOf ratio) { return ratio_names()[static_cast<std::size_t>(ratio)]; }

double rank_ratio(std::span<const std::int64_t> counts, std::int64_t ranks) {
  const std::size_t size = counts.size() / static_cast<std::size_t>(ranks);
  std::int64_t total = 0;
  std::int64_t most = 0;
  for (std::size_t begin = 0; begin < counts.size(); begin += size) {
    std::int64_t rows = 0;
    for (const std::int64_t count : counts.subspan(begin, size)) rows += count;
    total += rows;
    most = std::max(most, rows);
  }
  if (total == 0) return 1;
  return static_cast<double>(most) * static_cast<double>(ranks) / static_cast<double>(total);
}

double iteration_ratio(const RoutingCounts& counts, std::int64_t ranks, RatioOf ratio) {
  const auto experts = static_cast<std::size_t>(counts.experts);
  std::vector<std::int64_t> sums(experts);
  double largest = 1;
  for (std::int64_t layer = 0; layer < counts.moe_layers; ++layer) {
    if (ratio == RatioOf::kLayer) std::fill(sums.begin(), sums.end(), 0);
    for (std::int64_t mb = 0; mb < counts.microbatches; ++mb) {
      const auto row = counts.row(mb, layer);
      if (ratio == RatioOf::kMicrobatch) {
        largest = std::max(largest, rank_ratio(row, ranks));
      } else {
        for (std::size_t e = 0; e < experts; ++e) sums[e] += row[e];
      }
    }
    if (ratio == RatioOf::kLayer) largest = std::max(largest, rank_ratio(sums, ranks));
  }
  return ratio == RatioOf::kCard && experts > 0 ? rank_ratio(sums, ranks) : largest;
}

}  // namespace tidemark
