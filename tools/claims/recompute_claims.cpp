#include <cmath>
#include <utility>

#include <nlohmann/json.hpp>

#include "models/job_reader.h"
#include "tools/claims/claim_cases.h"
#include "tools/claims/claim_kinds.h"
#include "tools/claims/claim_lines.h"
#include "tools/quantity_text.h"

namespace tidemark::claims {

// Peaks on stage 0 of one job with different modules recomputed, and changes from the first case:
// between the predictions, whose sign must be right, and from the measured first peak to the
// prediction, whose size must be. Changes below a resolution are shown alone.
ClaimCheck recompute_peaks(JsonReader& claim, const fs::path& root) {
  struct Case {
    std::string modules;
    Job job;
    double measured_mb = 0;
  };
  constexpr Range<double> kMegabytes{0, 1e6};
  double max_percent = 0;
  double change_percent = 0;
  double resolution_mb = 0;
  claim.object("tolerance", [&](JsonReader& in) {
    max_percent = in.number("max_percent", kPercent);
    change_percent = in.number("change_percent", kPercent);
    resolution_mb = in.number("resolution_mb", kMegabytes);
  });
  const fs::path file = root / claim.string("job");
  const nlohmann::json base = load_json(file);
  auto cases = read_cases<Case>(claim, [&](JsonReader& in) {
    nlohmann::json json = base;
    const nlohmann::json& modules = in.raw("recompute_modules");
    json["options"]["recompute_granularity"] = "selective";
    json["options"]["recompute_modules"] = modules;
    return Case{modules.dump(), job_from_json(json, file.string()),
                in.number("measured_mb", kMegabytes)};
  });
  return [=, cases = std::move(cases)] {
    std::vector<ClaimLine> lines;
    std::vector<ClaimLine> changes;
    std::vector<double> found_mb;
    for (const Case& c : cases) {
      const SimulationResult result = simulate_balanced(c.job).result;
      found_mb.push_back(static_cast<double>(result.stages[0].peak_allocated().value) * 1e-6);
      lines.push_back(percent_line("peak with " + c.modules + " recomputed, MB", c.measured_mb,
                                   found_mb.back(), percent_off(found_mb.back(), c.measured_mb),
                                   max_percent));
      if (found_mb.size() == 1) continue;
      const double measured = c.measured_mb - cases[0].measured_mb;
      const double predicted = found_mb.back() - found_mb[0];
      const double from_measured = found_mb.back() - cases[0].measured_mb;
      const bool small = std::abs(measured) < resolution_mb;
      changes.push_back({"change by " + c.modules + ", MB", measured, predicted,
                         percent_off(predicted, measured), small || measured * predicted > 0});
      if (small) continue;
      changes.push_back(percent_line("the same, from the measured first peak", measured,
                                     from_measured, percent_off(from_measured, measured),
                                     change_percent));
    }
    lines.insert(lines.end(), changes.begin(), changes.end());
    return lines;
  };
}

}  // namespace tidemark::claims
