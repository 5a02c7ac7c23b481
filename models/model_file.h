// A model in a file of its own: a model spec file, or the config.json of a Hugging Face checkpoint
// (models/hf_config.h). The model zoo is the folder models/zoo of spec files, found by their names.
//
// A spec file has the keys of a job's `model` object (models/model_reader.h) and beside them
//
//   {"schema_version": 1, "source": "where the numbers are from", "licence": "of the source",
//    "stand_in": "what it is taken for, and why", "published_parameters": {...}, ...}
//
// of which the last two are optional.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "models/model_spec.h"

namespace tidemark {

// What others say the model has, for comparison with ours (models/parameters.h). A unit is one of
// the last published digit: 37 billion with unit 10^9 may be cut or rounded.
struct PublishedParameters {
  std::int64_t total = 0;
  std::int64_t total_unit = 1;
  std::optional<std::int64_t> activated;  // that one token passes through
  std::int64_t activated_unit = 1;
  std::string source;
  std::int64_t not_modelled = 0;  // of the total: what a ModelSpec has no place for
  std::string not_modelled_what;
};

struct ModelFile {
  ModelSpec model;
  std::optional<PublishedParameters> published;
  std::vector<std::string> warnings;
};

// Throws: InputError with every violation of the file.
ModelFile read_model_file(const std::filesystem::path& path);

// A file's path, relative to `folder`, or a name in the zoo. Returns: empty when it is neither.
std::optional<std::filesystem::path> find_model_file(const std::string& path_or_name,
                                                     const std::filesystem::path& folder);

// Names in the zoo, sorted, and the file of one of them.
std::vector<std::string> zoo_models();
std::filesystem::path zoo_file(const std::string& name);

}  // namespace tidemark
