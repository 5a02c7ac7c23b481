// Claims of validation/: what the simulator says that somebody else measured or derived, with the
// tolerance it must stay within. A claim is a folder with a claim.json:
//
//   {"schema_version": 1, "claim": "...", "source": "...", "kind": "memory",
//    "tolerance": {...}, "reason": "why this tolerance", "cases": [...]}
//
// `tolerance` and `cases` are the kind's; the kinds are listed in claims/claim_kinds.inc. Paths are
// relative to validation/.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "models/json_reader.h"

namespace tidemark {

// A line of a claim's table.
struct ClaimLine {
  std::string what;
  nlohmann::ordered_json expected;  // a number, or text
  nlohmann::ordered_json found;
  std::optional<double> error_percent;
  bool pass = true;
};

// Recomputes a claim, once its file is known to be good.
using ClaimCheck = std::function<std::vector<ClaimLine>()>;

// Reads the kind's `tolerance` and `cases`. `root`: the folder that paths are relative to.
using ClaimKind = ClaimCheck (*)(JsonReader& claim, const std::filesystem::path& root);

// By the name in "kind".
const std::map<std::string, ClaimKind>& claim_kinds();

struct ClaimResult {
  std::string name;
  std::filesystem::path file;
  std::string claim;
  std::string source;
  std::string reason;
  std::vector<ClaimLine> lines;

  bool pass() const;
};

// $TIDEMARK_VALIDATION_DIR, or validation/ of this source tree.
std::filesystem::path validation_folder();

// Order: by name. Throws: InputError when the folder has none.
std::vector<std::string> claim_names();

// Throws: InputError with every violation of its file, or the known names.
ClaimResult check_claim(const std::string& name);

std::string claim_text(const ClaimResult& result);
nlohmann::ordered_json claim_json(const ClaimResult& result);

}  // namespace tidemark
