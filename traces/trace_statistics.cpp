#include "traces/trace_statistics.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <numeric>

namespace tidemark {
namespace {

constexpr std::size_t kLargestSample = 1 << 18;
constexpr std::int64_t kLongestLag = 64;

// Values as they come; every second of them whenever there are too many.
class Sample {
 public:
  void add(double value) {
    sum_ += value;
    max_ = std::max(max_, value);
    if (count_++ % step_ != 0) return;
    values_.push_back(value);
    if (values_.size() < kLargestSample) return;
    for (std::size_t i = 0; 2 * i < values_.size(); ++i) values_[i] = values_[2 * i];
    values_.resize((values_.size() + 1) / 2);
    step_ *= 2;
  }
  void fill(RankStatistics& out) {
    std::sort(values_.begin(), values_.end());
    const auto quantile = [&](double q) {
      return values_[static_cast<std::size_t>(q * static_cast<double>(values_.size() - 1))];
    };
    out.mean = sum_ / static_cast<double>(count_);
    out.p50 = quantile(0.5);
    out.p97 = quantile(0.97);
    out.p99 = quantile(0.99);
    out.max = max_;
    out.sample = std::move(values_);
  }

 private:
  std::vector<double> values_;
  double sum_ = 0;
  double max_ = 0;
  std::int64_t count_ = 0;
  std::int64_t step_ = 1;
};

double dot(const std::vector<double>& a, const std::vector<double>& b) {
  return std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
}

// Sums for LoadStatistics.
class LoadMoments {
 public:
  explicit LoadMoments(const RoutingShape& shape) : shape_(shape) {}

  void begin_iteration() { mean_.assign(layer_experts(), 0); }

  // One unit's counts of the iteration.
  void add(const RoutingCounts& counts) {
    const auto experts = static_cast<std::size_t>(counts.experts);
    for (std::int64_t layer = 0; layer < counts.moe_layers; ++layer) {
      std::vector<double> sums(experts);
      for (std::int64_t mb = 0; mb < counts.microbatches; ++mb) {
        const auto row = counts.row(mb, layer);
        const std::int64_t rows = std::accumulate(row.begin(), row.end(), std::int64_t{0});
        if (rows == 0) continue;
        const double each = static_cast<double>(rows) / static_cast<double>(experts);
        for (std::size_t e = 0; e < experts; ++e) {
          const double load = static_cast<double>(row[e]) / each - 1;
          squares_ += load * load;
          sums[e] += load;
          mean_[static_cast<std::size_t>(layer) * experts + e] += load;
        }
        multinomial_ +=
            (1 - 1 / static_cast<double>(experts)) / each * static_cast<double>(experts);
        values_ += static_cast<double>(experts);
      }
      for (const double sum : sums) products_ += sum * sum;
    }
  }

  void end_iteration() {
    const auto draws = static_cast<double>(shape_.units * shape_.microbatches);
    for (double& value : mean_) value /= draws;
    iteration_squares_ += dot(mean_, mean_);
    const auto experts = static_cast<std::size_t>(shape_.experts);
    for (std::size_t i = experts; i < mean_.size(); ++i) {
      layer_products_ += mean_[i] * mean_[i - experts];
    }
    for (std::int64_t lag = 1; lag <= std::ssize(earlier_); lag *= 2) {
      const std::vector<double>& other = earlier_[static_cast<std::size_t>(lag - 1)];
      lag_products_[lag] += dot(mean_, other);
      lag_counts_[lag] += 1;
    }
    earlier_.push_front(mean_);
    if (std::ssize(earlier_) > kLongestLag) earlier_.pop_back();
    ++iterations_;
  }

