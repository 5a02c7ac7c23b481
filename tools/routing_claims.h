// Kinds of claims on routing: see tools/claim.h.
#pragma once

#include "tools/claim.h"

namespace tidemark {

// Printed max/mean over ranks of recorded counts.
ClaimCheck recorded_ratios(JsonReader& claim, const std::filesystem::path& root);

// Shares of iterations of a workload, and its largest ratio.
ClaimCheck workload_ratios(JsonReader& claim, const std::filesystem::path& root);

}  // namespace tidemark
