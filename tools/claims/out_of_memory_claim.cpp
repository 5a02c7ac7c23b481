#include <utility>

#include "tools/claims/claim_cases.h"
#include "tools/claims/claim_kinds.h"
#include "tools/claims/claim_lines.h"
#include "tools/quantity_text.h"

namespace tidemark::claims {

// Which variants of one job run out of memory on their card. Of those that did, `missed` may be
// predicted to run; of those that ran, none to run out.
ClaimCheck out_of_memory(JsonReader& claim, const fs::path& root) {
  struct Case {
    std::string what;
    Job job;
    bool ran = true;
  };
  std::int64_t missed = 0;
  claim.object("tolerance", [&](JsonReader& in) { missed = in.integer("missed", {0, 1 << 10}); });
  const JobVariants variants(claim, root);
  auto cases = read_cases<Case>(claim, [&](JsonReader& in) {
    Case c;
    c.what = in.string("what");
    c.job = variants.read(in);
    c.ran = in.boolean("ran");
    return c;
  });
  return [=, cases = std::move(cases)] {
    std::vector<ClaimLine> lines;
    std::int64_t misses = 0;
    for (const Case& c : cases) {
      const SimulationResult result = simulate_balanced(c.job).result;
      const bool miss = !c.ran && result.fits();
      misses += miss ? 1 : 0;
      const std::string by =
          gib_text(result.headroom() < Bytes(0) ? -result.headroom() : result.headroom());
      lines.push_back({c.what, c.ran ? "ran" : "out of memory",
                       (result.fits() ? "fits, to spare " : "does not fit, lacks ") + by +
                           (miss ? " (missed)" : ""),
                       std::nullopt, !c.ran || result.fits()});
    }
    lines.push_back({"rows out of memory that are predicted to run", "<= " + std::to_string(missed),
                     misses, std::nullopt, misses <= missed});
    return lines;
  };
}

}  // namespace tidemark::claims
