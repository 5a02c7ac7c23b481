#include "tools/claims/claim_cases.h"

#include <optional>
#include <string_view>
#include <utility>

#include "models/job_reader.h"
#include "traces/routing.h"

namespace tidemark::claims {
namespace {

std::optional<Version> optional_version(JsonReader& in, std::string_view key) {
  const std::optional<std::string> text = in.optional_string(key);
  if (!text) return std::nullopt;
  const std::optional<Version> version = parse_version(*text);
  if (!version) in.violate(key, "\"" + *text + "\"", "a version such as \"0.13\"");
  return version;
}

LogContext read_context(JsonReader& in) {
  LogContext c;
  c.hardware = in.string("hardware");
  c.vocab_size = in.optional_integer("vocab_size", {1, std::int64_t{1} << 31});
  in.optional_object("frameworks", [&](JsonReader& frameworks) {
    c.megatron_core = optional_version(frameworks, "megatron_core");
    c.transformer_engine = optional_version(frameworks, "transformer_engine");
    c.dtk = optional_version(frameworks, "dtk");
  });
  return c;
}

}  // namespace

JobVariants::JobVariants(JsonReader& claim, const fs::path& root)
    : file_(root / claim.string("job")), base_(load_json(file_)) {}

Job JobVariants::read(JsonReader& in) const {
  nlohmann::json json = base_;
  json.merge_patch(in.raw("patch"));
  return job_from_json(json, file_.string() + " as patched");
}

Tolerance read_tolerance(JsonReader& claim) {
  Tolerance tolerance;
  claim.object("tolerance", [&](JsonReader& in) {
    tolerance = {in.number("mean_percent", kPercent), in.number("max_percent", kPercent)};
  });
  return tolerance;
}

void require_equality(JsonReader& claim) {
  claim.object("tolerance", [](JsonReader& in) { in.integer("absolute", {0, 0}); });
}

std::vector<LogCase> read_log_cases(JsonReader& claim, const fs::path& root) {
  return read_cases<LogCase>(claim, [&](JsonReader& in) { return read_log_case(in, root); });
}

LogCase read_log_case(JsonReader& in, const fs::path& root) {
  return {root / in.string("log"), read_context(in)};
}

SimulatedLog simulate_log(const LogCase& c) {
  LogInput input = read_log_input(c.log, c.context);
  const Job& job = input.input.job;
  Simulation simulation = simulate(job, input.input.profile, balanced_routing(job));
  LogComparison comparison = compare_with_log(input.log, job, simulation.result);
  return {std::move(input), std::move(simulation), std::move(comparison)};
}

ArgumentsCase read_arguments_case(JsonReader& in, const fs::path& root) {
  return {root / in.string("arguments"), in.integer("cards", kCount), read_context(in)};
}

Simulation simulate_balanced(const Job& job) {
  return simulate(job, load_hardware_profile(job.hardware), balanced_routing(job));
}

}  // namespace tidemark::claims
