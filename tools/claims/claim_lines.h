// Lines of a claim's table that several kinds show.
#pragma once

#include <cstdint>
#include <string>

#include <nlohmann/json_fwd.hpp>

#include "tools/claim.h"

namespace tidemark::claims {

ClaimLine equal_line(std::string what, std::int64_t expected, std::int64_t found);

ClaimLine percent_line(std::string what, nlohmann::ordered_json expected,
                       nlohmann::ordered_json found, double error, double tolerance);

// A bound on a mean that is not a prediction itself.
ClaimLine mean_line(std::string what, double mean, double tolerance);

}  // namespace tidemark::claims
