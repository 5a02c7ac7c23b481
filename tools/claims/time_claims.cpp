#include "tools/claims/claim_cases.h"
#include "tools/claims/claim_kinds.h"
#include "tools/claims/claim_lines.h"

namespace tidemark::claims {

// Median iteration times, in ms.
ClaimCheck iteration_time(JsonReader& claim, const fs::path& root) {
  const Tolerance tolerance = read_tolerance(claim);
  return [=, cases = read_log_cases(claim, root)] {
    std::vector<ClaimLine> lines;
    std::vector<double> errors;
    for (const LogCase& c : cases) {
      const std::optional<ComparedTime> time = simulate_log(c).comparison.time;
      if (!time) {
        lines.push_back({c.name(), "no iteration lines", "", std::nullopt, false});
        continue;
      }
      errors.push_back(time->error_percent());
      lines.push_back(percent_line(c.name(), time->measured_ms, time->predicted_ms, errors.back(),
                                   tolerance.max_percent));
    }
    lines.push_back(mean_line("mean over runs", summarize(errors).mean, tolerance.mean_percent));
    return lines;
  };
}

}  // namespace tidemark::claims
