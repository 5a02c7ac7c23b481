#include "models/model_file.h"

#include <algorithm>
#include <utility>

#include <nlohmann/json.hpp>

#include "models/hf_config.h"
#include "models/input_error.h"
#include "models/json_reader.h"
#include "models/model_reader.h"

namespace tidemark {
namespace {

namespace fs = std::filesystem;

constexpr Range<std::int64_t> kParameters{1, std::int64_t{1} << 50};

fs::path zoo_folder() { return fs::path(TIDEMARK_SOURCE_DIR) / "models" / "zoo"; }

PublishedParameters read_published(JsonReader& in) {
  PublishedParameters out;
  out.total = in.integer("total", kParameters);
  out.total_unit = in.optional_integer("total_unit", kParameters).value_or(1);
  out.activated = in.optional_integer("activated", kParameters);
  out.activated_unit = in.optional_integer("activated_unit", kParameters).value_or(1);
  out.source = in.string("source");
  in.optional_object("not_modelled", [&](JsonReader& left_out) {
    out.not_modelled = left_out.integer("parameters", kParameters);
    out.not_modelled_what = left_out.string("what");
  });
  return out;
}

ModelFile read_spec_file(const nlohmann::json& json, const std::string& file) {
  std::vector<Violation> violations;
  JsonReader in(json, file, "", violations);
  ModelFile out;
  in.integer("schema_version", {1, 1});
  in.string("source");
  in.string("licence");
  if (const auto stand_in = in.optional_string("stand_in")) {
    out.warnings.push_back("the model is a stand-in: " + *stand_in);
  }
  in.optional_object("published_parameters",
                     [&](JsonReader& published) { out.published = read_published(published); });
  read_model(in, out.model);
  in.finish();
  throw_if_any(violations);
  throw_if_any(validate(out.model, file, "/"));
  return out;
}

}  // namespace

ModelFile read_model_file(const fs::path& path) {
  const nlohmann::json json = load_json(path);
  if (!is_hf_config(json)) return read_spec_file(json, path.string());
  HfConfig config = model_from_hf_config(json, path.string());
  return {std::move(config.model), std::nullopt, std::move(config.warnings)};
}

std::optional<fs::path> find_model_file(const std::string& path_or_name, const fs::path& folder) {
  std::error_code ignored;
  if (fs::is_regular_file(folder / path_or_name, ignored)) return folder / path_or_name;
  const std::vector<std::string> zoo = zoo_models();
  if (!std::binary_search(zoo.begin(), zoo.end(), path_or_name)) return std::nullopt;
  return zoo_file(path_or_name);
}

std::vector<std::string> zoo_models() {
  std::vector<std::string> names;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(zoo_folder(), ignored)) {
    if (entry.path().extension() == ".json") names.push_back(entry.path().stem().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

fs::path zoo_file(const std::string& name) { return zoo_folder() / (name + ".json"); }

}  // namespace tidemark
