#include "tools/job_input.h"

#include <utility>

#include "models/input_error.h"
#include "models/job_reader.h"
#include "models/json_reader.h"
#include "models/megatron_arguments.h"
#include "models/megatron_job.h"
#include "tidemark_version.h"
#include "tools/sha256.h"

namespace tidemark {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kLargest = std::int64_t{1} << 31;

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

void load_profile(JobInput& input) {
  input.profile = load_hardware_profile(input.job.hardware);
  const std::vector<fs::path> files = profile_files(input.job.hardware);
  input.files.insert(input.files.end(), files.begin(), files.end());
}

std::string required_hardware(const Arguments& arguments) {
  if (const auto name = arguments.text("hardware")) return *name;
  throw InputError("", "--hardware", "not given", "the name of a profile in hw_profiles/data");
}

Job read_megatron_job(const Arguments& arguments) {
  const LogContext given = read_log_context(arguments);
  MegatronContext context;
  context.hardware = given.hardware;
  context.cards = arguments.integer("cards", 1, kLargest);
  context.vocab_size = given.vocab_size;
  if (given.megatron_core || given.transformer_engine || given.dtk) {
    FrameworkVersions& versions = context.versions.emplace();
    versions.megatron_core = given.megatron_core.value_or(versions.megatron_core);
    versions.transformer_engine = given.transformer_engine.value_or(versions.transformer_engine);
    versions.dtk = given.dtk;
  }
  return job_from_megatron(read_megatron_arguments(*arguments.text("megatron-args")), context);
}

}  // namespace

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
    input.job = read_megatron_job(arguments);
  } else {
    for (const Flag& flag : job_flags()) {
      if (flag.name != "hardware" && arguments.has(flag.name)) {
        throw InputError("", "--" + flag.name, "given with a job file",
                         "it with --megatron-args only; " + files[0] + " says the same");
      }
    }
    input.files.emplace_back(files[0]);
    input.job = read_job(files[0]);
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
  return {required_hardware(arguments), arguments.integer("vocab-size", 1, kLargest),
          arguments.version("megatron-core"), arguments.version("transformer-engine"),
          arguments.version("dtk")};
}

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
  out.input.job = job_from_megatron(out.log.arguments, megatron);
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
