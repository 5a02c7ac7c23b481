#include <optional>
#include <utility>

#include <nlohmann/json.hpp>

#include "models/bagualu2_activations.h"
#include "models/flops.h"
#include "models/job_reader.h"
#include "tools/claims/claim_cases.h"
#include "tools/claims/claim_kinds.h"
#include "tools/claims/claim_lines.h"
#include "tools/memory_breakdown.h"

namespace tidemark::claims {

namespace {

// BaGuaLu-2's options of a case; their names.
BaGuaLu2Options read_bagualu2_options(JsonReader& in) {
  BaGuaLu2Options options;
  options.max_vio = in.optional_number("max_vio", {0, 1e6}).value_or(0);
  options.dispatched_tokens = in.optional_number("dispatched_tokens", {0, 1e12});
  options.fp8 = in.optional_boolean("fp8").value_or(false);
  options.activation_func_fp8_input_store =
      in.optional_boolean("activation_func_fp8_input_store").value_or(false);
  options.unfused_attention = in.optional_boolean("unfused_attention").value_or(false);
  options.recompute_full = in.optional_boolean("recompute_full").value_or(false);
  if (const auto module = in.optional_string("recompute_module")) {
    options.recompute_modules = {*module};
  }
  return options;
}

}  // namespace

// Megatron's FLOPs of an iteration of our own job files.
ClaimCheck model_flops(JsonReader& claim, const fs::path& root) {
  struct Case {
    fs::path job;
    std::int64_t expected = 0;
  };
  require_equality(claim);
  auto cases = read_cases<Case>(claim, [&](JsonReader& in) {
    return Case{root / in.string("job"), in.integer("expected")};
  });
  return [cases = std::move(cases)] {
    std::vector<ClaimLine> lines;
    for (const Case& c : cases) {
      const Flops flops = model_flops_per_iteration(read_job(c.job));
      lines.push_back(
          equal_line(c.job.stem().string(), c.expected, static_cast<std::int64_t>(flops)));
    }
    return lines;
  };
}

// BaGuaLu-2's published list of a layer. A case is a job file, what it changes in it (a JSON merge
// patch, RFC 7386), and options of theirs. The last lines set what we find kept beside their list,
// for cases that name a stage: the first MoE layer of it, under the job as patched.
ClaimCheck bagualu2_activation_formula(JsonReader& claim, const fs::path& root) {
  struct Case {
    std::string what;
    Job job;
    BaGuaLu2Options options;
    std::int64_t total = 0;
    std::optional<std::int64_t> default_groups;
    std::optional<std::int64_t> beside_stage;
  };
  constexpr Range<std::int64_t> kBytes{0, std::int64_t{1} << 50};
  require_equality(claim);
  auto cases = read_cases<Case>(claim, [&](JsonReader& in) {
    Case c;
    c.what = in.string("what");
    const fs::path file = root / in.string("job");
    nlohmann::json json = load_json(file);
    if (in.has("patch")) json.merge_patch(in.raw("patch"));
    c.job = job_from_json(json, in.has("patch") ? file.string() + " as patched" : file.string());
    if (!c.job.model.moe) in.violate("job", file.string(), "a model with experts");
    in.optional_object("options",
                       [&](JsonReader& options) { c.options = read_bagualu2_options(options); });
    c.total = in.integer("total_bytes", kBytes);
    c.default_groups = in.optional_integer("default_groups_bytes", kBytes);
    c.beside_stage = in.optional_integer("beside_stage", {0, c.job.layout.pipeline - 1});
    return c;
  });
  return [cases = std::move(cases)] {
    std::vector<ClaimLine> lines;
    std::vector<ClaimLine> beside;
    for (const Case& c : cases) {
      const BaGuaLu2Activations theirs = bagualu2_activations(c.job, c.options);
      lines.push_back(equal_line(c.what + ": total", c.total, theirs.total().value));
      if (c.default_groups) {
        lines.push_back(equal_line(c.what + ": default offload groups", *c.default_groups,
                                   theirs.in_groups(bagualu2_default_offload_groups()).value));
      }
      if (!c.beside_stage) continue;
      const Simulation simulation = simulate_balanced(c.job);
      for (const KeptLayer& layer : kept_by_layer(c.job, simulation, *c.beside_stage)) {
        if (!layer.moe) continue;
        beside.push_back(
            {c.what + ": their list | kept as we derive it, layer " + std::to_string(layer.layer),
             theirs.total().value, layer.bytes.value, std::nullopt, true});
        break;
      }
    }
    lines.insert(lines.end(), beside.begin(), beside.end());
    return lines;
  };
}

}  // namespace tidemark::claims
