#include "tools/log_comparison.h"

#include <algorithm>
#include <cmath>
#include <string>

#include <nlohmann/json.hpp>

#include "models/input_error.h"
#include "tools/quantity_text.h"
#include "tools/text_table.h"

namespace tidemark {
namespace {

using Align = TextTable::Align;

constexpr std::int64_t kPastStartUp = 3;  // iteration

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

std::int64_t checked_stage(const TrainingLog& log, const Job& job, const char* what,
                           std::int64_t found, std::int64_t stage) {
  if (found >= 0 && stage >= 0 && stage < job.layout.pipeline) return stage;
  throw InputError(log.arguments.source, what, std::to_string(found),
                   "a rank of the " + std::to_string(job.layout.cards) + " cards in " +
                       std::to_string(job.layout.pipeline) + " stages of its arguments");
}

std::optional<ComparedTime> compare_time(const TrainingLog& log, const IterationResult& result) {
  if (log.iterations.empty()) return std::nullopt;
  const bool warm = std::any_of(log.iterations.begin(), log.iterations.end(),
                                [](const auto& it) { return it.iteration >= kPastStartUp; });
  ComparedTime time;
  time.from_iteration = warm ? kPastStartUp : log.iterations.front().iteration;
  std::vector<double> elapsed;
  std::vector<double> tflops;
  for (const LoggedIteration& it : log.iterations) {
    if (it.iteration < time.from_iteration) continue;
    elapsed.push_back(it.elapsed_ms);
    if (it.tflops_per_card) tflops.push_back(*it.tflops_per_card);
  }
  time.measured_ms = median(elapsed);
  time.iterations = std::ssize(elapsed);
  time.predicted_ms = static_cast<double>(result.time_ns) * 1e-6;
  if (!tflops.empty()) time.measured_tflops = median(tflops);
  time.predicted_tflops = result.tflops_per_card;
  return time;
}

std::string mib(double value) { return fixed_text(value, 2); }

std::string memory_text(const LogComparison& comparison) {
  TextTable table({{"rank"},
                   {"stage"},
                   {"after"},
                   {"allocated"},
                   {"predicted"},
                   {"error"},
                   {"max allocated"},
                   {"predicted"},
                   {"error"},
                   {"max reserved"},
                   {"predicted"},
                   {"error"}});
  for (const ComparedMemory& line : comparison.memory) {
    table.add_row({std::to_string(line.logged.rank), std::to_string(line.stage),
                   std::to_string(line.logged.after_iterations), mib(line.logged.allocated_mib),
                   mib(to_mib(line.allocated)), signed_percent_text(line.allocated_error_percent()),
                   mib(line.logged.max_allocated_mib), mib(to_mib(line.max_allocated)),
                   signed_percent_text(line.max_allocated_error_percent()),
                   mib(line.logged.max_reserved_mib), mib(to_mib(line.max_reserved)),
                   signed_percent_text(line.max_reserved_error_percent())});
  }
  return table.text();
}

std::vector<double> errors_of(const LogComparison& comparison,
                              double (ComparedMemory::*error)() const) {
  std::vector<double> errors;
  for (const ComparedMemory& line : comparison.memory) errors.push_back((line.*error)());
  return errors;
}

// The three counters, for summaries.
struct Counter {
  const char* words;
  const char* key;
  double (ComparedMemory::*error)() const;
};
constexpr Counter kCounters[] = {{"Peak of allocated memory", "max_allocated_error_percent",
                                  &ComparedMemory::max_allocated_error_percent},
                                 {"Allocated after the iteration", "allocated_error_percent",
                                  &ComparedMemory::allocated_error_percent},
                                 {"Peak of reserved memory", "max_reserved_error_percent",
                                  &ComparedMemory::max_reserved_error_percent}};

std::int64_t count_equal(const std::vector<ComparedParameters>& parameters) {
  return std::count_if(parameters.begin(), parameters.end(), [](const ComparedParameters& p) {
    return p.logged.parameters == p.predicted;
  });
}

std::string parameters_text(const LogComparison& comparison) {
  const std::int64_t equal = count_equal(comparison.parameters);
  std::string out = "Parameters a card: " + std::to_string(equal) + " of " +
                    std::to_string(comparison.parameters.size()) + " printed counts are equal.\n";
  for (const ComparedParameters& p : comparison.parameters) {
    if (p.logged.parameters == p.predicted) continue;
    out += "  (tensor, pipeline) rank (" + std::to_string(p.logged.tensor_rank) + ", " +
           std::to_string(p.logged.pipeline_rank) + "): measured " +
           grouped_text(p.logged.parameters) + ", predicted " + grouped_text(p.predicted) + "\n";
  }
  return out;
}

std::string time_text(const ComparedTime& time) {
  std::string out = "Iteration time: measured " + fixed_text(time.measured_ms / 1000, 3) +
                    " s (median of " + std::to_string(time.iterations) +
                    " iterations, from number " + std::to_string(time.from_iteration) +
                    "), predicted " + fixed_text(time.predicted_ms / 1000, 3) + " s, error " +
                    signed_percent_text(time.error_percent()) + ".\n";
  if (time.measured_tflops) {
    out += "TFLOP/s a card: measured " + fixed_text(*time.measured_tflops, 1) + ", predicted " +
           fixed_text(time.predicted_tflops, 1) + ".\n";
  }
  return out;
}

std::string errors_text(const char* what, const std::vector<double>& errors) {
  const ErrorSummary summary = summarize(errors);
  return std::string(what) + ": mean error " + fixed_text(summary.mean, 3) + " %, largest " +
         fixed_text(summary.max, 3) + " %, over " + std::to_string(errors.size()) + " lines.\n";
}

}  // namespace

double ComparedMemory::allocated_error_percent() const {
  return percent_off(to_mib(allocated), logged.allocated_mib);
}

double ComparedMemory::max_allocated_error_percent() const {
  return percent_off(to_mib(max_allocated), logged.max_allocated_mib);
}

double ComparedMemory::max_reserved_error_percent() const {
  return percent_off(to_mib(max_reserved), logged.max_reserved_mib);
}

double ComparedTime::error_percent() const { return percent_off(predicted_ms, measured_ms); }

LogComparison compare_with_log(const TrainingLog& log, const Job& job,
                               const SimulationResult& result) {
  LogComparison out;
  const std::int64_t stage_cards = job.layout.cards / job.layout.pipeline;
  for (const LoggedMemory& logged : log.memory) {
    const std::int64_t stage =
        checked_stage(log, job, "memory of rank", logged.rank, logged.rank / stage_cards);
    const StageResult& s = result.stages[static_cast<std::size_t>(stage)];
    const bool first = logged.after_iterations == 1;
    out.memory.push_back(
        {logged, stage, first ? s.card.memory.after_first_iteration : s.allocated_after_iteration(),
         first ? s.peak_allocated_first_iteration() : s.peak_allocated(),
         first ? s.peak_reserved_first_iteration() : s.peak_reserved()});
  }
  for (const LoggedParameters& logged : log.parameters) {
    const std::int64_t stage = checked_stage(log, job, "parameters of pipeline rank",
                                             logged.pipeline_rank, logged.pipeline_rank);
    out.parameters.push_back({logged, result.stages[static_cast<std::size_t>(stage)].parameters});
  }
  out.time = compare_time(log, result.iteration);
  return out;
}

ErrorSummary summarize(std::span<const double> errors) {
  ErrorSummary out;
  for (const double error : errors) {
    out.mean += std::abs(error) / static_cast<double>(errors.size());
    out.max = std::max(out.max, std::abs(error));
  }
  return out;
}

std::string comparison_text(const TrainingLog& log, const LogComparison& comparison) {
  std::string out;
  if (comparison.time) out += time_text(*comparison.time);
  if (!comparison.parameters.empty()) out += parameters_text(comparison);
  if (!comparison.memory.empty()) {
    for (const Counter& counter : kCounters) {
      out += errors_text(counter.words, errors_of(comparison, counter.error));
    }
    out += "\nEvery rank that the log shows, after so many iterations, in MiB:\n\n" +
           memory_text(comparison);
  }
  for (const std::string& missing : log.missing) out += "The log has " + missing + ".\n";
  return out;
}

nlohmann::ordered_json comparison_json(const TrainingLog& log, const LogComparison& comparison) {
  nlohmann::ordered_json json;
  if (comparison.time) {
    const ComparedTime& time = *comparison.time;
    json["iteration_time"] = {{"measured_ms", time.measured_ms},
                              {"from_iteration", time.from_iteration},
                              {"iterations", time.iterations},
                              {"predicted_ms", time.predicted_ms},
                              {"error_percent", time.error_percent()}};
    if (time.measured_tflops) {
      json["tflops_per_card"] = {{"measured", *time.measured_tflops},
                                 {"predicted", time.predicted_tflops}};
    }
  }
  json["parameters"] = nlohmann::ordered_json::array();
  for (const ComparedParameters& p : comparison.parameters) {
    json["parameters"].push_back({{"tensor_rank", p.logged.tensor_rank},
                                  {"pipeline_rank", p.logged.pipeline_rank},
                                  {"measured", p.logged.parameters},
                                  {"predicted", p.predicted}});
  }
  json["memory"] = nlohmann::ordered_json::array();
  for (const ComparedMemory& line : comparison.memory) {
    nlohmann::ordered_json item;
    item["rank"] = line.logged.rank;
    item["stage"] = line.stage;
    item["after_iterations"] = line.logged.after_iterations;
    item["allocated"] = {{"measured_mib", line.logged.allocated_mib},
                         {"predicted_bytes", line.allocated.value},
                         {"error_percent", line.allocated_error_percent()}};
    item["max_allocated"] = {{"measured_mib", line.logged.max_allocated_mib},
                             {"predicted_bytes", line.max_allocated.value},
                             {"error_percent", line.max_allocated_error_percent()}};
    item["max_reserved"] = {{"measured_mib", line.logged.max_reserved_mib},
                            {"predicted_bytes", line.max_reserved.value},
                            {"error_percent", line.max_reserved_error_percent()}};
    json["memory"].push_back(std::move(item));
  }
  if (!comparison.memory.empty()) {
    for (const Counter& counter : kCounters) {
      const ErrorSummary summary = summarize(errors_of(comparison, counter.error));
      json[counter.key] = {{"mean", summary.mean}, {"max", summary.max}};
    }
  }
  json["missing"] = log.missing;
  return json;
}

}  // namespace tidemark
