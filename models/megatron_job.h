// From Megatron-LM arguments to a job: Megatron's defaults and derivations (validate_args in
// megatron/training/arguments.py, core_transformer_config_from_args), and a refusal, by name, of
// every feature that a job cannot express.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "models/job.h"
#include "models/megatron_arguments.h"

namespace tidemark {

// What arguments cannot say.
struct MegatronContext {
  std::string name;                               // of the job; the arguments' file when empty
  std::string hardware;                           // profile name
  std::optional<std::int64_t> cards;              // for scripts that leave it to the launcher
  std::optional<std::int64_t> vocab_size;         // the tokenizer's, before padding
  std::optional<std::int64_t> padded_vocab_size;  // as a log or module tree shows it; goes first
  std::optional<FrameworkVersions> versions;
};

// Throws: InputError with every argument that is missing, malformed, impossible or not modelled.
Job job_from_megatron(const MegatronArguments& arguments, const MegatronContext& context);

}  // namespace tidemark
