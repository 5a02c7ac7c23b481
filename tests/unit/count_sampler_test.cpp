#include "traces/count_sampler.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "traces/normal_table.h"

namespace tidemark::count_sampler_test {
namespace {

using testing::Each;
using testing::ElementsAre;
using testing::Ge;
using testing::Le;

std::int64_t sum_of(const std::vector<std::int64_t>& counts) {
  return std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
}

std::vector<double> uniform_shares(std::size_t experts) {
  return std::vector<double>(experts, 1 / static_cast<double>(experts));
}

TEST(NormalTable, IsTheQuantileFunction) {
  // P(Z > z) = erfc(z / sqrt 2) / 2; an error in it, divided by the density, is one in z.
  const NormalTable& normal = NormalTable::get();
  for (std::uint32_t bits = 0; bits < 0x80000000U - 20000; bits += bits < 1000 ? 1 : 10007) {
    const double tail = (2.0 * bits + 1) * 0x1p-33;
    const double z = normal.at(bits);
    const double density = std::exp(-z * z / 2) / std::sqrt(2 * 3.14159265358979323846);
    EXPECT_NEAR((std::erfc(z / std::sqrt(2.0)) / 2 - tail) / density, 0, 6e-5) << bits;
    EXPECT_EQ(normal.at(bits | 0x80000000U), -z);
  }
}

// P(max <= m) of `rows` rows over `experts` (a power of two) equal experts. Multinomial counts are
// independent Poisson counts given their total, so it is the convolution of `experts` Poisson
// distributions cut at m, at `rows`, over the Poisson probability of `rows`.
double multinomial_max_at_most(std::size_t rows, std::size_t experts, std::size_t m) {
  const auto poisson = [](double mean, std::size_t k) {
    const auto x = static_cast<double>(k);
    return std::exp(x * std::log(mean) - mean - std::lgamma(x + 1));
  };
  std::vector<double> p;
  const double mean = static_cast<double>(rows) / static_cast<double>(experts);
  for (std::size_t k = 0; k <= m; ++k) p.push_back(poisson(mean, k));
  for (std::size_t n = 1; n < experts; n *= 2) {
    const auto kept = [](double x) { return x > 1e-25; };
    const auto begin = static_cast<std::size_t>(std::find_if(p.begin(), p.end(), kept) - p.begin());
    const auto end =
        static_cast<std::size_t>(std::find_if(p.rbegin(), p.rend(), kept).base() - p.begin());
    std::vector<double> twice(std::min(2 * p.size() - 1, rows + 1), 0.0);
    for (std::size_t i = begin; i < end; ++i) {
      for (std::size_t j = begin; j < end && i + j < twice.size(); ++j) twice[i + j] += p[i] * p[j];
    }
    p = std::move(twice);
  }
  return rows < p.size() ? p[rows] / poisson(static_cast<double>(rows), rows) : 0;
}

// Of the largest count, and so of max/mean. The sample itself adds about half a percent.
double total_variation_of_max(std::size_t experts, std::size_t rows_each, int samples) {
  const std::size_t rows = experts * rows_each;
  CountSampler sampler;
  sampler.set_shares(uniform_shares(experts), static_cast<std::int64_t>(rows), 0);
  std::vector<std::int64_t> counts(experts);
  std::map<std::int64_t, double> sampled;
  for (int i = 0; i < samples; ++i) {
    sampler.draw(HashStream(7).inner(i), static_cast<std::int64_t>(rows), counts);
    sampled[*std::max_element(counts.begin(), counts.end())] += 1.0 / samples;
  }
  double distance = 0;
  double before = 0;
  const std::int64_t last = sampled.rbegin()->first + 8;
  for (std::int64_t m = sampled.begin()->first - 8; m <= last; ++m) {
    const double at_most = multinomial_max_at_most(rows, experts, static_cast<std::size_t>(m));
    distance += std::abs(at_most - before - sampled[m]);
    before = at_most;
  }
  return distance / 2;
}

TEST(CountSampler, SpreadsTheMaximumAsTheMultinomialDoes) {
  EXPECT_LT(total_variation_of_max(256, 32, 200'000), 0.01);
  EXPECT_LT(total_variation_of_max(16, 256, 200'000), 0.01);
}

TEST(CountSampler, HasTheMomentsOfTheMultinomial) {
  // Shares 0.1, 0.2, 0.3, 0.4 of 1,000 rows: variance 1000 p (1 - p), covariance -1000 p q.
  const std::vector<double> shares = {0.1, 0.2, 0.3, 0.4};
  CountSampler sampler;
  sampler.set_shares(shares, 1000, 0);
  std::vector<std::int64_t> counts(4);
  constexpr int kSamples = 200'000;
  std::vector<double> mean(4);
  std::vector<double> variance(4);
  double covariance = 0;
  for (int i = 0; i < kSamples; ++i) {
    sampler.draw(HashStream(1).inner(i), 1000, counts);
    std::vector<double> off(4);
    for (std::size_t e = 0; e < 4; ++e) {
      off[e] = static_cast<double>(counts[e]) - 1000 * shares[e];
      mean[e] += off[e] / kSamples;
      variance[e] += off[e] * off[e] / kSamples;
    }
    covariance += off[2] * off[3] / kSamples;
  }
  for (std::size_t e = 0; e < 4; ++e) {
    EXPECT_NEAR(mean[e], 0, 0.2);  // standard error 0.035
    // Rounding adds up to 2/12 of a row.
    EXPECT_NEAR(variance[e], 1000 * shares[e] * (1 - shares[e]), 2.5);
  }
  EXPECT_NEAR(covariance, -1000 * 0.3 * 0.4, 2.5);
}

TEST(CountSampler, AddsTheVarianceOfOverdispersion) {
  // Gamma-Poisson counts with mean m = 100 and relative variance 0.01 have variance m + 0.01 m^2 =
  // 200; given the total of 64 of them, (1 - 1/64) of that.
  CountSampler sampler;
  sampler.set_shares(uniform_shares(64), 6400, 0.01);
  std::vector<std::int64_t> counts(64);
  double variance = 0;
  constexpr int kSamples = 20'000;
  for (int i = 0; i < kSamples; ++i) {
    sampler.draw(HashStream(2).inner(i), 6400, counts);
    for (const std::int64_t count : counts) {
      const auto off = static_cast<double>(count - 100);
      variance += off * off / kSamples / 64;
    }
  }
  EXPECT_NEAR(variance, 200 * 63.0 / 64, 2);
}

TEST(CountSampler, KeepsTotalsAndBounds) {
  // From far below a row an expert to hundreds, equal and lopsided.
  for (const std::size_t experts : {1U, 3U, 8U, 64U}) {
    for (const std::int64_t tokens : {1, 2, 5, 40, 1000}) {
      for (const double lopsided : {0.0, 0.5, 5.0}) {
        std::vector<double> shares;
        for (std::size_t e = 0; e < experts; ++e) {
          shares.push_back(std::exp(-lopsided * static_cast<double>(e)));
        }
        const double sum = std::accumulate(shares.begin(), shares.end(), 0.0);
        for (double& share : shares) share /= sum;
        const std::int64_t topk = experts == 1 ? 1 : 2;
        CountSampler sampler;
        sampler.set_shares(shares, tokens * topk, 0.1);
        std::vector<std::int64_t> counts(experts);
        for (int i = 0; i < 50; ++i) {
          sampler.draw(HashStream(3).inner(i), tokens, counts);
          ASSERT_EQ(sum_of(counts), tokens * topk);
          ASSERT_THAT(counts, Each(Ge(0)));
          ASSERT_THAT(counts, Each(Le(tokens)));
        }
      }
    }
  }
}

TEST(Rescale, KeepsProportions) {
  std::vector<std::int64_t> counts = {10, 20, 30};
  rescale(counts, 12);
  EXPECT_THAT(counts, ElementsAre(2, 4, 6));
}

TEST(Rescale, PlacesRemaindersWhereTheRunningSumPassesAWhole) {
  // Running sums 5/3, 10/3, 5.
  std::vector<std::int64_t> counts = {1, 1, 1};
  rescale(counts, 5);
  EXPECT_THAT(counts, ElementsAre(1, 2, 2));
}

TEST(Rescale, SpreadsNothingEvenly) {
  std::vector<std::int64_t> counts = {0, 0};
  rescale(counts, 4);
  EXPECT_THAT(counts, ElementsAre(2, 2));
}

TEST(CapCounts, GivesTheExcessToTheOthers) {
  // 6 above 10; the others weigh 3 + 1 and 1 + 1: 4 and 2.
  std::vector<std::int64_t> counts = {16, 3, 1};
  cap_counts(counts, 10);
  EXPECT_THAT(counts, ElementsAre(10, 7, 3));
}

TEST(CapCounts, GoesOnUntilNoneIsAbove) {
  std::vector<std::int64_t> counts = {20, 9, 1};
  cap_counts(counts, 10);
  EXPECT_EQ(sum_of(counts), 30);
  EXPECT_THAT(counts, Each(10));
}

}  // namespace
}  // namespace tidemark::count_sampler_test
