#include "planner/rows_bound.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "sim/parallel.h"
#include "traces/lane_rows.h"

namespace tidemark {
namespace {

// Sampled iterations are none that a run reaches.
constexpr std::int64_t kFirstSample = 50'000'000;
constexpr std::int64_t kMostSamples = 200;

double burst_bound(const Workload& w, double risk) {
  if (w.burst_probability <= risk) return w.burst_low;
  const double above = risk / w.burst_probability;  // of bursts
  const double within = 1 - std::pow(w.burst_low / w.burst_high, w.burst_exponent);
  return w.burst_low * std::pow(1 - (1 - above) * within, -1 / w.burst_exponent);
}

}  // namespace

double rows_bound(const Job& job, const RoutingInput& input, const RoutingSource& source,
                  double risk) {
  if (job.model.num_moe_layers() == 0) return 1;
  const bool bursts =
      input.workload.kind == WorkloadKind::kBurst || input.workload.kind == WorkloadKind::kBagualu2;
  if (input.file.empty() && bursts) return burst_bound(input.workload, risk);
  const auto samples =
      static_cast<std::int64_t>(std::min(static_cast<double>(kMostSamples), std::ceil(3 / risk)));
  std::vector<double> ratios(static_cast<std::size_t>(samples));
  parallel_for(ratios.size(), [&](std::size_t i) {
    thread_local RoutingCounts counts;
    source.counts(kFirstSample + static_cast<std::int64_t>(i), 0, counts);
    ratios[i] = LaneRows(job, counts).max_over_mean();
  });
  return *std::ranges::max_element(ratios);
}

}  // namespace tidemark
