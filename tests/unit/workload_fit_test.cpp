#include "traces/workload_fit.h"

#include <cmath>
#include <functional>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tidemark::workload_fit_test {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;

// Counts as a function of iteration and expert; the rest is alike.
class Given : public RoutingSource {
 public:
  Given(const RoutingShape& shape, std::function<std::int64_t(std::int64_t, std::int64_t)> count)
      : shape_(shape), count_(std::move(count)) {}
  void counts(std::int64_t iteration, std::int64_t, RoutingCounts& out) const override {
    resize(out, shape_);
    for (std::size_t i = 0; i < out.counts.size(); ++i) {
      out.counts[i] = count_(iteration, static_cast<std::int64_t>(i) % shape_.experts);
    }
  }

 private:
  RoutingShape shape_;
  std::function<std::int64_t(std::int64_t, std::int64_t)> count_;
};

TEST(TwoSampleDistance, IsTheLargestDifferenceOfTheDistributions) {
  EXPECT_EQ(two_sample_distance({1, 2, 3, 4}, {1, 2, 3, 4}), 0);
  EXPECT_EQ(two_sample_distance({1, 2}, {3, 4}), 1);
  // At 2: 2/4 against 1/2; at 1: 1/4 against 0.
  EXPECT_EQ(two_sample_distance({1, 2, 3, 4}, {2, 4}), 0.25);
}

TEST(DescribeRouting, HasMaxOverMeanOfEachNumberOfRanks) {
  // 4 experts with 30, 10, 10, 10 rows of 60, in iteration 1 with 15 each.
  const RoutingShape shape{1, 2, 3, 4, 1, 60, 2};
  const Given source(shape, [](std::int64_t iteration, std::int64_t e) -> std::int64_t {
    return iteration == 1 ? 15 : e == 0 ? 30 : 10;
  });
  const TraceStatistics found = describe_routing(source, shape, 0, 4, {4, 2}, RatioOf::kMicrobatch);
  // Four ranks: 30 / 15; two: 40 / 30.
  EXPECT_THAT(found.ranks[0].iteration_ratios, ElementsAre(2, 1, 2, 2));
  EXPECT_DOUBLE_EQ(found.ranks[0].max, 2);
  EXPECT_DOUBLE_EQ(found.ranks[0].mean, (2 + 1 + 2 + 2) / 4.0);
  EXPECT_DOUBLE_EQ(found.ranks[1].max, 40.0 / 30);
  EXPECT_EQ(found.ranks[0].sample.size(), 4U * 2 * 3);
  EXPECT_EQ(found.ranks[0].share_below(1.2), 0.25);
  // Loads 1, -1/3, -1/3, -1/3 in three of four iterations: the variance 1/3, less the multinomial's
  // (1 - 1/4) / 15.
  EXPECT_NEAR(found.loads.variance, 0.75 / 3 - 0.75 / 15, 1e-12);
  // All microbatches and layers are alike.
  EXPECT_NEAR(found.loads.between_microbatches, 0.75 / 3, 1e-12);
  EXPECT_NEAR(found.loads.between_layers, 0.75 / 3, 1e-12);
}

// 60 iterations of a workload that is known.
WorkloadFit fit_of(const Workload& workload, std::int64_t iterations = 60) {
  constexpr RoutingShape kShape{1, 4, 8, 256, 8, 65536, 64};
  const auto source = make_routing(kShape, workload, 21);
  return fit_and_compare(*source, kShape, iterations, 0.5, {16, 64}, 22);
}

TEST(FitWorkload, FindsTheParametersOfADirichletTrace) {
  Workload w;
  w.kind = WorkloadKind::kDirichlet;
  w.alpha = 30;
  w.microbatch_correlation = 0.7;
  w.layer_correlation = 0.4;
  w.drift_iterations = 32;
  const WorkloadFit fit = fit_of(w, 400);
  EXPECT_EQ(fit.workload.kind, WorkloadKind::kDirichlet);
  EXPECT_NEAR(fit.workload.alpha, 30, 1.5);
  EXPECT_NEAR(fit.workload.microbatch_correlation, 0.7, 0.03);
  EXPECT_NEAR(fit.workload.layer_correlation, 0.4, 0.05);
  EXPECT_NEAR(static_cast<double>(fit.workload.drift_iterations), 32, 5);
  for (const FitOfRanks& ranks : fit.ranks) {
    EXPECT_LT(ranks.distance, 0.1) << ranks.ranks;
    EXPECT_NEAR(ranks.fitted_mean, ranks.held_out_mean, 0.01);
    EXPECT_NEAR(ranks.fitted_p97, ranks.held_out_p97, 0.02);
  }
  for (const auto& [lag, r] : fit.held_out_autocorrelation) {
    EXPECT_NEAR(fit.fitted_autocorrelation.at(lag), r, 0.12) << lag;
  }
}

TEST(FitWorkload, TakesTheMultinomialWhereNothingElseIsThere) {
  Workload w;
  w.kind = WorkloadKind::kMultinomial;
  const WorkloadFit fit = fit_of(w);
  EXPECT_EQ(fit.workload.kind, WorkloadKind::kMultinomial);
  for (const FitOfRanks& ranks : fit.ranks) EXPECT_LT(ranks.distance, 0.05);
}

TEST(FitWorkload, FindsNoDriftWhereLoadsStay) {
  Workload w;
  w.kind = WorkloadKind::kDirichlet;
  EXPECT_EQ(fit_of(w).workload.drift_iterations, 0);
}

TEST(FitWorkload, SaysWhatItCannotTell) {
  const RoutingShape shape{1, 1, 1, 8, 1, 80, 2};
  const Given source(shape,
                     [](std::int64_t, std::int64_t e) -> std::int64_t { return e == 0 ? 73 : 1; });
  const WorkloadFit fit = fit_and_compare(source, shape, 2, 0.5, {2}, 1);
  EXPECT_THAT(fit.notes, Contains(HasSubstr("one microbatch")));
  EXPECT_THAT(fit.notes, Contains(HasSubstr("one iteration")));
  EXPECT_THAT(fit.notes, Contains(HasSubstr("more uneven than the workload can be")));
}

}  // namespace
}  // namespace tidemark::workload_fit_test
