// A training log beside the simulation of its job: what every rank allocated, its parameters, how
// long an iteration took.
//
// A rank's pipeline stage is rank / (cards / PP): Megatron numbers cards stage by stage. The peak
// that a log prints after iteration 1 is that of an iteration without optimizer moments; from
// iteration 2 on it is the higher of that and a later iteration's.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "models/training_log.h"
#include "sim/simulation.h"

namespace tidemark {

struct ComparedMemory {
  LoggedMemory logged;
  std::int64_t stage = 0;
  Bytes allocated;      // predicted
  Bytes max_allocated;  // predicted
  Bytes max_reserved;   // predicted

  double allocated_error_percent() const;
  double max_allocated_error_percent() const;
  double max_reserved_error_percent() const;
};

struct ComparedParameters {
  LoggedParameters logged;
  std::int64_t predicted = 0;
};

// Medians over the iterations from number 3 on, which are past start-up; over all if there are
// none.
struct ComparedTime {
  double measured_ms = 0;
  std::int64_t from_iteration = 1;
  std::int64_t iterations = 0;  // that the median is of
  double predicted_ms = 0;
  std::optional<double> measured_tflops;
  double predicted_tflops = 0;

  double error_percent() const;
};

struct LogComparison {
  std::vector<ComparedMemory> memory;
  std::vector<ComparedParameters> parameters;
  std::optional<ComparedTime> time;
};

// Throws: InputError when the log speaks of ranks that the job does not have.
LogComparison compare_with_log(const TrainingLog& log, const Job& job,
                               const SimulationResult& result);

// Of absolute values.
struct ErrorSummary {
  double mean = 0;
  double max = 0;
};
// Requires: at least one error.
ErrorSummary summarize(std::span<const double> errors);

std::string comparison_text(const TrainingLog& log, const LogComparison& comparison);
nlohmann::ordered_json comparison_json(const TrainingLog& log, const LogComparison& comparison);

}  // namespace tidemark
