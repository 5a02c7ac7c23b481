// What a Megatron-LM training log says about its run: arguments, parameters, memory, iteration
// times, vocabulary and framework versions.
//
// Megatron prints memory in "MB" of 2^20 bytes. Versions are taken from what the log says; where it
// is silent, the arguments in its dump bound the Megatron core from below (`oldest_core`).
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "models/job.h"
#include "models/megatron_arguments.h"

namespace tidemark {

struct LoggedIteration {
  std::int64_t iteration = 0;
  double elapsed_ms = 0;
  std::optional<double> tflops_per_card;
};

// torch.cuda counters of one rank.
struct LoggedMemory {
  std::int64_t rank = 0;
  std::int64_t after_iterations = 0;
  double allocated_mib = 0;
  double max_allocated_mib = 0;
  double reserved_mib = 0;
  double max_reserved_mib = 0;
};

struct LoggedParameters {
  std::int64_t tensor_rank = 0;
  std::int64_t pipeline_rank = 0;
  std::int64_t parameters = 0;
};

struct TrainingLog {
  MegatronArguments arguments;
  std::vector<LoggedIteration> iterations;   // in the order of the log, as all others
  std::vector<LoggedMemory> memory;          // several lines a rank: after iterations 1, 2, ...
  std::vector<LoggedParameters> parameters;  // one line a rank, or one of each (tensor, pipeline)
  std::optional<std::int64_t> vocab_size;    // the tokenizer's, before padding
  std::optional<std::int64_t> padded_vocab_size;
  std::optional<Version> megatron_core;
  std::optional<Version> transformer_engine;
  std::optional<Version> nvidia_pytorch;  // the NGC container
  std::optional<Version> dtk;
  std::vector<std::string> evidence;  // for each version, what says so
  std::vector<std::string> missing;   // what was looked for and not found: "no memory lines"

  // With models/job.h's defaults where the log does not tell.
  FrameworkVersions versions() const;
};

// Cost: one pass; the file is streamed.
// Throws: InputError when it cannot be read, or its `arguments` dump is missing or cut off.
TrainingLog read_training_log(const std::filesystem::path& path);

// The Megatron core that first had the newest argument of the dump; empty if none tells.
struct CoreBound {
  Version version;
  std::string argument;
};
std::optional<CoreBound> oldest_core(const MegatronArguments& arguments);

}  // namespace tidemark
