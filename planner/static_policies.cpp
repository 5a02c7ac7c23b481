#include "planner/static_policies.h"

#include <cstdint>
#include <functional>
#include <optional>
#include <sstream>

#include <nlohmann/json.hpp>

#include "models/input_error.h"
#include "models/job_reader.h"
#include "models/parse_number.h"

namespace tidemark {
namespace {

using Json = nlohmann::ordered_json;

Json modules_of(const std::string& text) {
  Json modules = Json::array();
  std::istringstream in(text);
  for (std::string module; std::getline(in, module, '+');) modules.push_back(module);
  return modules;
}

// A number where the text is one: the job's reader refuses anything else.
Json number_of(const std::string& text) {
  if (const auto whole = parse_number<std::int64_t>(text)) return *whole;
  const std::optional<double> number = parse_number<double>(text);
  return number ? Json(*number) : Json(text);
}

// A policy changes options of the job's file, so that its reader says what contradicts what.
struct Form {
  const char* name;
  const char* argument;  // empty: takes none
  const char* describes;
  void (*apply)(Json& options, const std::string& argument);
};

constexpr Form kForms[] = {
    {"as-given", "", "the job's own flags", [](Json&, const std::string&) {}},
    {"keep-everything", "", "nothing recomputed or offloaded", [](Json&, const std::string&) {}},
    {"full-recompute", "", "every layer a checkpoint",
     [](Json& options, const std::string&) {
       options["recompute_granularity"] = "full";
       options["recompute_method"] = "uniform";
       options["recompute_num_layers"] = 1;
     }},
    {"block-recompute", "N", "the first N layers of each chunk checkpoints",
     [](Json& options, const std::string& layers) {
       options["recompute_granularity"] = "full";
       options["recompute_method"] = "block";
       options["recompute_num_layers"] = number_of(layers);
     }},
    {"selective", "MODULES", "these modules recomputed",
     [](Json& options, const std::string& modules) {
       options["recompute_granularity"] = "selective";
       options["recompute_modules"] = modules_of(modules);
     }},
    {"offload", "MODULES", "these modules offloaded",
     [](Json& options, const std::string& modules) {
       options["offload_modules"] = modules_of(modules);
     }},
    {"ratio-offload", "A", "this share of what is kept offloaded",
     [](Json& options, const std::string& ratio) {
       options["kaimm_offload_activation_ratio"] = number_of(ratio);
     }},
    {"capacity", "F", "experts padded to this capacity factor",
     [](Json& options, const std::string& factor) {
       options["moe_expert_capacity_factor"] = number_of(factor);
       options["moe_pad_expert_input_to_capacity"] = true;
     }},
};

void clear(Json& options) {
  for (const char* key :
       {"recompute_granularity", "recompute_method", "recompute_num_layers", "recompute_modules",
        "offload_modules", "min_offloaded_tensor_size", "activation_offload_fraction",
        "kaimm_recompute_norm", "kaimm_recompute_mlp_activation_func",
        "kaimm_offload_activation_ratio"}) {
    options.erase(key);
  }
}

std::string form_text(const Form& form) {
  return std::string(form.name) + (*form.argument ? ":" + std::string(form.argument) : "");
}

}  // namespace

StaticPolicy static_policy(const Job& job, const std::string& text) {
  const std::size_t colon = text.find(':');
  const std::string name = text.substr(0, colon);
  for (const Form& form : kForms) {
    if (form.name != name) continue;
    const bool given = colon != std::string::npos && colon + 1 < text.size();
    if (given != (*form.argument != 0)) break;
    const std::string argument = given ? text.substr(colon + 1) : "";
    StaticPolicy policy{text, form.describes, job};
    if (name == "as-given") return policy;
    Json json = to_json(job);
    clear(json["options"]);
    form.apply(json["options"], argument);
    policy.job = job_from_json(json, "policy " + text);
    policy.job.source = job.source;
    policy.job.model_source = job.model_source;
    return policy;
  }
  std::string allowed;
  for (const std::string& form : static_policy_forms())
    allowed += (allowed.empty() ? "" : ", ") + form;
  throw InputError("", "policy", "\"" + text + "\"", "one of " + allowed);
}

std::vector<std::string> static_policy_forms() {
  std::vector<std::string> out;
  for (const Form& form : kForms) out.push_back(form_text(form));
  return out;
}

}  // namespace tidemark
