// A job's run under a policy that has a name (tools/named_policy.h).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "planner/decision_log.h"
#include "planner/rows_bound.h"
#include "sim/training_run.h"
#include "tools/command_line.h"
#include "tools/job_input.h"
#include "tools/stream_overlap.h"

namespace tidemark {

std::vector<Flag> run_flags();

struct RunOptions {
  RunSpec spec;
  std::uint64_t seed = 1;
  double risk = kDefaultRisk;
  std::string memory_csv;  // file for every card's peak of every iteration; empty: none
  bool measures_streams = false;
};
RunOptions run_options(const Job& job, const Arguments& arguments);

struct PolicyRun {
  std::string policy;
  JobInput input;
  RunResult run;
  std::vector<std::string> notes;        // what the policy was prepared for, and what it came to
  std::optional<DecisionLog> decisions;  // where it decides about single operators
  StreamTimes streams;                   // where asked for: of the first iteration, of one unit
};
// A line each, after the policy's name.
std::string notes_text(const PolicyRun& run);

// `log` sees what every iteration decided. With progress on stderr where that is a terminal. An
// interrupt (SIGINT) ends the run after the iteration at hand.
RunResult run_with_progress(TrainingRun& run, const RunSpec& spec, const std::string& label,
                            const std::string& memory_csv = "", DecisionLog* log = nullptr);
// Runs the job under the routing it names.
PolicyRun run_policy(const JobInput& input, const std::string& policy, const RunOptions& options);

}  // namespace tidemark