  LoadStatistics result() const {
    LoadStatistics out;
    if (values_ == 0) return out;
    const auto mbs = static_cast<double>(shape_.microbatches);
    const auto iteration_values =
        static_cast<double>(iterations_) * static_cast<double>(layer_experts());
    out.variance = (squares_ - multinomial_) / values_;
    // Sums over microbatches, squared, hold each pair twice and each square once.
    out.between_microbatches =
        mbs > 1 ? (products_ - squares_) / (values_ * (mbs - 1)) : out.variance;
    // An iteration mean over n draws: common part + (variance - common + multinomial) / n.
    const auto draws = static_cast<double>(shape_.units) * mbs;
    out.iteration_variance =
        iteration_squares_ / iteration_values -
        (out.variance - out.between_microbatches + multinomial_ / values_) / draws;
    if (shape_.moe_layers > 1) {
      out.between_layers = layer_products_ / iteration_values *
                           static_cast<double>(shape_.moe_layers) /
                           static_cast<double>(shape_.moe_layers - 1);
    }
    for (const auto& [lag, products] : lag_products_) {
      const double covariance =
          products / (lag_counts_.at(lag) * static_cast<double>(layer_experts()));
      out.autocorrelation[lag] =
          out.iteration_variance > 0 ? covariance / out.iteration_variance : 0;
    }
    return out;
  }

 private:
  std::size_t layer_experts() const {
    return static_cast<std::size_t>(shape_.moe_layers * shape_.experts);
  }

  RoutingShape shape_;
  double values_ = 0;
  double squares_ = 0;
  double multinomial_ = 0;
  double products_ = 0;
  double layer_products_ = 0;
  double iteration_squares_ = 0;
  std::int64_t iterations_ = 0;
  std::vector<double> mean_;                 // [layer][expert] of this iteration
  std::deque<std::vector<double>> earlier_;  // the last one first
  std::map<std::int64_t, double> lag_products_;
  std::map<std::int64_t, double> lag_counts_;
};

}  // namespace

double RankStatistics::share_below(double bound) const {
  const auto below = std::count_if(iteration_ratios.begin(), iteration_ratios.end(),
                                   [&](double ratio) { return ratio < bound; });
  return static_cast<double>(below) / static_cast<double>(iteration_ratios.size());
}

TraceStatistics describe_routing(const RoutingSource& source, const RoutingShape& shape,
                                 std::int64_t begin, std::int64_t end,
                                 const std::vector<std::int64_t>& ranks, RatioOf ratio) {
  TraceStatistics out;
  out.iterations = end - begin;
  for (const std::int64_t number : ranks) out.ranks.emplace_back().ranks = number;
  std::vector<Sample> samples(ranks.size());
  LoadMoments moments(shape);
  RoutingCounts counts;
  for (std::int64_t iteration = begin; iteration < end; ++iteration) {
    moments.begin_iteration();
    for (RankStatistics& r : out.ranks) r.iteration_ratios.push_back(1);
    for (std::int64_t unit = 0; unit < shape.units; ++unit) {
      source.counts(iteration, unit, counts);
      moments.add(counts);
      for (std::size_t i = 0; i < ranks.size(); ++i) {
        for (std::int64_t mb = 0; mb < counts.microbatches; ++mb) {
          for (std::int64_t layer = 0; layer < counts.moe_layers; ++layer) {
            samples[i].add(rank_ratio(counts.row(mb, layer), ranks[i]));
          }
        }
        double& largest = out.ranks[i].iteration_ratios.back();
        largest = std::max(largest, iteration_ratio(counts, ranks[i], ratio));
      }
    }
    moments.end_iteration();
  }
  for (std::size_t i = 0; i < ranks.size(); ++i) samples[i].fill(out.ranks[i]);
  out.loads = moments.result();
  return out;
}

double two_sample_distance(const std::vector<double>& a, const std::vector<double>& b) {
  double largest = 0;
  std::size_t i = 0;
  std::size_t j = 0;
  while (i < a.size() && j < b.size()) {
    const double value = std::min(a[i], b[j]);
    while (i < a.size() && a[i] <= value) ++i;
    while (j < b.size() && b[j] <= value) ++j;
    largest = std::max(largest, std::abs(static_cast<double>(i) / static_cast<double>(a.size()) -
                                         static_cast<double>(j) / static_cast<double>(b.size())));
  }
  return largest;
}

}  // namespace tidemark
