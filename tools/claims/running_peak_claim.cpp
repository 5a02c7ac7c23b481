#include <algorithm>
#include <cmath>
#include <utility>

#include <nlohmann/json.hpp>

#include "sim/parallel.h"
#include "sim/running_peak.h"
#include "tools/claims/claim_cases.h"
#include "tools/claims/claim_kinds.h"
#include "tools/claims/claim_lines.h"
#include "tools/claims/recorded_routers.h"
#include "tools/quantity_text.h"

namespace tidemark::claims {
namespace {

struct Measured {
  std::int64_t iteration = 0;  // from 1
  Bytes peak;
};

struct MeasuredRun {
  ArgumentsCase run;
  std::vector<Measured> measured;
};

using Runs = std::vector<std::vector<Bytes>>;  // [seed][iteration]

// The last rank's: Megatron's TensorBoard writer.
Runs last_rank_peaks(const Job& job, std::vector<Workload> workloads, std::int64_t seeds,
                     std::int64_t iterations) {
  const Simulation simulation = simulate_balanced(job);
  const CardId last{static_cast<std::int32_t>(job.layout.units() - 1),
                    static_cast<std::int32_t>(job.layout.pipeline - 1),
                    static_cast<std::int32_t>(job.layout.lanes_per_stage() - 1)};
  Runs runs(static_cast<std::size_t>(seeds));
  parallel_for(runs.size(), [&](std::size_t seed) {
    const auto routing = make_routing(job, workloads[seed % workloads.size()], seed);
    runs[seed] = running_peaks(job, simulation, *routing, last, iterations);
  });
  return runs;
}

// Whether a measured value lies between the quantiles that cut off the same share at both ends.
ClaimLine band_line(std::string what, Bytes measured, std::vector<Bytes> predicted,
                    double band_percent) {
  std::ranges::sort(predicted);
  const auto cut = static_cast<std::ptrdiff_t>(
      std::floor(static_cast<double>(predicted.size()) * (1 - band_percent / 100) / 2));
  const Bytes low = predicted[static_cast<std::size_t>(cut)];
  const Bytes high = predicted.end()[-1 - cut];
  return {std::move(what), gib_text(measured), gib_text(low) + " to " + gib_text(high),
          std::nullopt, low <= measured && measured <= high};
}

}  // namespace

// The running maximum of the last rank's peak allocated over a run whose router decides, among
// those predicted under workloads fitted to recorded routers: seed i takes the fit of task i modulo
// their number. Its growth between the second and the last of the measured points, too.
ClaimCheck running_peak(JsonReader& claim, const fs::path& root) {
  double band_percent = 0;
  claim.object("tolerance",
               [&](JsonReader& in) { band_percent = in.number("band_percent", kPercent); });
  const std::int64_t seeds = claim.integer("seeds", kCount);
  const fs::path recorded = root / claim.string("recorded");
  std::int64_t drift_iterations = 0;
  claim.object("assumed", [&](JsonReader& in) {
    drift_iterations = in.integer("drift_iterations", {0, std::int64_t{1} << 40});
  });
  const auto cases = read_cases<MeasuredRun>(claim, [&](JsonReader& in) {
    MeasuredRun c{read_arguments_case(in, root), {}};
    in.objects("measured", [&](JsonReader& point) {
      c.measured.push_back({point.integer("iteration", kCount),
                            Bytes(point.integer("bytes", {1, std::int64_t{1} << 50}))});
    });
    if (c.measured.size() < 3 || !std::ranges::is_sorted(c.measured, {}, &Measured::iteration)) {
      in.violate("measured", in.raw("measured").dump(), "three points or more, by iteration");
    }
    return c;
  });
  return [=] {
    std::vector<Workload> workloads = fit_recorded_routers(recorded);
    for (Workload& workload : workloads) workload.drift_iterations = drift_iterations;
    std::vector<ClaimLine> lines;
    for (const MeasuredRun& c : cases) {
      const Runs runs = last_rank_peaks(c.run.job(), workloads, seeds, c.measured.back().iteration);
      const auto at = [&](const Measured& point) {
        std::vector<Bytes> peaks;
        for (const auto& run : runs) {
          peaks.push_back(run[static_cast<std::size_t>(point.iteration - 1)]);
        }
        return peaks;
      };
      for (const Measured& point : c.measured) {
        lines.push_back(
            band_line(c.run.name() + ", until iteration " + std::to_string(point.iteration),
                      point.peak, at(point), band_percent));
      }
      const Measured& from = c.measured[1];  // the first ends before the moments exist
      const Measured& to = c.measured.back();
      std::vector<Bytes> growth = at(to);
      const std::vector<Bytes> before = at(from);
      for (std::size_t i = 0; i < growth.size(); ++i) growth[i] -= before[i];
      lines.push_back(band_line("grown from iteration " + std::to_string(from.iteration) + " to " +
                                    std::to_string(to.iteration),
                                to.peak - from.peak, std::move(growth), band_percent));
    }
    return lines;
  };
}

}  // namespace tidemark::claims
