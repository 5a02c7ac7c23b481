#include "traces/count_sampler.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "traces/normal_table.h"

namespace tidemark {

void CountSampler::set_shares(std::span<const double> shares, std::int64_t rows, double v) {
  rows_ = rows;
  cubics_.resize(shares.size());
  values_.resize(shares.size() + 1);  // deviates come in pairs
  for (std::size_t e = 0; e < shares.size(); ++e) {
    const double m = static_cast<double>(rows) * shares[e];
    Cubic& c = cubics_[e];
    c = {};
    if (m <= 0) continue;
    // Cumulants divided by m.
    const double vm = v * m;
    const double k2 = 1 + vm;
    const double k3 = 1 + vm * (3 + 2 * vm);
    const double k4 = 1 + vm * (7 + vm * (12 + 6 * vm));
    const double sigma = std::sqrt(m * k2);
    const double skew = k3 / (k2 * sigma);
    const double kurtosis = k4 / (k2 * sigma * sigma);
    c.c2 = sigma * skew / 6;
    c.c0 = m - c.c2;
    c.c3 = sigma * (kurtosis / 24 - skew * skew / 18);
    c.c1 = sigma + sigma * (skew * skew * 5 / 36 - kurtosis / 8);
  }
}

void CountSampler::draw(HashStream stream, std::int64_t tokens, std::span<std::int64_t> counts) {
  const NormalTable& normal = NormalTable::get();
  const std::size_t experts = cubics_.size();
  const auto value = [](const Cubic& c, double z) {
    return std::max(0.0, c.c0 + z * (c.c1 + z * (c.c2 + z * c.c3)));
  };
  double sum = 0;
  std::size_t e = 0;
  for (; e + 1 < experts; e += 2) {
    const std::uint64_t bits = stream.bits(static_cast<std::int64_t>(e));
    values_[e] = value(cubics_[e], normal.at(static_cast<std::uint32_t>(bits)));
    values_[e + 1] = value(cubics_[e + 1], normal.at(static_cast<std::uint32_t>(bits >> 32)));
    sum += values_[e] + values_[e + 1];
  }
  if (e < experts) {
    const std::uint64_t bits = stream.bits(static_cast<std::int64_t>(e));
    values_[e] = value(cubics_[e], normal.at(static_cast<std::uint32_t>(bits)));
    sum += values_[e];
  }
  if (sum <= 0) {  // no expert drew a row: the expected counts
    for (e = 0; e < experts; ++e) sum += values_[e] = cubics_[e].c0 + cubics_[e].c2;
  }
  const double scale = static_cast<double>(rows_) / sum;
  double running = 0.5;
  std::int64_t before = 0;
  std::int64_t largest = 0;
  for (e = 0; e < experts; ++e) {
    running += values_[e] * scale;
    const auto now = static_cast<std::int64_t>(running);
    counts[e] = now - before;
    largest = std::max(largest, counts[e]);
    before = now;
  }
  if (largest > tokens) cap_counts(counts, tokens);
}

void rescale(std::span<std::int64_t> counts, std::int64_t total) {
  const std::int64_t sum = std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
  const std::int64_t whole = sum == 0 ? std::ssize(counts) : sum;
  std::int64_t running = 0;
  std::int64_t before = 0;
  for (std::int64_t& count : counts) {
    running += sum == 0 ? 1 : count;
    const std::int64_t now = running * total / whole;
    count = now - before;
    before = now;
  }
}

void cap_counts(std::span<std::int64_t> counts, std::int64_t most) {
  for (;;) {
    std::int64_t excess = 0;
    std::int64_t free_sum = 0;  // rows of those below
    std::int64_t free_count = 0;
    for (std::int64_t& count : counts) {
      if (count > most) {
        excess += count - most;
        count = most;
      } else if (count < most) {
        free_sum += count;
        ++free_count;
      }
    }
    if (excess == 0) return;
    // In proportion to count + 1, so that empty ones take part too.
    const std::int64_t weight = free_sum + free_count;
    std::int64_t running = 0;
    std::int64_t before = 0;
    for (std::int64_t& count : counts) {
      if (count >= most) continue;
      running += count + 1;
      const std::int64_t now = running * excess / weight;
      count += now - before;
      before = now;
    }
  }
}

}  // namespace tidemark
