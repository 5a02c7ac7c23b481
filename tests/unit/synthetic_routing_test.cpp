#include "traces/synthetic_routing.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "models/input_error.h"
#include "traces/imbalance.h"
#include "traces/routing_source.h"

namespace tidemark::synthetic_routing_test {
namespace {

using testing::AllOf;
using testing::Each;
using testing::Ge;
using testing::HasSubstr;
using testing::Le;

// 8 units, 4 microbatches, 6 layers, 64 experts on 16 ranks, top-4 of 4,096 tokens: 256 rows an
// expert.
constexpr RoutingShape kShape{8, 4, 6, 64, 4, 4096, 16};

Workload workload(WorkloadKind kind) {
  Workload w;
  w.kind = kind;
  return w;
}

const std::vector<WorkloadKind> kAll = {WorkloadKind::kBalanced,    WorkloadKind::kMultinomial,
                                        WorkloadKind::kDirichlet,   WorkloadKind::kHotExpert,
                                        WorkloadKind::kDomainShift, WorkloadKind::kPeriodic,
                                        WorkloadKind::kBurst,       WorkloadKind::kBagualu2};

RoutingCounts counts_at(const RoutingSource& source, std::int64_t iteration, std::int64_t unit) {
  RoutingCounts out;
  source.counts(iteration, unit, out);
  return out;
}

TEST(SyntheticRouting, AddsUpForEveryWorkload) {
  for (const WorkloadKind kind : kAll) {
    const auto source = make_routing(kShape, workload(kind), 1);
    for (const std::int64_t iteration : {0, 1, 99, 100, 101, 5000}) {
      const RoutingCounts counts = counts_at(*source, iteration, 7);
      ASSERT_EQ(std::ssize(counts.counts), kShape.counts_per_unit());
      EXPECT_THAT(counts.counts, Each(AllOf(Ge(0), Le(kShape.tokens))));
      for (std::int64_t mb = 0; mb < 4; ++mb) {
        for (std::int64_t layer = 0; layer < 6; ++layer) {
          const auto row = counts.row(mb, layer);
          EXPECT_EQ(std::accumulate(row.begin(), row.end(), std::int64_t{0}), kShape.rows())
              << name_of(kind);
        }
      }
    }
  }
}

TEST(SyntheticRouting, IsTheSameInAnyOrderAndFromAnyThread) {
  constexpr std::int64_t kIterations = 20;
  for (const WorkloadKind kind : kAll) {
    Workload w = workload(kind);
    w.drift_iterations = 12;
    const auto source = make_routing(kShape, w, 42);
    std::vector<RoutingCounts> forwards(kIterations * 2);
    for (std::int64_t i = 0; i < kIterations * 2; ++i) {
      source->counts(i / 2, i % 2, forwards[static_cast<std::size_t>(i)]);
    }
    std::vector<RoutingCounts> threaded(kIterations * 2);
    {
      std::vector<std::jthread> threads;
      for (std::int64_t t = 0; t < 4; ++t) {
        threads.emplace_back([&, t] {
          for (std::int64_t i = kIterations * 2 - 1 - t; i >= 0; i -= 4) {
            source->counts(i / 2, i % 2, threaded[static_cast<std::size_t>(i)]);
          }
        });
      }
    }
    const auto again = make_routing(kShape, w, 42);
    for (std::size_t i = 0; i < forwards.size(); ++i) {
      EXPECT_EQ(forwards[i].counts, threaded[i].counts);
      EXPECT_EQ(forwards[i].counts, counts_at(*again, static_cast<std::int64_t>(i / 2),
                                              static_cast<std::int64_t>(i % 2))
                                        .counts);
    }
  }
}

TEST(SyntheticRouting, DiffersBetweenSeedsIterationsAndUnits) {
  const auto one = make_routing(kShape, workload(WorkloadKind::kMultinomial), 1);
  const auto two = make_routing(kShape, workload(WorkloadKind::kMultinomial), 2);
  const auto counts = counts_at(*one, 0, 0).counts;
  EXPECT_NE(counts, counts_at(*two, 0, 0).counts);
  EXPECT_NE(counts, counts_at(*one, 1, 0).counts);
  EXPECT_NE(counts, counts_at(*one, 0, 1).counts);
}

TEST(SyntheticRouting, BalancedGivesEveryExpertTheSame) {
  const auto source = make_routing(kShape, workload(WorkloadKind::kBalanced), 1);
  EXPECT_THAT(counts_at(*source, 3, 2).counts, Each(256));
}

// Mean of max/mean over ranks, and its 97th percentile, of independent layers.
struct Ratios {
  double mean = 0;
  double p97 = 0;
};
Ratios dirichlet_ratios(double alpha, std::int64_t ranks) {
  const RoutingShape shape{1, 1, 20, 256, 8, 65536, ranks};
  Workload w = workload(WorkloadKind::kDirichlet);
  w.alpha = alpha;
  w.microbatch_correlation = 1;
  std::vector<double> ratios;
  RoutingCounts counts;
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    make_routing(shape, w, seed)->counts(0, 0, counts);
    for (std::int64_t layer = 0; layer < 20; ++layer) {
      ratios.push_back(rank_ratio(counts.row(0, layer), ranks));
    }
  }
  std::sort(ratios.begin(), ratios.end());
  return {std::accumulate(ratios.begin(), ratios.end(), 0.0) / 4000, ratios[4000 * 97 / 100]};
}

TEST(SyntheticRouting, DirichletSpreadsRanksAsExactSamplingDoes) {
  // Means and 97th percentiles of exact Dirichlet-multinomial draws, 256 experts:
  // routing statistics of the project's references (EP8 a4, EP16 a16, EP32 a16, EP64 a64).
  struct Case {
    double alpha;
    std::int64_t ranks;
    double mean, p97;
  };
  for (const Case& c : {Case{4, 8, 1.130, 1.240}, Case{16, 16, 1.117, 1.196},
                        Case{16, 32, 1.193, 1.292}, Case{64, 64, 1.159, 1.223}}) {
    const Ratios found = dirichlet_ratios(c.alpha, c.ranks);
    EXPECT_NEAR(found.mean, c.mean, 0.01) << c.alpha << " EP" << c.ranks;
    EXPECT_NEAR(found.p97, c.p97, 0.02) << c.alpha << " EP" << c.ranks;
  }
}

// Correlation of loads (counts over their mean, minus 1) between two samples.
double correlation(const std::vector<double>& a, const std::vector<double>& b) {
  const double ab = std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
  const double aa = std::inner_product(a.begin(), a.end(), a.begin(), 0.0);
  const double bb = std::inner_product(b.begin(), b.end(), b.begin(), 0.0);
  return ab / std::sqrt(aa * bb);
}
std::vector<double> loads(const RoutingCounts& counts, std::int64_t mb, std::int64_t layer) {
  std::vector<double> out;
  for (const std::int64_t count : counts.row(mb, layer)) {
    out.push_back(static_cast<double>(count * counts.experts) / 1e6 / 4 - 1);
  }
  return out;
}
// So many rows that the multinomial part is small: 4e6 over 1,024 experts, relative variance 2.6e-4
// beside 1 / alpha = 0.0625.
constexpr RoutingShape kPrecise{2, 2, 2, 1024, 4, 1'000'000, 16};

TEST(SyntheticRouting, CorrelatesMicrobatchesAndUnitsAsAsked) {
  Workload w = workload(WorkloadKind::kDirichlet);
  w.microbatch_correlation = 0.6;
  const auto source = make_routing(kPrecise, w, 5);
  const RoutingCounts unit0 = counts_at(*source, 0, 0);
  const RoutingCounts unit1 = counts_at(*source, 0, 1);
  // Standard error of a correlation of 0.6 over 1,024 values: 0.02.
  EXPECT_NEAR(correlation(loads(unit0, 0, 0), loads(unit0, 1, 0)), 0.6, 0.07);
  EXPECT_NEAR(correlation(loads(unit0, 0, 1), loads(unit1, 0, 1)), 0.6, 0.07);
  EXPECT_NEAR(correlation(loads(unit0, 0, 0), loads(unit0, 0, 1)), 0, 0.1);
}

TEST(SyntheticRouting, CorrelatesLayersAsAsked) {
  Workload w = workload(WorkloadKind::kDirichlet);
  w.microbatch_correlation = 1;
  w.layer_correlation = 0.5;
  const RoutingCounts counts = counts_at(*make_routing(kPrecise, w, 6), 0, 0);
  EXPECT_NEAR(correlation(loads(counts, 0, 0), loads(counts, 0, 1)), 0.5, 0.08);
}

TEST(SyntheticRouting, ForgetsLoadsLinearlyOverTheDrift) {
  Workload w = workload(WorkloadKind::kDirichlet);
  w.microbatch_correlation = 1;
  w.drift_iterations = 80;  // eight blocks of ten
  const auto source = make_routing(kPrecise, w, 7);
  const std::vector<double> first = loads(counts_at(*source, 200, 0), 0, 0);
  const auto later = [&](std::int64_t lag) {
    return correlation(first, loads(counts_at(*source, 200 + lag, 0), 0, 0));
  };
  EXPECT_NEAR(later(20), 0.75, 0.08);
  EXPECT_NEAR(later(40), 0.5, 0.08);
  EXPECT_NEAR(later(60), 0.25, 0.1);
  EXPECT_NEAR(later(80), 0, 0.1);
  EXPECT_NEAR(later(400), 0, 0.1);
}

TEST(SyntheticRouting, WithoutDriftLoadsStay) {
  Workload w = workload(WorkloadKind::kDirichlet);
  w.microbatch_correlation = 1;
  const auto source = make_routing(kPrecise, w, 8);
  EXPECT_GT(correlation(loads(counts_at(*source, 0, 0), 0, 0),
                        loads(counts_at(*source, 100'000, 0), 0, 0)),
            0.98);
}

TEST(SyntheticRouting, TheHotExpertReceivesItsMultiple) {
  Workload w = workload(WorkloadKind::kHotExpert);
  w.hot_ratio = 8;
  const auto source = make_routing(kShape, w, 9);
  const RoutingCounts counts = counts_at(*source, 0, 0);
  for (std::int64_t layer = 0; layer < 6; ++layer) {
    // 8 * 256 = 2,048 rows with a standard deviation of about 45 and overdispersion 160.
    const auto row = counts.row(0, layer);
    EXPECT_NEAR(static_cast<double>(*std::max_element(row.begin(), row.end())), 2048, 650);
  }
}

TEST(SyntheticRouting, AShiftChangesTheLoadsForGood) {
  Workload w = workload(WorkloadKind::kDomainShift);
  w.microbatch_correlation = 1;
  w.shift_iteration = 50;
  const auto source = make_routing(kPrecise, w, 10);
  const auto at = [&](std::int64_t iteration) {
    return loads(counts_at(*source, iteration, 0), 0, 0);
  };
  EXPECT_GT(correlation(at(0), at(49)), 0.98);
  EXPECT_NEAR(correlation(at(49), at(50)), 0, 0.1);
  EXPECT_GT(correlation(at(50), at(5000)), 0.98);
}

TEST(SyntheticRouting, APeriodReturns) {
  Workload w = workload(WorkloadKind::kPeriodic);
  w.microbatch_correlation = 1;
  w.period_iterations = 40;
  const auto source = make_routing(kPrecise, w, 11);
  const auto at = [&](std::int64_t iteration) {
    return loads(counts_at(*source, iteration, 0), 0, 0);
  };
  EXPECT_NEAR(correlation(at(0), at(20)), 0, 0.1);
  EXPECT_GT(correlation(at(0), at(40)), 0.98);
  EXPECT_GT(correlation(at(20), at(60)), 0.98);
}

// BaGuaLu-2's published distribution, on a small part of a model: 2 layers, 2 microbatches.
TEST(SyntheticRouting, Bagualu2HasTheSharesOfItsReport) {
  for (const RatioOf ratio : {RatioOf::kMicrobatch, RatioOf::kLayer, RatioOf::kCard}) {
    for (const std::int64_t ranks : {16, 32, 64}) {
      const RoutingShape shape{1, 2, 2, 256, 8, 32768, ranks};
      Workload w = workload(WorkloadKind::kBagualu2);
      w.ratio_of = ratio;
      const auto source = make_routing(shape, w, 12);
      RoutingCounts counts;
      int below = 0;
      double most = 0;
      for (std::int64_t iteration = 0; iteration < 10'000; ++iteration) {
        source->counts(iteration, 0, counts);
        const double found = iteration_ratio(counts, ranks, ratio);
        below += found < 1.2;
        most = std::max(most, found);
      }
      EXPECT_NEAR(below / 100.0, 97.1, 0.5) << name_of(ratio) << " EP" << ranks;
      EXPECT_THAT(most, AllOf(Ge(2.4), Le(2.6))) << name_of(ratio) << " EP" << ranks;
    }
  }
}

// The size of the job does not matter, since bursts and bounds are set in rows: many layers and
// microbatches, and few tokens.
TEST(SyntheticRouting, Bagualu2IsCalmOutsideBurstsInLargeAndSmallJobs) {
  for (const RoutingShape& shape :
       {RoutingShape{1, 32, 90, 256, 8, 65536, 64}, RoutingShape{1, 16, 20, 256, 8, 512, 64}}) {
    const auto source = make_routing(shape, workload(WorkloadKind::kBagualu2), 13);
    RoutingCounts counts;
    int bursts = 0;
    for (std::int64_t iteration = 0; iteration < 30; ++iteration) {
      source->counts(iteration, 0, counts);
      const double found = iteration_ratio(counts, 64, RatioOf::kMicrobatch);
      EXPECT_LE(found, 2.6);
      bursts += found >= 1.2;
    }
    EXPECT_LE(bursts, 5);  // 0.87 expected
  }
}

TEST(MakeRouting, RefusesWhatTheShapeCannotHave) {
  RoutingShape two_ranks = kShape;
  two_ranks.ranks = 2;
  try {
    make_routing(two_ranks, workload(WorkloadKind::kBagualu2), 1);
    FAIL();
  } catch (const InputError& error) {
    EXPECT_THAT(error.what(), HasSubstr("/burst_high: 2.6, expected at most the number of expert"));
  }
  Workload hot = workload(WorkloadKind::kHotExpert);
  hot.hot_ratio = 16.5;  // experts / top-k = 16
  EXPECT_THROW(make_routing(kShape, hot, 1), InputError);
  hot.hot_ratio = 16;
  EXPECT_NO_THROW(make_routing(kShape, hot, 1));
}

}  // namespace
}  // namespace tidemark::synthetic_routing_test
