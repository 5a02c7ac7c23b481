// What kinds of claims read from a claim.json in the same way, and how a case is simulated.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "models/json_reader.h"
#include "sim/simulation.h"
#include "tools/job_input.h"
#include "tools/log_comparison.h"

namespace tidemark::claims {

namespace fs = std::filesystem;

inline constexpr Range<double> kPercent{0, 100};
inline constexpr Range<double> kCardGib{0, 1 << 10};
inline constexpr Range<std::int64_t> kCount{1, std::int64_t{1} << 20};

struct Tolerance {
  double mean_percent = 0;
  double max_percent = 0;
};

// {"mean_percent", "max_percent"}
Tolerance read_tolerance(JsonReader& claim);

// {"absolute": 0}
void require_equality(JsonReader& claim);

template <class Case, class Read>
std::vector<Case> read_cases(JsonReader& claim, Read read) {
  std::vector<Case> cases;
  claim.objects("cases", [&](JsonReader& in) { cases.push_back(read(in)); });
  return cases;
}

// Variants of one job: the file in the claim's "job", and a case's "patch" to it (JSON merge
// patches, RFC 7386).
class JobVariants {
 public:
  JobVariants(JsonReader& claim, const fs::path& root);
  Job read(JsonReader& in) const;

 private:
  fs::path file_;
  nlohmann::json base_;
};

// A training log and what it does not say.
struct LogCase {
  fs::path log;
  LogContext context;
  std::string name() const { return log.stem().string(); }
};

std::vector<LogCase> read_log_cases(JsonReader& claim, const fs::path& root);
LogCase read_log_case(JsonReader& in, const fs::path& root);

struct SimulatedLog {
  LogInput input;
  Simulation simulation;
  LogComparison comparison;
};

// Under balanced routing.
SimulatedLog simulate_log(const LogCase& c);

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

ArgumentsCase read_arguments_case(JsonReader& in, const fs::path& root);

// On the job's hardware, under balanced routing.
Simulation simulate_balanced(const Job& job);

}  // namespace tidemark::claims
