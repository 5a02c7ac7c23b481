// A simulated run of many iterations as text and as JSON.
#pragma once

#include <cstdint>
#include <string>

#include <nlohmann/json_fwd.hpp>

#include "sim/training_run.h"
#include "tools/exit_code.h"
#include "tools/job_input.h"

namespace tidemark {

// Of the bf16 peak, over all the time that the run took.
double mfu_with_losses(const JobInput& input, const RunResult& run);
// Over the iterations that finished, each once.
double mfu_without_losses(const JobInput& input, const RunResult& run);

// Of those that finished; 0 where none did.
std::int64_t mean_iteration_ns(const RunResult& run);

// A sentence on requests that waited, behind others; empty where none did (CardMemory).
std::string retries_text(std::int64_t alloc_retries);

ExitCode exit_of(const RunResult& run);
std::string run_text(const JobInput& input, const RunResult& run);
// The keys `verdict`, `run`, `cards`, `stages` (with `reserved_bound_bytes` and whether that fits
// where there are bounds), `out_of_memory` and `iterations` (with `run_again` where a step was,
// `swapped_bytes` and `swap_ns` where an allocation was rescued, and `num_alloc_retries` where
// there were any); of the series at most kSeriesLimit iterations, evenly spaced, and every one that
// ran out of memory.
void add_run(nlohmann::ordered_json& result, const JobInput& input, const RunResult& run);
constexpr std::int64_t kSeriesLimit = 10'000;

}  // namespace tidemark
