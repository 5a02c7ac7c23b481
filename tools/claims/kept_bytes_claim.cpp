#include "tools/claims/claim_cases.h"
#include "tools/claims/claim_kinds.h"
#include "tools/claims/claim_lines.h"
#include "tools/memory_breakdown.h"
#include "tools/quantity_text.h"

namespace tidemark::claims {

// Bytes that one microbatch keeps in a layer of a kind: the first of a stage, so that the layer's
// own output, which stands for its input, is one that the next layer keeps.
ClaimCheck kept_bytes(JsonReader& claim, const fs::path& root) {
  struct Case {
    LogCase log;
    std::int64_t stage = 0;
    bool moe = false;
    std::int64_t expected = 0;
  };
  double dense_percent = 0;
  double moe_percent = 0;
  claim.object("tolerance", [&](JsonReader& in) {
    dense_percent = in.number("dense_percent", kPercent);
    moe_percent = in.number("moe_percent", kPercent);
  });
  const auto cases = read_cases<Case>(claim, [&](JsonReader& in) {
    return Case{read_log_case(in, root), in.integer("stage", {0, kCount.high}),
                in.choice("layer_kind", {"dense", "moe"}) == "moe",
                in.integer("expected_bytes", {1, std::int64_t{1} << 50})};
  });
  return [=] {
    std::vector<ClaimLine> lines;
    for (const Case& c : cases) {
      const SimulatedLog run = simulate_log(c.log);
      const Job& job = run.input.input.job;
      ClaimLine line{c.moe ? "MoE layer" : "dense layer", c.expected, "no such layer", std::nullopt,
                     false};
      if (c.stage < job.layout.pipeline) {
        for (const KeptLayer& layer : kept_by_layer(job, run.simulation, c.stage)) {
          if (layer.moe != c.moe) continue;
          line = percent_line(
              line.what + " (layer " + std::to_string(layer.layer) + ")", c.expected,
              layer.bytes.value,
              percent_off(static_cast<double>(layer.bytes.value), static_cast<double>(c.expected)),
              c.moe ? moe_percent : dense_percent);
          break;
        }
      }
      lines.push_back(std::move(line));
    }
    return lines;
  };
}

}  // namespace tidemark::claims
