#include "tools/claim.h"

#include <algorithm>
#include <cstdlib>

#include <nlohmann/json.hpp>

#include "models/input_error.h"
#include "tools/quantity_text.h"
#include "tools/text_table.h"

namespace tidemark {
namespace {

namespace fs = std::filesystem;
using Align = TextTable::Align;

constexpr const char* kClaimFile = "claim.json";

std::string value_text(const nlohmann::ordered_json& value) {
  if (value.is_number_integer()) return grouped_text(value.get<std::int64_t>());
  if (value.is_number()) return fixed_text(value.get<double>(), 2);
  return value.is_string() ? value.get<std::string>() : "";
}

}  // namespace

bool ClaimResult::pass() const {
  return std::all_of(lines.begin(), lines.end(), [](const ClaimLine& line) { return line.pass; });
}

fs::path validation_folder() {
  const char* folder = std::getenv("TIDEMARK_VALIDATION_DIR");
  return folder != nullptr ? fs::path(folder) : fs::path(TIDEMARK_SOURCE_DIR) / "validation";
}

std::vector<std::string> claim_names() {
  const fs::path root = validation_folder();
  std::vector<std::string> names;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(root, error)) {
    if (fs::is_regular_file(entry.path() / kClaimFile)) {
      names.push_back(entry.path().filename().string());
    }
  }
  if (names.empty()) {
    throw InputError(root.string(), "", "no claims", "folders with a claim.json");
  }
  std::sort(names.begin(), names.end());
  return names;
}

ClaimResult check_claim(const std::string& name) {
  const std::vector<std::string> known = claim_names();
  if (std::find(known.begin(), known.end(), name) == known.end()) {
    std::string all;
    for (const std::string& other : known) all += (all.empty() ? "" : ", ") + other;
    throw InputError("", "claim", "\"" + name + "\"", "one of " + all);
  }
  ClaimResult result;
  result.name = name;
  result.file = validation_folder() / name / kClaimFile;
  const nlohmann::json json = load_json(result.file);
  std::vector<Violation> violations;
  JsonReader in(json, result.file.string(), "", violations);
  in.integer("schema_version", {1, 1});
  result.claim = in.string("claim");
  result.source = in.string("source");
  result.reason = in.string("reason");
  std::vector<std::string> kinds;
  for (const auto& [kind, read] : claim_kinds()) kinds.push_back(kind);
  const std::string kind = in.choice("kind", kinds);
  throw_if_any(violations);
  const ClaimCheck check = claim_kinds().at(kind)(in, validation_folder());
  in.finish();
  throw_if_any(violations);
  result.lines = check();
  return result;
}

std::string claim_text(const ClaimResult& result) {
  TextTable table({{"", Align::kLeft}, {"expected"}, {"predicted"}, {"error"}, {"", Align::kLeft}});
  for (const ClaimLine& line : result.lines) {
    table.add_row({line.what, value_text(line.expected), value_text(line.found),
                   line.error_percent ? fixed_text(*line.error_percent, 3) + " %" : "",
                   line.pass ? "pass" : "FAIL"});
  }
  return std::string(result.pass() ? "PASS" : "FAIL") + "  " + result.name + ": " + result.claim +
         "\n\n" + table.text();
}

nlohmann::ordered_json claim_json(const ClaimResult& result) {
  nlohmann::ordered_json json;
  json["name"] = result.name;
  json["pass"] = result.pass();
  json["claim"] = result.claim;
  json["source"] = result.source;
  json["reason"] = result.reason;
  json["lines"] = nlohmann::ordered_json::array();
  for (const ClaimLine& line : result.lines) {
    nlohmann::ordered_json item;
    item["what"] = line.what;
    item["expected"] = line.expected;
    item["predicted"] = line.found;
    if (line.error_percent) item["error_percent"] = *line.error_percent;
    item["pass"] = line.pass;
    json["lines"].push_back(std::move(item));
  }
  return json;
}

}  // namespace tidemark
