#include "planner/rows_bound.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "sim/parallel.h"
#include "traces/lane_rows.h"
#include "traces/trace_file.h"

namespace tidemark {
namespace {

// Sampled iterations of a workload are none that a run reaches.
constexpr std::int64_t kFirstSample = 50'000'000;
constexpr std::int64_t kMostSamples = 200;

double burst_bound(const Workload& w, double risk) {
  if (w.burst_probability <= risk) return w.burst_low;
  const double above = risk / w.burst_probability;  // of bursts
  const double within = 1 - std::pow(w.burst_low / w.burst_high, w.burst_exponent);
  return w.burst_low * std::pow(1 - (1 - above) * within, -1 / w.burst_exponent);
}

// Of so many iterations, from `first` on, of so many units.
double largest_ratio(const Job& job, const RoutingSource& source, std::int64_t first,
                     std::int64_t iterations, std::int64_t units) {
  std::vector<double> ratios(static_cast<std::size_t>(iterations * units));
  parallel_for(ratios.size(), [&](std::size_t i) {
    thread_local RoutingCounts counts;
    const auto at = static_cast<std::int64_t>(i);
    source.counts(first + at / units, at % units, counts);
    ratios[i] = LaneRows(job, counts).max_over_mean();
  });
  return *std::ranges::max_element(ratios);
}

}  // namespace

std::int64_t fitted_iterations(std::int64_t iterations) { return (iterations + 1) / 2; }

double rows_bound(const Job& job, const RoutingInput& input, const RoutingSource& source,
                  double risk) {
  if (job.model.num_moe_layers() == 0) return 1;
  if (!input.file.empty()) {
    const TraceInfo trace = TraceFile(input.file).info();
    return largest_ratio(job, source, 0, fitted_iterations(trace.iterations), job.layout.units());
  }
  const bool bursts =
      input.workload.kind == WorkloadKind::kBurst || input.workload.kind == WorkloadKind::kBagualu2;
  if (bursts) return burst_bound(input.workload, risk);
  const auto samples =
      static_cast<std::int64_t>(std::min(static_cast<double>(kMostSamples), std::ceil(3 / risk)));
  return largest_ratio(job, source, kFirstSample, samples, 1);
}

}  // namespace tidemark
