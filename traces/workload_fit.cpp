#include "traces/workload_fit.h"

#include <algorithm>
#include <cmath>

#include <nlohmann/json.hpp>

namespace tidemark {
namespace {

// A drift this many times longer than the longest lag cannot be told from none.
constexpr double kNoDrift = 0.98;

}  // namespace

Workload fit_workload(const RoutingShape& shape, const TraceStatistics& statistics,
                      std::vector<std::string>& notes) {
  const LoadStatistics& loads = statistics.loads;
  Workload fitted;
  // Below the noise of a sample of this size, routing is as even as the multinomial.
  const double draws = static_cast<double>(statistics.iterations) *
                       static_cast<double>(shape.units * shape.counts_per_unit());
  const double multinomial = static_cast<double>(shape.experts) / static_cast<double>(shape.rows());
  if (loads.variance < 3 * multinomial * std::sqrt(2 / draws)) {
    fitted.kind = WorkloadKind::kMultinomial;
    return fitted;
  }
  fitted.kind = WorkloadKind::kDirichlet;
  // A Dirichlet share of E experts has the relative variance (E - 1) / (E alpha + 1).
  const auto experts = static_cast<double>(shape.experts);
  fitted.alpha = ((experts - 1) / loads.variance - 1) / experts;
  if (fitted.alpha < 1) {
    notes.push_back("alpha is " + nlohmann::json(fitted.alpha).dump() +
                    ", more uneven than the workload can be: 1 is taken");
    fitted.alpha = 1;
  }
  if (shape.microbatches > 1) {
    fitted.microbatch_correlation =
        std::clamp(loads.between_microbatches / loads.variance, 0.0, 1.0);
  } else {
    fitted.microbatch_correlation = 1;
    notes.emplace_back("one microbatch: how far loads differ between microbatches is not told");
  }
  if (loads.iteration_variance > 0) {
    fitted.layer_correlation =
        std::clamp(loads.between_layers / loads.iteration_variance, 0.0, 1.0);
  }
  std::int64_t lag = 0;
  for (const auto& [candidate, r] : loads.autocorrelation) {
    if (lag == 0 || r >= 0.5) lag = candidate;
  }
  if (lag == 0) {
    notes.emplace_back("one iteration: drift is not told");
  } else if (const double r = loads.autocorrelation.at(lag); r < kNoDrift) {
    fitted.drift_iterations =
        std::max<std::int64_t>(1, std::llround(static_cast<double>(lag) / (1 - std::max(r, 0.0))));
  }
  return fitted;
}

WorkloadFit fit_and_compare(const RoutingSource& source, const RoutingShape& shape,
                            std::int64_t iterations, double share,
                            const std::vector<std::int64_t>& ranks, std::uint64_t seed) {
  WorkloadFit fit;
  fit.fitted_iterations = std::clamp<std::int64_t>(
      std::llround(share * static_cast<double>(iterations)), 1, iterations - 1);
  fit.held_out_iterations = iterations - fit.fitted_iterations;
  const auto part = [&](const RoutingSource& routing, std::int64_t begin, std::int64_t end) {
    return describe_routing(routing, shape, begin, end, ranks, RatioOf::kMicrobatch);
  };
  const TraceStatistics first = part(source, 0, fit.fitted_iterations);
  const TraceStatistics held_out = part(source, fit.fitted_iterations, iterations);
  fit.workload = fit_workload(shape, first, fit.notes);
  const auto synthetic = make_routing(shape, fit.workload, seed);
  const TraceStatistics fitted = part(*synthetic, 0, fit.held_out_iterations);
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    const RankStatistics& a = held_out.ranks[i];
    const RankStatistics& b = fitted.ranks[i];
    fit.ranks.push_back({ranks[i], a.mean, a.p97, b.mean, b.p97,
                         two_sample_distance(a.sample, b.sample),
                         two_sample_distance(a.sample, first.ranks[i].sample)});
  }
  fit.held_out_autocorrelation = held_out.loads.autocorrelation;
  fit.fitted_autocorrelation = fitted.loads.autocorrelation;
  return fit;
}

}  // namespace tidemark
