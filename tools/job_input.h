// From the command line to a job and the hardware it runs on.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "hw_profiles/hardware_profile.h"
#include "models/job.h"
#include "models/training_log.h"
#include "tools/command_line.h"

namespace tidemark {

struct JobInput {
  Job job;
  HardwareProfile profile;
  std::vector<std::filesystem::path> files;  // everything that was read
};

// JOB.json, or --megatron-args with what arguments cannot say.
std::vector<Flag> job_flags();
// Throws: InputError when the flags do not make a job, and whatever the readers throw.
JobInput read_job_input(const Arguments& arguments);

// What a log does not say about its run, or says wrongly: each goes before the log.
struct LogContext {
  std::string hardware;
  std::optional<std::int64_t> vocab_size;
  std::optional<Version> megatron_core;
  std::optional<Version> transformer_engine;
  std::optional<Version> dtk;
};

// A job from Megatron-LM arguments in any of their forms; `cards` where the launcher says how many.
Job read_megatron_job(const std::filesystem::path& arguments, const LogContext& context,
                      std::optional<std::int64_t> cards);

std::vector<Flag> log_context_flags();
LogContext read_log_context(const Arguments& arguments);

struct LogInput {
  TrainingLog log;
  JobInput input;
};
LogInput read_log_input(const std::filesystem::path& log, const LogContext& context);

// The first keys of every result: schema version, tool, inputs with their SHA-256, options.
nlohmann::ordered_json result_with_provenance(const std::vector<std::filesystem::path>& files,
                                              const Arguments& arguments);

}  // namespace tidemark
