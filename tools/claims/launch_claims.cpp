#include "tools/claims/claim_cases.h"
#include "tools/claims/claim_kinds.h"
#include "tools/quantity_text.h"

namespace tidemark::claims {

// Launch configurations: each is read and simulated; one that its makers ran must fit.
ClaimCheck launch(JsonReader& claim, const fs::path& root) {
  struct Case {
    ArgumentsCase run;
    bool must_fit = false;
  };
  claim.object("tolerance", [](JsonReader& in) { in.integer("bytes", {0, 0}); });
  const auto cases = read_cases<Case>(claim, [&](JsonReader& in) {
    return Case{read_arguments_case(in, root), in.choice("expected", {"fits", "read"}) == "fits"};
  });
  return [=] {
    std::vector<ClaimLine> lines;
    for (const Case& c : cases) {
      const SimulationResult result = simulate_balanced(c.run.job()).result;
      const double gib = to_gib(result.headroom());
      lines.push_back({c.run.name(), c.must_fit ? "fits" : "read",
                       std::string(result.fits() ? "fits, " : "does not fit, ") +
                           fixed_text(gib, 2) + " GiB left on stage " +
                           std::to_string(result.tightest_stage()),
                       std::nullopt, result.fits() || !c.must_fit});
    }
    return lines;
  };
}

}  // namespace tidemark::claims
