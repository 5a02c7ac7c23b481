// One function a kind of claim. It reads tolerance and cases and returns the check.

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <memory>
#include <utility>

#include "models/bagualu2_activations.h"
#include "models/flops.h"
#include "models/job_reader.h"
#include "models/model_file.h"
#include "models/parameters.h"
#include "sim/lane_engine.h"
#include "tools/claim.h"
#include "tools/job_input.h"
#include "tools/log_comparison.h"
#include "tools/memory_breakdown.h"
#include "tools/quantity_text.h"
#include "tools/routing_claims.h"
#include "traces/routing.h"

namespace tidemark {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

constexpr Range<double> kPercent{0, 100};
constexpr Range<std::int64_t> kCount{1, std::int64_t{1} << 20};
constexpr Range<double> kCardGib{0, 1 << 10};
constexpr double kMibPerGib = 1 << 10;

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

LogCase read_log_case(JsonReader& in, const fs::path& root) {
  return {root / in.string("log"), read_context(in)};
}

// Megatron-LM arguments and what they do not say.
struct ArgumentsCase {
  fs::path arguments;
  std::int64_t cards = 0;
  LogContext context;
  std::string name() const {
    return arguments.stem().string() + " on " + std::to_string(cards) + " " + context.hardware;
  }
  Job job() const { return read_megatron_job(arguments, context, cards); }
};

ArgumentsCase read_arguments_case(JsonReader& in, const fs::path& root) {
  return {root / in.string("arguments"), in.integer("cards", kCount), read_context(in)};
}

Simulation simulate_balanced(const Job& job) {
  return simulate(job, load_hardware_profile(job.hardware), balanced_routing(job));
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

struct MemoryRun {
  std::string name;
  std::vector<ComparedMemory> lines;
};

// Shown: the worst line of each run, in MiB, and means.
std::vector<ClaimLine> memory_lines(const std::vector<MemoryRun>& runs, const MemoryField& field,
                                    const Tolerance& tolerance) {
  std::vector<ClaimLine> lines;
  std::vector<double> run_means;
  std::vector<double> all;
  for (const MemoryRun& run : runs) {
    std::vector<double> errors;
    ClaimLine worst{run.name, "no memory lines", "", std::nullopt, false};
    for (const ComparedMemory& line : run.lines) {
      const double error = (line.*field.error_percent)();
      errors.push_back(error);
      if (worst.error_percent && std::abs(error) <= std::abs(*worst.error_percent)) continue;
      worst = percent_line(run.name + " rank " + std::to_string(line.logged.rank) + " after " +
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
}

// One counter of every memory line of the logs.
ClaimCheck memory(JsonReader& claim, const fs::path& root) {
  const Tolerance tolerance = read_tolerance(claim);
  const MemoryField field = read_memory_field(claim);
  return [=, cases = read_log_cases(claim, root)] {
    std::vector<MemoryRun> runs;
    for (const LogCase& c : cases) runs.push_back({c.name(), simulate_log(c).comparison.memory});
    return memory_lines(runs, field, tolerance);
  };
}

// One counter of every rank after two iterations of our own job files, and beside ours the error of
// another simulator for the fullest rank.
ClaimCheck rank_memory(JsonReader& claim, const fs::path& root) {
  constexpr std::int64_t kIterations = 2;
  struct Case {
    fs::path job;
    std::vector<double> measured_mib;  // [rank]
    double rival_gib = 0;              // of the fullest rank
  };
  const Tolerance tolerance = read_tolerance(claim);
  const MemoryField field = read_memory_field(claim);
  const std::string rival = claim.string("rival");
  const auto cases = read_cases<Case>(claim, [&](JsonReader& in) {
    Case c{root / in.string("job"), {}, in.number("rival_gib", kCardGib)};
    for (const nlohmann::json& mib : in.raw("measured_mib")) {
      c.measured_mib.push_back(mib.is_number() ? mib.get<double>() : 0);
    }
    if (c.measured_mib.empty() || std::ranges::min(c.measured_mib) <= 0) {
      in.violate("measured_mib", in.raw("measured_mib").dump(), "a list of numbers > 0");
    }
    return c;
  });
  return [=] {
    std::vector<MemoryRun> runs;
    std::vector<double> ours;
    std::vector<double> theirs;
    for (const Case& c : cases) {
      TrainingLog measured;
      measured.arguments.source = c.job.string();
      for (const double mib : c.measured_mib) {
        LoggedMemory& line = measured.memory.emplace_back();
        line.rank = std::ssize(measured.memory) - 1;
        line.after_iterations = kIterations;
        line.*field.measured_mib = mib;
      }
      const Job job = read_job(c.job);
      const Simulation simulation = simulate_balanced(job);
      runs.push_back({job.name, compare_with_log(measured, job, simulation.result).memory});
      const ComparedMemory& fullest = *std::ranges::max_element(
          runs.back().lines, {},
          [&](const ComparedMemory& line) { return line.logged.*field.measured_mib; });
      ours.push_back((fullest.*field.error_percent)());
      theirs.push_back(percent_off(c.rival_gib * kMibPerGib, fullest.logged.*field.measured_mib));
    }
    std::vector<ClaimLine> lines = memory_lines(runs, field, tolerance);
    const auto beside = [&](const char* what, double their, double our) {
      lines.push_back({std::string("fullest rank of each run: ") + what,
                       rival + " " + fixed_text(their, 3) + " %", "", our, true});
    };
    beside("mean", summarize(theirs).mean, summarize(ours).mean);
    beside("largest", summarize(theirs).max, summarize(ours).max);
    return lines;
  };
}

// Peak of the last rank after the first iteration, and after later ones.
ClaimCheck last_rank_memory(JsonReader& claim, const fs::path& root) {
  struct Case {
    ArgumentsCase run;
    std::vector<std::int64_t> measured_bytes;  // after the first iteration, after a later one
  };
  const Tolerance tolerance = read_tolerance(claim);
  const MemoryField field = read_memory_field(claim);
  const auto cases = read_cases<Case>(claim, [&](JsonReader& in) {
    Case c{read_arguments_case(in, root), {}};
    for (const nlohmann::json& bytes : in.raw("measured_bytes")) {
      c.measured_bytes.push_back(bytes.is_number_integer() ? bytes.get<std::int64_t>() : 0);
    }
    if (c.measured_bytes.empty() || std::ranges::min(c.measured_bytes) <= 0) {
      in.violate("measured_bytes", in.raw("measured_bytes").dump(), "a list of integers > 0");
    }
    return c;
  });
  return [=] {
    std::vector<MemoryRun> runs;
    for (const Case& c : cases) {
      TrainingLog measured;
      measured.arguments.source = c.run.arguments.string();
      for (const std::int64_t bytes : c.measured_bytes) {
        LoggedMemory& line = measured.memory.emplace_back();
        line.rank = c.run.cards - 1;
        line.after_iterations = std::ssize(measured.memory);
        line.*field.measured_mib = to_mib(Bytes(bytes));
      }
      const Job job = c.run.job();
      runs.push_back(
          {c.run.name(), compare_with_log(measured, job, simulate_balanced(job).result).memory});
    }
    return memory_lines(runs, field, tolerance);
  };
}

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

// The highest peak allocated of all ranks, for variants of one job (JSON merge patches, RFC 7386).
// Variants that ran out of memory are listed with what we predict.
ClaimCheck highest_rank_memory(JsonReader& claim, const fs::path& root) {
  struct Case {
    std::string what;
    Job job;
    std::optional<std::int64_t> measured;  // empty: out of memory
  };
  const Tolerance tolerance = read_tolerance(claim);
  const fs::path file = root / claim.string("job");
  const nlohmann::json base = load_json(file);
  auto cases = read_cases<Case>(claim, [&](JsonReader& in) {
    Case c;
    c.what = in.string("what");
    nlohmann::json json = base;
    json.merge_patch(in.raw("patch"));
    c.job = job_from_json(json, file.string() + " as patched");
    c.measured = in.optional_integer("measured_bytes", {1, std::int64_t{1} << 50});
    return c;
  });
  return [=, cases = std::move(cases)] {
    std::vector<ClaimLine> lines;
    std::vector<double> errors;
    for (const Case& c : cases) {
      const HardwareProfile profile = load_hardware_profile(c.job.hardware);
      const Simulation simulation = simulate(c.job, profile, balanced_routing(c.job));
      const std::int64_t peak = highest_peak(c.job, profile, simulation).peak.value;
      if (!c.measured) {
        lines.push_back({c.what, "out of memory", peak, std::nullopt, true});
        continue;
      }
      errors.push_back(percent_off(static_cast<double>(peak), static_cast<double>(*c.measured)));
      lines.push_back(
          percent_line(c.what, *c.measured, peak, errors.back(), tolerance.max_percent));
    }
    lines.push_back(mean_line("mean", summarize(errors).mean, tolerance.mean_percent));
    return lines;
  };
}

// In-flight microbatches (of chunks) of each stage, and the makespan of slots without
// communication. Durations are of all chunks of a stage together.
ClaimCheck schedule(JsonReader& claim, const fs::path&) {
  struct Case {
    std::int64_t stages = 1;
    std::int64_t chunks = 1;
    std::int64_t microbatches = 1;
    std::int64_t forward_ns = 1;
    std::int64_t backward_ns = 1;
    std::int64_t makespan_ns = 0;
    std::vector<std::int64_t> in_flight;
  };
  require_equality(claim);
  auto cases = read_cases<Case>(claim, [&](JsonReader& in) {
    Case c{in.integer("stages", kCount),
           in.optional_integer("virtual_stages", kCount).value_or(1),
           in.integer("microbatches", kCount),
           in.integer("forward_ns", kCount),
           in.integer("backward_ns", kCount),
           in.integer("makespan_ns"),
           {}};
    for (const nlohmann::json& count : in.raw("in_flight")) {
      if (count.is_number_integer()) c.in_flight.push_back(count.get<std::int64_t>());
    }
    if (std::ssize(c.in_flight) != c.stages) {
      in.violate("in_flight", std::to_string(c.in_flight.size()) + " integers",
                 "one for each of the " + std::to_string(c.stages) + " stages");
    }
    for (const auto& [key, ns] :
         {std::pair{"forward_ns", c.forward_ns}, std::pair{"backward_ns", c.backward_ns}}) {
      if (ns % c.chunks != 0) {
        in.violate(key, std::to_string(ns), "a multiple of " + std::to_string(c.chunks));
      }
    }
    return c;
  });
  return [cases = std::move(cases)] {
    std::vector<ClaimLine> lines;
    for (const Case& c : cases) {
      const auto slot = [&](std::int64_t ns) {
        SlotProgram program;
        program.ops.emplace_back().cost.fixed_ns = ns / c.chunks;
        return program;
      };
      ChunkProgram chunk;
      chunk.forward = chunk.first_forward = slot(c.forward_ns);
      chunk.backward = chunk.last_backward = slot(c.backward_ns);
      StageProgram stage;
      stage.chunks.assign(static_cast<std::size_t>(c.chunks), chunk);
      const auto stages = static_cast<std::int32_t>(c.stages);
      const auto microbatches = static_cast<std::int32_t>(c.microbatches);
      Program program;
      program.schedule = c.chunks == 1 ? build_1f1b(stages, microbatches)
                                       : build_interleaved_1f1b(
                                             stages, microbatches,
                                             {static_cast<std::int32_t>(c.chunks), stages, true});
      program.stages.assign(static_cast<std::size_t>(c.stages), stage);
      std::string name = std::to_string(c.stages) + " stages, ";
      if (c.chunks > 1) name += std::to_string(c.chunks) + " chunks each, ";
      name += std::to_string(c.microbatches) + " microbatches";
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
      {"bagualu2_activation_formula", bagualu2_activation_formula},
      {"highest_rank_memory", highest_rank_memory},
      {"iteration_time", iteration_time},
      {"kept_bytes", kept_bytes},
      {"last_rank_memory", last_rank_memory},
      {"launch", launch},
      {"memory", memory},
      {"model_flops", model_flops},
      {"parameters", parameters},
      {"rank_memory", rank_memory},
      {"recorded_ratios", recorded_ratios},
      {"schedule", schedule},
      {"workload_ratios", workload_ratios},
      {"zoo_parameters", zoo_parameters}};
  return kKinds;
}

}  // namespace tidemark
