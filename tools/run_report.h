// A simulated run of many iterations as text and as JSON.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "planner/rows_bound.h"
#include "sim/training_run.h"
#include "tools/exit_code.h"
#include "tools/job_input.h"

namespace tidemark {

// Of the bf16 peak, over all the time that the run took.
double mfu_with_losses(const JobInput& input, const RunResult& run);
// Over the iterations that finished, each once.
double mfu_without_losses(const JobInput& input, const RunResult& run);

ExitCode exit_of(const RunResult& run);
std::string run_text(const JobInput& input, const RunResult& run);
// The keys `verdict`, `run`, `cards`, `out_of_memory` and `iterations`; of the series at most
// kSeriesLimit iterations, evenly spaced, and every one that ran out of memory.
void add_run(nlohmann::ordered_json& result, const JobInput& input, const RunResult& run);
constexpr std::int64_t kSeriesLimit = 10'000;

std::vector<Flag> run_flags();

struct RunOptions {
  RunSpec spec;
  std::uint64_t seed = 1;
  double risk = kDefaultRisk;
  std::string memory_csv;  // file for every card's peak of every iteration; empty: none
};
RunOptions run_options(const Job& job, const Arguments& arguments);

// A job under a policy: one of planner/static_policies.h, "megatron-best" (static_search.h),
// "adapipe" or "adaptive-recompute" (recompute_baselines.h), "bagualu2-offload"
// (bagualu2_policy.h), or "adaptive" (adaptive_policy.h).
struct PolicyRun {
  std::string policy;
  JobInput input;
  RunResult run;
  std::string notes;  // what the policy was prepared for
};
std::string policies_help();

// Runs the job under the routing it names, with progress on stderr where that is a terminal. An
// interrupt (SIGINT) ends it after the iteration at hand.
PolicyRun run_policy(const JobInput& input, const std::string& policy, const RunOptions& options);

}  // namespace tidemark
