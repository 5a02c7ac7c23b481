#include <cstdlib>
#include <utility>

#include "models/model_file.h"
#include "models/parameters.h"
#include "tools/claims/claim_cases.h"
#include "tools/claims/claim_kinds.h"
#include "tools/claims/claim_lines.h"
#include "tools/quantity_text.h"

namespace tidemark::claims {

// Every parameter count that a log prints.
ClaimCheck parameters(JsonReader& claim, const fs::path& root) {
  require_equality(claim);
  return [cases = read_log_cases(claim, root)] {
    std::vector<ClaimLine> lines;
    for (const LogCase& c : cases) {
      const std::vector<ComparedParameters> counts = simulate_log(c).comparison.parameters;
      std::int64_t equal = 0;
      for (const ComparedParameters& p : counts) {
        const bool same = p.logged.parameters == p.predicted;
        equal += same;
        if (same) continue;
        lines.push_back(equal_line(c.name() + " (tensor, pipeline) rank (" +
                                       std::to_string(p.logged.tensor_rank) + ", " +
                                       std::to_string(p.logged.pipeline_rank) + ")",
                                   p.logged.parameters, p.predicted));
      }
      lines.push_back({c.name(), std::to_string(counts.size()) + " counts",
                       std::to_string(equal) + " equal", std::nullopt,
                       equal == std::ssize(counts)});
    }
    return lines;
  };
}

// Parameters of every model of the zoo, against the figures that its file quotes.
ClaimCheck zoo_parameters(JsonReader& claim, const fs::path&) {
  claim.object("tolerance", [](JsonReader& in) { in.integer("units_of_the_last_digit", {1, 1}); });
  return [] {
    std::vector<ClaimLine> lines;
    const auto compare = [&](std::string what, std::int64_t expected, std::int64_t found,
                             std::int64_t left_out, std::int64_t unit) {
      const bool pass = std::abs(found + left_out - expected) < unit;
      if (left_out > 0) what += " (" + grouped_text(left_out) + " not modelled)";
      ClaimLine line{std::move(what), expected, found, std::nullopt, pass};
      if (found != expected) {
        line.error_percent = percent_off(static_cast<double>(found), static_cast<double>(expected));
      }
      lines.push_back(std::move(line));
    };
    for (const std::string& name : zoo_models()) {
      const ModelFile file = read_model_file(zoo_file(name));
      const ModelParameters ours = model_parameters(file.model);
      if (!file.published) {
        lines.push_back({name, "no published_parameters", ours.total, std::nullopt, false});
        continue;
      }
      const PublishedParameters& published = *file.published;
      compare(name + ", all", published.total, ours.total, published.not_modelled,
              published.total_unit);
      if (!published.activated) continue;
      compare(name + ", activated", *published.activated, ours.activated, 0,
              published.activated_unit);
    }
    return lines;
  };
}

}  // namespace tidemark::claims
