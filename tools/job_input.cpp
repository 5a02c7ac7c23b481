#include "tools/job_input.h"

#include <utility>

#include <nlohmann/json.hpp>

#include "models/input_error.h"
#include "models/job_reader.h"
#include "models/json_reader.h"
#include "models/megatron_arguments.h"
#include "models/megatron_job.h"
#include "models/parameters.h"
#include "tidemark_version.h"
#include "tools/sha256.h"

namespace tidemark {
namespace {

namespace fs = std::filesystem;

// A profile and the tables that it names.
std::vector<fs::path> profile_files(const std::string& name_or_path) {
  const fs::path path = hardware_profile_path(name_or_path);
  std::vector<fs::path> files{path};
  const nlohmann::json profile = load_json(path);
  for (const char* section : {"operators", "collectives"}) {
    const auto it = profile.find(section);
    if (it == profile.end() || it->is_null()) continue;
    files.push_back(path.parent_path() / it->at("file").get<std::string>());
  }
  return files;
}

// Counts of received tokens are those of balanced routing; say so where the run's may differ.
void warn_of_routing(Job& job) {
  const TrainingOptions& o = job.options;
  if (!job.routing.empty() || job.model.num_moe_layers() == 0 ||
      o.moe_pad_expert_input_to_capacity || o.moe_router_force_load_balancing) {
    return;
  }
  job.warnings.push_back("routing is simulated as balanced; in this run the router decides");
}

void load_profile(JobInput& input) {
  warn_of_routing(input.job);
  input.profile = load_hardware_profile(input.job.hardware);
  const std::vector<fs::path> files = profile_files(input.job.hardware);
  input.files.insert(input.files.end(), files.begin(), files.end());
}

std::string required_hardware(const Arguments& arguments) {
  if (const auto name = arguments.text("hardware")) return *name;
  throw InputError("", "--hardware", "not given", "the name of a profile in hw_profiles/data");
}

}  // namespace

Job read_megatron_job(const fs::path& arguments, const LogContext& context,
                      std::optional<std::int64_t> cards) {
  MegatronContext megatron;
  megatron.hardware = context.hardware;
  megatron.cards = cards;
  megatron.vocab_size = context.vocab_size;
  if (context.megatron_core || context.transformer_engine || context.dtk) {
    FrameworkVersions& versions = megatron.versions.emplace();
    versions.megatron_core = context.megatron_core.value_or(versions.megatron_core);
    versions.transformer_engine = context.transformer_engine.value_or(versions.transformer_engine);
    versions.dtk = context.dtk;
  }
  return job_from_megatron(read_megatron_arguments(arguments, cards), megatron);
}

std::vector<Flag> job_flags() {
  std::vector<Flag> flags = {
      {"megatron-args", "FILE",
       "take the job from Megatron-LM arguments instead: a launch script, an argument list, a JSON "
       "object, or a training log"},
      {"cards", "N", "cards of the job, where the arguments leave it to the launcher"}};
  const std::vector<Flag> context = log_context_flags();
  flags.insert(flags.end(), context.begin(), context.end());
  return flags;
}

JobInput read_job_input(const Arguments& arguments) {
  const std::vector<std::string>& files = arguments.positionals();
  const bool from_arguments = arguments.has("megatron-args");
  if (files.size() + (from_arguments ? 1 : 0) != 1) {
    throw InputError("", "JOB.json",
                     files.size() > 1 ? files[1]
                     : from_arguments ? files[0]
                                      : "not given",
                     "one job file, or --megatron-args FILE in its place");
  }
  JobInput input;
  if (from_arguments) {
    input.files.emplace_back(*arguments.text("megatron-args"));
    input.job = read_megatron_job(input.files[0], read_log_context(arguments),
                                  arguments.integer("cards", 1, kLargestCount));
  } else {
    for (const Flag& flag : job_flags()) {
      if (flag.name != "hardware" && arguments.has(flag.name)) {
        throw InputError("", "--" + flag.name, "given with a job file",
                         "it with --megatron-args only; " + files[0] + " says the same");
      }
    }
    input.files.emplace_back(files[0]);
    input.job = read_job(files[0]);
    if (!input.job.model_source.empty()) input.files.emplace_back(input.job.model_source);
    input.job.hardware = arguments.text("hardware").value_or(input.job.hardware);
  }
  load_profile(input);
  return input;
}

std::vector<Flag> log_context_flags() {
  return {{"hardware", "NAME", "hardware profile: a name in hw_profiles/data, or a file"},
          {"vocab-size", "N", "the tokenizer's vocabulary, before padding"},
          {"megatron-core", "X.Y", "version of Megatron core"},
          {"transformer-engine", "X.Y", "version of Transformer Engine"},
          {"dtk", "X.Y", "version of Hygon's DTK"}};
}

LogContext read_log_context(const Arguments& arguments) {
  return {required_hardware(arguments), arguments.integer("vocab-size", 1, kLargestCount),
          arguments.version("megatron-core"), arguments.version("transformer-engine"),
          arguments.version("dtk")};
}

namespace {

// The padded vocabulary that makes the first stage's parameters equal to what a log printed; they
// grow linearly with it. Empty when no whole number does.
std::optional<std::int64_t> vocabulary_of(const TrainingLog& log, MegatronContext megatron) {
  const auto printed = std::find_if(
      log.parameters.begin(), log.parameters.end(),
      [](const LoggedParameters& p) { return p.tensor_rank == 0 && p.pipeline_rank == 0; });
  if (printed == log.parameters.end()) return std::nullopt;
  const auto parameters = [&](std::int64_t rows, std::int64_t tensor) {
    megatron.padded_vocab_size = rows * tensor;
    const Job job = job_from_megatron(log.arguments, megatron);
    return std::pair(count_parameters(stage_weights(job, 0)).total(), job.layout.tensor);
  };
  const std::int64_t tensor = parameters(1, 1 << 10).second;
  const std::int64_t one_row = parameters(1, tensor).first;
  const std::int64_t each = parameters(2, tensor).first - one_row;
  const std::int64_t rest = printed->parameters - one_row;
  if (rest < 0 || rest % each != 0) return std::nullopt;
  return (1 + rest / each) * tensor;
}

}  // namespace

LogInput read_log_input(const fs::path& path, const LogContext& context) {
  LogInput out{read_training_log(path), {}};
  MegatronContext megatron;
  megatron.hardware = context.hardware;
  megatron.vocab_size = context.vocab_size ? context.vocab_size : out.log.vocab_size;
  if (!context.vocab_size) megatron.padded_vocab_size = out.log.padded_vocab_size;
  FrameworkVersions& versions = megatron.versions.emplace(out.log.versions());
  versions.megatron_core = context.megatron_core.value_or(versions.megatron_core);
  versions.transformer_engine = context.transformer_engine.value_or(versions.transformer_engine);
  if (context.dtk) versions.dtk = context.dtk;
  std::string deduced;
  if (!megatron.vocab_size && !megatron.padded_vocab_size) {
    megatron.padded_vocab_size = vocabulary_of(out.log, megatron);
    if (megatron.padded_vocab_size) {
      deduced = "padded vocabulary " + std::to_string(*megatron.padded_vocab_size) +
                " deduced from the printed parameters of the first stage";
    }
  }
  out.input.job = job_from_megatron(out.log.arguments, megatron);
  if (!deduced.empty()) out.input.job.warnings.push_back(deduced);
  out.input.files.push_back(path);
  load_profile(out.input);
  return out;
}

nlohmann::ordered_json result_with_provenance(const std::vector<fs::path>& files,
                                              const Arguments& arguments) {
  nlohmann::ordered_json result;
  result["schema_version"] = 1;
  nlohmann::ordered_json& provenance = result["provenance"];
  provenance["tool"] = std::string("tidemark ") + TIDEMARK_VERSION;
  provenance["git_hash"] = TIDEMARK_GIT_HASH;
  provenance["inputs"] = nlohmann::ordered_json::array();
  for (const fs::path& file : files) {
    provenance["inputs"].push_back({{"path", file.string()}, {"sha256", sha256_of_file(file)}});
  }
  provenance["options"] = arguments.to_json();
  return result;
}

}  // namespace tidemark
