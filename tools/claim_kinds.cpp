// One function a kind of claim. It reads tolerance and cases and returns the check.

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>

#include "models/bagualu2_activations.h"
#include "models/flops.h"
#include "models/job_reader.h"
#include "sim/lane_engine.h"
#include "tools/claim.h"
#include "tools/job_input.h"
#include "tools/log_comparison.h"
#include "tools/memory_breakdown.h"
#include "tools/quantity_text.h"
#include "traces/routing.h"

namespace tidemark {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

constexpr Range<double> kPercent{0, 100};
constexpr Range<std::int64_t> kCount{1, std::int64_t{1} << 20};

// A training log and what it does not say.
struct LogCase {
  fs::path log;
  LogContext context;
  std::string name() const { return log.stem().string(); }
};

std::optional<Version> optional_version(JsonReader& in, std::string_view key) {
  const std::optional<std::string> text = in.optional_string(key);
  if (!text) return std::nullopt;
  const std::optional<Version> version = parse_version(*text);
  if (!version) in.violate(key, "\"" + *text + "\"", "a version such as \"0.13\"");
  return version;
}

LogCase read_log_case(JsonReader& in, const fs::path& root) {
  LogCase c;
  c.log = root / in.string("log");
  c.context.hardware = in.string("hardware");
  c.context.vocab_size = in.optional_integer("vocab_size", {1, std::int64_t{1} << 31});
  in.optional_object("frameworks", [&](JsonReader& frameworks) {
    c.context.megatron_core = optional_version(frameworks, "megatron_core");
    c.context.transformer_engine = optional_version(frameworks, "transformer_engine");
    c.context.dtk = optional_version(frameworks, "dtk");
  });
  return c;
}

template <class Case, class Read>
std::vector<Case> read_cases(JsonReader& claim, Read read) {
  std::vector<Case> cases;
  claim.objects("cases", [&](JsonReader& in) { cases.push_back(read(in)); });
  return cases;
}

std::vector<LogCase> read_log_cases(JsonReader& claim, const fs::path& root) {
  return read_cases<LogCase>(claim, [&](JsonReader& in) { return read_log_case(in, root); });
}

struct Tolerance {
  double mean_percent = 0;
  double max_percent = 0;
};

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

struct SimulatedLog {
  LogInput input;
  Simulation simulation;
  LogComparison comparison;
};

SimulatedLog simulate_log(const LogCase& c) {
  LogInput input = read_log_input(c.log, c.context);
  const Job& job = input.input.job;
  Simulation simulation = simulate(job, input.input.profile, balanced_routing(job));
  LogComparison comparison = compare_with_log(input.log, job, simulation.result);
  return {std::move(input), std::move(simulation), std::move(comparison)};
}

ClaimLine equal_line(std::string what, std::int64_t expected, std::int64_t found) {
  return {std::move(what), expected, found, std::nullopt, expected == found};
}

ClaimLine percent_line(std::string what, ordered_json expected, ordered_json found, double error,
                       double tolerance) {
  return {std::move(what), std::move(expected), std::move(found), error,
          std::abs(error) <= tolerance};
}

// A bound on a mean that is not a prediction itself.
ClaimLine mean_line(std::string what, double mean, double tolerance) {
  return {std::move(what), "<= " + fixed_text(tolerance, 2) + " %", "", mean, mean <= tolerance};
}

// --- kinds --------------------------------------------------------------------------------------

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

// A counter of Megatron's memory lines: measured, predicted, error.
struct MemoryField {
  const char* name;
  double LoggedMemory::*measured_mib;
  Bytes ComparedMemory::*predicted;
  double (ComparedMemory::*error_percent)() const;
};
constexpr MemoryField kMemoryFields[] = {
    {"allocated", &LoggedMemory::allocated_mib, &ComparedMemory::allocated,
     &ComparedMemory::allocated_error_percent},
    {"max_allocated", &LoggedMemory::max_allocated_mib, &ComparedMemory::max_allocated,
     &ComparedMemory::max_allocated_error_percent},
    {"max_reserved", &LoggedMemory::max_reserved_mib, &ComparedMemory::max_reserved,
     &ComparedMemory::max_reserved_error_percent}};

MemoryField read_memory_field(JsonReader& claim) {
  std::vector<std::string> names;
  for (const MemoryField& field : kMemoryFields) names.emplace_back(field.name);
  const std::string name = claim.choice("field", names);
  const auto* found = std::find_if(std::begin(kMemoryFields), std::end(kMemoryFields),
                                   [&](const MemoryField& f) { return f.name == name; });
  return found == std::end(kMemoryFields) ? kMemoryFields[0] : *found;
}

// One counter of every memory line of the logs. Shown: the worst line of each run, in MiB, and
// means.
ClaimCheck memory(JsonReader& claim, const fs::path& root) {
  const Tolerance tolerance = read_tolerance(claim);
  const MemoryField field = read_memory_field(claim);
  return [=, cases = read_log_cases(claim, root)] {
    std::vector<ClaimLine> lines;
    std::vector<double> run_means;
    std::vector<double> all;
    for (const LogCase& c : cases) {
      std::vector<double> errors;
      ClaimLine worst{c.name(), "no memory lines", "", std::nullopt, false};
      for (const ComparedMemory& line : simulate_log(c).comparison.memory) {
        const double error = (line.*field.error_percent)();
        errors.push_back(error);
        if (worst.error_percent && std::abs(error) <= std::abs(*worst.error_percent)) continue;
        worst = percent_line(c.name() + " rank " + std::to_string(line.logged.rank) + " after " +
                                 std::to_string(line.logged.after_iterations),
                             line.logged.*field.measured_mib, to_mib(line.*field.predicted), error,
                             tolerance.max_percent);
      }
      lines.push_back(std::move(worst));
      if (errors.empty()) continue;
      run_means.push_back(summarize(errors).mean);
      all.insert(all.end(), errors.begin(), errors.end());
    }
    lines.push_back(mean_line("mean over runs of each run's mean over its lines",
                              summarize(run_means).mean, tolerance.mean_percent));
    lines.push_back({"mean over all " + std::to_string(all.size()) + " lines", "", "",
                     summarize(all).mean, true});
    return lines;
  };
}

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
      const HardwareProfile profile = load_hardware_profile(c.job.hardware);
      const Simulation simulation = simulate(c.job, profile, balanced_routing(c.job));
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

// In-flight microbatches of each stage, and the makespan of slots without communication.
ClaimCheck schedule_1f1b(JsonReader& claim, const fs::path&) {
  struct Case {
    std::int64_t stages = 1;
    std::int64_t microbatches = 1;
    std::int64_t forward_ns = 1;
    std::int64_t backward_ns = 1;
    std::int64_t makespan_ns = 0;
    std::vector<std::int64_t> in_flight;
  };
  require_equality(claim);
  auto cases = read_cases<Case>(claim, [&](JsonReader& in) {
    Case c{in.integer("stages", kCount),     in.integer("microbatches", kCount),
           in.integer("forward_ns", kCount), in.integer("backward_ns", kCount),
           in.integer("makespan_ns"),        {}};
    for (const nlohmann::json& count : in.raw("in_flight")) {
      if (count.is_number_integer()) c.in_flight.push_back(count.get<std::int64_t>());
    }
    if (std::ssize(c.in_flight) != c.stages) {
      in.violate("in_flight", std::to_string(c.in_flight.size()) + " integers",
                 "one for each of the " + std::to_string(c.stages) + " stages");
    }
    return c;
  });
  return [cases = std::move(cases)] {
    std::vector<ClaimLine> lines;
    for (const Case& c : cases) {
      const auto slot = [](std::int64_t ns) {
        SlotProgram program;
        program.ops.emplace_back().cost.fixed_ns = ns;
        return program;
      };
      StageProgram stage;
      stage.forward = stage.first_forward = slot(c.forward_ns);
      stage.backward = stage.last_backward = slot(c.backward_ns);
      Program program;
      program.schedule = build_1f1b(static_cast<std::int32_t>(c.stages),
                                    static_cast<std::int32_t>(c.microbatches));
      program.stages.assign(static_cast<std::size_t>(c.stages), stage);
      const std::string name =
          std::to_string(c.stages) + " stages, " + std::to_string(c.microbatches) + " microbatches";
      const LaneRows no_routing(Job{}, RoutingCounts{});
      lines.push_back(equal_line(name + ": makespan", c.makespan_ns,
                                 run_unit(program, no_routing).iteration_ns));
      for (std::int64_t r = 0; r < c.stages; ++r) {
        lines.push_back(equal_line(name + ": in flight on stage " + std::to_string(r),
                                   c.in_flight[static_cast<std::size_t>(r)],
                                   peak_in_flight(program.schedule, static_cast<std::int32_t>(r))));
      }
    }
    return lines;
  };
}

}  // namespace

const std::map<std::string, ClaimKind>& claim_kinds() {
  static const std::map<std::string, ClaimKind> kKinds = {
      {"model_flops", model_flops},
      {"parameters", parameters},
      {"memory", memory},
      {"iteration_time", iteration_time},
      {"kept_bytes", kept_bytes},
      {"schedule_1f1b", schedule_1f1b},
      {"bagualu2_activation_formula", bagualu2_activation_formula}};
  return kKinds;
}

}  // namespace tidemark
