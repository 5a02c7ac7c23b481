// The kinds of claims: a function each, in a file by subject, listed in claim_kinds.inc. It reads
// the claim's `tolerance` and `cases` and returns the check.
#pragma once

#include <filesystem>

#include "models/json_reader.h"
#include "tools/claim.h"

namespace tidemark::claims {

namespace fs = std::filesystem;

#define TIDEMARK_CLAIM_KIND(name) ClaimCheck name(JsonReader& claim, const fs::path& root);
#include "tools/claims/claim_kinds.inc"
#undef TIDEMARK_CLAIM_KIND

}  // namespace tidemark::claims
