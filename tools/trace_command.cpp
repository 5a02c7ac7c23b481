#include <algorithm>
#include <functional>
#include <set>
#include <utility>

#include <nlohmann/json.hpp>

#include "models/input_error.h"
#include "models/job_reader.h"
#include "models/parse_number.h"
#include "tools/command.h"
#include "tools/gnuplot.h"
#include "tools/job_input.h"
#include "tools/output_file.h"
#include "tools/quantity_text.h"
#include "tools/text_table.h"
#include "traces/capacity.h"
#include "traces/routing_source.h"
#include "traces/trace_file.h"
#include "traces/trace_import.h"
#include "traces/trace_statistics.h"
#include "traces/workload_fit.h"

namespace tidemark {
namespace {

namespace fs = std::filesystem;
using Align = TextTable::Align;
using nlohmann::ordered_json;

constexpr std::int64_t kLargestDegree = std::int64_t{1} << 20;

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  for (std::size_t begin = 0;;) {
    const std::size_t end = text.find(separator, begin);
    parts.push_back(text.substr(begin, end - begin));
    if (end == std::string::npos) return parts;
    begin = end + 1;
  }
}

// "a=1,b=x" of a flag.
std::map<std::string, std::string> pairs(const Arguments& arguments, const std::string& flag) {
  std::map<std::string, std::string> out;
  const auto text = arguments.text(flag);
  if (!text) return out;
  for (const std::string& part : split(*text, ',')) {
    const std::size_t at = part.find('=');
    if (at == std::string::npos || at == 0) {
      throw InputError("", "--" + flag, "\"" + part + "\"", "NAME=VALUE, several with commas");
    }
    out[part.substr(0, at)] = part.substr(at + 1);
  }
  return out;
}

std::int64_t required(const Arguments& arguments, const std::string& flag,
                      std::int64_t high = kLargestDegree) {
  const auto value = arguments.integer(flag, 1, high);
  if (!value) throw InputError("", "--" + flag, "missing", "an integer >= 1");
  return *value;
}

std::uint64_t seed_of(const Arguments& arguments) {
  return static_cast<std::uint64_t>(arguments.integer("seed", 0, INT64_MAX).value_or(0));
}

RatioOf ratio_of(const Arguments& arguments) {
  const std::string name = arguments.text("ratio-of").value_or("microbatch");
  const auto& names = ratio_names();
  const auto it = std::find(names.begin(), names.end(), name);
  if (it == names.end()) {
    throw InputError("", "--ratio-of", "\"" + name + "\"", "microbatch, layer or card");
  }
  return static_cast<RatioOf>(it - names.begin());
}

// --- shapes and tables --------------------------------------------------------------------------

ordered_json shape_json(const TraceInfo& info) {
  const RoutingShape& s = info.shape;
  return {{"iterations", info.iterations},
          {"units", s.units},
          {"microbatches", s.microbatches},
          {"moe_layers", s.moe_layers},
          {"experts", s.experts},
          {"topk", s.topk},
          {"tokens", s.tokens},
          {"ranks", s.ranks},
          {"count_of", info.count_of == CountOf::kRank ? "rank" : "expert"}};
}

std::string shape_text(const TraceInfo& info) {
  const RoutingShape& s = info.shape;
  return std::to_string(info.iterations) + " iterations of " + std::to_string(s.units) +
         " units, " + std::to_string(s.microbatches) + " microbatches, " +
         std::to_string(s.moe_layers) + " MoE layers, " + std::to_string(s.experts) +
         (info.count_of == CountOf::kRank
              ? " ranks (experts are not told)"
              : " experts on " + std::to_string(s.ranks) + " ranks, top-" + std::to_string(s.topk) +
                    " of " + grouped_text(s.tokens) + " tokens");
}

// What both writers of traces report.
Report written(const Arguments& arguments, const std::vector<fs::path>& inputs,
               const std::string& path, const TraceInfo& info,
               const std::vector<std::string>& notes) {
  Report report;
  report.json = result_with_provenance(inputs, arguments);
  report.json["trace"] = shape_json(info);
  report.json["trace"]["file"] = path;
  report.json["notes"] = notes;
  report.text = path + ": " + shape_text(info) + ".\n";
  for (const std::string& note : notes) report.text += "note: " + note + "\n";
  return report;
}

// Writes a trace whole or not at all.
template <class Write>
auto write_trace(const std::string& path, const Write& write) {
  OutputFile file(path);
  auto result = write(file.stream());
  file.commit();
  return result;
}

// --- import -------------------------------------------------------------------------------------

Report import(const Arguments& arguments) {
  const auto& words = arguments.positionals();
  if (words.size() != 4) {
    throw InputError("", "trace import", std::to_string(words.size() - 1) + " arguments",
                     "FORMAT INPUT TRACE");
  }
  const std::string& format = words[1];
  const fs::path input = words[2];
  const auto optional = [&](const char* flag, std::int64_t otherwise) {
    return arguments.integer(flag, 1, kLargestCount).value_or(otherwise);
  };
  const std::int64_t ranks = required(arguments, "ep");
  const ImportReport report = write_trace(words[3], [&](std::ostream& out) {
    if (format == "telemetry") return import_telemetry(input, ranks, out);
    if (format == "routing-log") {
      return import_routing_log(
          input, {required(arguments, "experts"), ranks, optional("senders", ranks)}, out);
    }
    if (format == "counts") {
      return import_count_table(input, ranks, pairs(arguments, "where"), out);
    }
    if (format == "token-ids") {
      return import_token_ids(input,
                              {required(arguments, "experts"), ranks, optional("tokens", 0),
                               optional("microbatches", 0)},
                              out);
    }
    throw InputError("", "format", "\"" + format + "\"",
                     "telemetry, routing-log, counts or token-ids");
  });
  return written(arguments, {input}, words[3], report.info, report.notes);
}

// --- generate -----------------------------------------------------------------------------------

Workload workload_of(const Arguments& arguments) {
  nlohmann::json json;
  if (const auto name = arguments.text("workload")) json["workload"] = *name;
  for (const auto& [key, value] : pairs(arguments, "parameters")) {
    const nlohmann::json number = nlohmann::json::parse(value, nullptr, false);
    json[key] = number.is_number() ? number : nlohmann::json(value);
  }
  if (json.is_null()) json = nlohmann::json::object();
  std::vector<Violation> violations;
  JsonReader in(json, "", "--parameters", violations);
  const Workload workload = read_workload(in);
  in.finish();
  throw_if_any(violations);
  return workload;
}

Report generate(const Arguments& arguments) {
  const auto& words = arguments.positionals();
  if (words.size() != 2) {
    throw InputError("", "trace generate", std::to_string(words.size() - 1) + " arguments",
                     "TRACE");
  }
  TraceInfo info;
  std::vector<fs::path> inputs;
  RoutingInput input{workload_of(arguments), {}};
  if (const auto path = arguments.text("job")) {
    const Job job = read_job(*path);
    inputs.emplace_back(*path);
    info.shape = routing_shape(job);
    if (!arguments.has("workload")) input = routing_input(job);
    if (info.shape.moe_layers == 0) throw InputError(*path, "/model", "no experts", "MoE layers");
  } else {
    info.shape = {arguments.integer("units", 1, kLargestDegree).value_or(1),
                  required(arguments, "microbatches"),
                  required(arguments, "moe-layers"),
                  required(arguments, "experts"),
                  required(arguments, "topk"),
                  required(arguments, "tokens", kLargestCount),
                  required(arguments, "ep")};
    if (info.shape.experts % info.shape.ranks != 0 || info.shape.topk > info.shape.experts) {
      throw InputError("", "--experts", std::to_string(info.shape.experts),
                       "a multiple of --ep, at least --topk");
    }
  }
  const std::uint64_t seed = seed_of(arguments);
  const std::int64_t iterations = required(arguments, "iterations", kLargestCount);
  info.origin = {{"workload", to_json(input.workload)}, {"seed", seed}};
  const auto source = make_routing(info.shape, input.workload, seed);
  const TraceInfo done = write_trace(words[1], [&](std::ostream& out) {
    TraceWriter writer(out, info);
    RoutingCounts counts;
    for (std::int64_t iteration = 0; iteration < iterations; ++iteration) {
      for (std::int64_t unit = 0; unit < info.shape.units; ++unit) {
        source->counts(iteration, unit, counts);
        writer.write(counts);
      }
    }
    return writer.finish();
  });
  return written(arguments, inputs, words[1], done, {});
}

// --- describe and fit ---------------------------------------------------------------------------

struct OpenTrace {
  fs::path path;
  TraceInfo info;
  std::unique_ptr<RoutingSource> source;
};

OpenTrace open_trace(const Arguments& arguments) {
  const auto& words = arguments.positionals();
  if (words.size() != 2) {
    throw InputError("", "trace " + words[0], std::to_string(words.size() - 1) + " arguments",
                     "TRACE");
  }
  const fs::path path = words[1];
  TraceInfo info = TraceFile(path).info();
  auto source = trace_routing(path, info.shape);
  return {path, std::move(info), std::move(source)};
}

// --ep, or the trace's own, the usual ones, and every expert by itself.
std::vector<std::int64_t> rank_numbers(const Arguments& arguments, const RoutingShape& shape) {
  std::set<std::int64_t> numbers;
  if (const auto text = arguments.text("ep")) {
    for (const std::string& part : split(*text, ',')) {
      const auto number = parse_number<std::int64_t>(part);
      if (!number || *number < 1 || shape.experts % *number != 0) {
        throw InputError("", "--ep", "\"" + part + "\"",
                         "divisors of the trace's " + std::to_string(shape.experts) + " experts");
      }
      numbers.insert(*number);
    }
  } else {
    for (const std::int64_t number : {shape.ranks, std::int64_t{8}, std::int64_t{16},
                                      std::int64_t{32}, std::int64_t{64}, shape.experts}) {
      if (shape.experts % number == 0) numbers.insert(number);
    }
  }
  return {numbers.begin(), numbers.end()};
}

std::string ranks_name(std::int64_t ranks, const RoutingShape& shape) {
  return ranks == shape.experts ? "expert" : "EP" + std::to_string(ranks);
}

struct CapacityLine {
  std::string name;
  Dropped dropped;
};

// What a capacity factor would drop, and pad.
std::vector<CapacityLine> capacity_lines(const OpenTrace& trace, double factor) {
  std::vector<CapacityLine> lines;
  for (const bool device : {false, true}) {
    const Capacity capacity{factor, !device, device ? DropPolicy::kDevice : DropPolicy::kExpert, 1};
    Dropped sum;
    RoutingCounts counts;
    for (std::int64_t i = 0; i < trace.info.iterations; ++i) {
      for (std::int64_t unit = 0; unit < trace.info.shape.units; ++unit) {
        trace.source->counts(i, unit, counts);
        const Dropped dropped = apply_capacity(trace.info.shape, capacity, counts);
        sum.rows += dropped.rows;
        sum.of += dropped.of;
        sum.padded += dropped.padded;
      }
    }
    lines.push_back({device ? "device" : "expert", sum});
  }
  return lines;
}

Panel ratios_panel(const OpenTrace& trace, const TraceStatistics& statistics, RatioOf ratio) {
  Panel panel{
      "Largest max/mean of each iteration, per " + name_of(ratio), "iteration", "max / mean", {}};
  for (const RankStatistics& r : statistics.ranks) {
    Curve& curve = panel.curves.emplace_back();
    curve.title = ranks_name(r.ranks, trace.info.shape);
    for (std::size_t i = 0; i < r.iteration_ratios.size(); ++i) {
      curve.points.emplace_back(static_cast<double>(i), r.iteration_ratios[i]);
    }
  }
  return panel;
}

Panel distribution_panel(const OpenTrace& trace, const TraceStatistics& statistics) {
  Panel panel{
      "Distribution of max/mean of a microbatch and layer", "max / mean", "share below", {}};
  constexpr std::size_t kPoints = 400;
  for (const RankStatistics& r : statistics.ranks) {
    Curve& curve = panel.curves.emplace_back();
    curve.title = ranks_name(r.ranks, trace.info.shape);
    const auto last = static_cast<double>(r.sample.size() - 1);
    for (std::size_t i = 0; i <= kPoints; ++i) {
      const double share = static_cast<double>(i) / kPoints;
      curve.points.emplace_back(r.sample[static_cast<std::size_t>(share * last)], share);
    }
  }
  return panel;
}

Panel autocorrelation_panel(const LoadStatistics& loads) {
  Panel panel{"Autocorrelation of the experts' loads", "lag, iterations", "correlation", {}};
  Curve& curve = panel.curves.emplace_back();
  curve.title = "loads";
  curve.points.emplace_back(0, 1);
  for (const auto& [lag, r] : loads.autocorrelation) {
    curve.points.emplace_back(static_cast<double>(lag), r);
  }
  return panel;
}

Report describe(const Arguments& arguments) {
  const OpenTrace trace = open_trace(arguments);
  const RatioOf ratio = ratio_of(arguments);
  const TraceStatistics statistics =
      describe_routing(*trace.source, trace.info.shape, 0, trace.info.iterations,
                       rank_numbers(arguments, trace.info.shape), ratio);
  Report report;
  report.json = result_with_provenance({trace.path}, arguments);
  report.json["trace"] = shape_json(trace.info);
  report.json["trace"]["origin"] = trace.info.origin;
  report.json["ratio_of"] = name_of(ratio);
  TextTable table({{"max/mean over", Align::kLeft},
                   {"mean"},
                   {"median"},
                   {"97 %"},
                   {"99 %"},
                   {"largest"},
                   {"iterations < 1.2"}});
  for (const RankStatistics& r : statistics.ranks) {
    table.add_row({ranks_name(r.ranks, trace.info.shape), fixed_text(r.mean, 3),
                   fixed_text(r.p50, 3), fixed_text(r.p97, 3), fixed_text(r.p99, 3),
                   fixed_text(r.max, 3), share_text(r.share_below(1.2), 1)});
    report.json["ranks"].push_back({{"ranks", r.ranks},
                                    {"mean", r.mean},
                                    {"p50", r.p50},
                                    {"p97", r.p97},
                                    {"p99", r.p99},
                                    {"max", r.max},
                                    {"share_of_iterations_below_1.2", r.share_below(1.2)},
                                    {"iteration_ratios", r.iteration_ratios}});
  }
  const LoadStatistics& loads = statistics.loads;
  report.json["loads"] = {{"variance", loads.variance},
                          {"covariance_of_microbatches", loads.between_microbatches},
                          {"covariance_of_layers", loads.between_layers}};
  report.text = trace.path.string() + ": " + shape_text(trace.info) + ".\n\n" + table.text() +
                "\nOf each microbatch and layer; the last column of each iteration's largest ratio "
                "per " +
                name_of(ratio) + ".\nLoads of experts beyond the multinomial: relative variance " +
                fixed_text(loads.variance, 4) + ", common to microbatches " +
                fixed_text(loads.between_microbatches, 4) + ".\n";
  for (const auto& [lag, r] : loads.autocorrelation) {
    report.json["loads"]["autocorrelation"].push_back({{"lag", lag}, {"value", r}});
    report.text += "autocorrelation at lag " + std::to_string(lag) + ": " + fixed_text(r, 3) + "\n";
  }
  if (const auto text = arguments.text("capacity-factor")) {
    const auto factor = parse_number<double>(*text);
    if (!factor || !(*factor > 0 && *factor <= 1e6)) {
      throw InputError("", "--capacity-factor", *text, "a number > 0");
    }
    for (const CapacityLine& line : capacity_lines(trace, *factor)) {
      const auto share = [&](std::int64_t rows) {
        return share_text(static_cast<double>(rows), static_cast<double>(line.dropped.of));
      };
      const bool padded = line.name == "expert";
      report.text +=
          "capacity factor " + *text + " of each " + line.name + ": " + share(line.dropped.rows) +
          " of rows dropped" +
          (padded ? "; padded to it, " + share(line.dropped.padded) + " empty rows more" : "") +
          "\n";
      report.json["capacity"].push_back({{"of", line.name},
                                         {"dropped_rows", line.dropped.rows},
                                         {"rows", line.dropped.of},
                                         {"padded_rows", line.dropped.padded}});
    }
  }
  if (const auto file = arguments.text("plot")) {
    std::vector<Panel> panels = {ratios_panel(trace, statistics, ratio),
                                 distribution_panel(trace, statistics)};
    if (!loads.autocorrelation.empty()) panels.push_back(autocorrelation_panel(loads));
    plot_panels(panels, *file);
    report.json["plot"] = *file;
  }
  return report;
}

Report fit(const Arguments& arguments) {
  const OpenTrace trace = open_trace(arguments);
  if (trace.info.iterations < 2) {
    throw InputError(trace.path.string(), "/iterations", std::to_string(trace.info.iterations),
                     "at least 2, to fit to some and hold others out");
  }
  const std::int64_t percent = arguments.integer("fit-percent", 1, 99).value_or(50);
  const WorkloadFit fit = fit_and_compare(
      *trace.source, trace.info.shape, trace.info.iterations, static_cast<double>(percent) / 100,
      rank_numbers(arguments, trace.info.shape), seed_of(arguments));
  Report report;
  report.json = result_with_provenance({trace.path}, arguments);
  report.json["trace"] = shape_json(trace.info);
  report.json["workload"] = to_json(fit.workload);
  report.json["fitted_iterations"] = fit.fitted_iterations;
  report.json["held_out_iterations"] = fit.held_out_iterations;
  report.json["notes"] = fit.notes;
  TextTable table({{"max/mean over", Align::kLeft},
                   {"held out"},
                   {"97 %"},
                   {"fitted"},
                   {"97 %"},
                   {"distance"},
                   {"of the trace's parts"}});
  for (const FitOfRanks& r : fit.ranks) {
    table.add_row({ranks_name(r.ranks, trace.info.shape), fixed_text(r.held_out_mean, 3),
                   fixed_text(r.held_out_p97, 3), fixed_text(r.fitted_mean, 3),
                   fixed_text(r.fitted_p97, 3), fixed_text(r.distance, 3),
                   fixed_text(r.own_distance, 3)});
    report.json["ranks"].push_back({{"ranks", r.ranks},
                                    {"held_out_mean", r.held_out_mean},
                                    {"held_out_p97", r.held_out_p97},
                                    {"fitted_mean", r.fitted_mean},
                                    {"fitted_p97", r.fitted_p97},
                                    {"distance", r.distance},
                                    {"distance_of_parts", r.own_distance}});
  }
  TextTable lags({{"autocorrelation at lag"}, {"held out"}, {"fitted"}});
  for (const auto& [lag, r] : fit.held_out_autocorrelation) {
    const double fitted = fit.fitted_autocorrelation.at(lag);
    lags.add_row({std::to_string(lag), fixed_text(r, 3), fixed_text(fitted, 3)});
    report.json["autocorrelation"].push_back({{"lag", lag}, {"held_out", r}, {"fitted", fitted}});
  }
  report.text = "Fitted to the first " + std::to_string(fit.fitted_iterations) + " of " +
                std::to_string(trace.info.iterations) + " iterations:\n\n  " +
                to_json(fit.workload).dump() + "\n\nBeside the " +
                std::to_string(fit.held_out_iterations) +
                " held out (Kolmogorov and Smirnov's distance):\n\n" + table.text();
  if (!fit.held_out_autocorrelation.empty()) report.text += "\n" + lags.text();
  for (const std::string& note : fit.notes) report.text += "note: " + note + "\n";
  return report;
}

// --- the command --------------------------------------------------------------------------------

struct Subcommand {
  std::string name;
  Report (*run)(const Arguments&);
  std::set<std::string> flags;
};

const std::vector<Subcommand>& subcommands() {
  static const std::vector<Subcommand> kSubcommands = {
      {"import", import, {"ep", "experts", "senders", "where", "tokens", "microbatches"}},
      {"generate",
       generate,
       {"workload", "parameters", "iterations", "seed", "job", "ep", "experts", "topk", "tokens",
        "moe-layers", "microbatches", "units"}},
      {"describe", describe, {"ep", "ratio-of", "plot", "capacity-factor"}},
      {"fit", fit, {"ep", "seed", "fit-percent"}},
  };
  return kSubcommands;
}

std::vector<Flag> trace_flags() {
  std::string workloads;
  for (const std::string& name : workload_names())
    workloads += (workloads.empty() ? "" : ", ") + name;
  return {
      {"ep", "N[,N...]", "expert-parallel ranks; describe and fit take several"},
      {"experts", "N", "experts of a layer (import routing-log, token-ids; generate)"},
      {"senders", "N", "ranks of a unit that write (import routing-log); else --ep"},
      {"where", "COLUMN=VALUE,...", "rows to take (import counts)"},
      {"tokens", "N", "of a microbatch, of all cards of a unit (import token-ids, generate)"},
      {"microbatches", "N", "of an iteration (import token-ids, generate)"},
      {"workload", "NAME", "what to generate: " + workloads},
      {"parameters", "NAME=VALUE,...", "of the workload (traces/workload.h)"},
      {"iterations", "N", "how many to generate"},
      {"seed", "N", "of the random numbers; 0 by default"},
      {"job", "JOB.json", "generate in the shape, and with the routing, of a job"},
      {"topk", "N", "experts of a token (generate)"},
      {"moe-layers", "N", "layers with experts (generate)"},
      {"units", "N", "expert-parallel groups side by side (generate); 1 by default"},
      {"ratio-of", "WHAT", "what an iteration's ratio is of: microbatch, layer or card (describe)"},
      {"plot", "FILE.png", "draw with gnuplot (describe)"},
      {"capacity-factor", "F", "what it would drop (describe)"},
      {"fit-percent", "N", "of the iterations to fit to; 50 by default"},
  };
}

Report run_trace(const Arguments& arguments) {
  const auto& words = arguments.positionals();
  for (const Subcommand& sub : subcommands()) {
    if (words.empty() || words[0] != sub.name) continue;
    for (const Flag& flag : trace_flags()) {
      if (arguments.has(flag.name) && !sub.flags.contains(flag.name)) {
        throw InputError("", "--" + flag.name, "given to trace " + sub.name,
                         "it without this flag");
      }
    }
    return sub.run(arguments);
  }
  throw InputError("", "trace", words.empty() ? "nothing to do" : "\"" + words[0] + "\"",
                   "import, generate, describe or fit");
}

}  // namespace

Command trace_command() {
  return {"trace", "import FORMAT INPUT TRACE | generate TRACE | describe TRACE | fit TRACE",
          "records, makes, describes and fits routing traces", trace_flags(), run_trace};
}

}  // namespace tidemark
