#include "tools/claims/claim_lines.h"

#include <cmath>
#include <optional>
#include <utility>

#include <nlohmann/json.hpp>

#include "tools/quantity_text.h"

namespace tidemark::claims {

ClaimLine equal_line(std::string what, std::int64_t expected, std::int64_t found) {
  return {std::move(what), expected, found, std::nullopt, expected == found};
}

ClaimLine percent_line(std::string what, nlohmann::ordered_json expected,
                       nlohmann::ordered_json found, double error, double tolerance) {
  return {std::move(what), std::move(expected), std::move(found), error,
          std::abs(error) <= tolerance};
}

ClaimLine mean_line(std::string what, double mean, double tolerance) {
  return {std::move(what), "<= " + fixed_text(tolerance, 2) + " %", "", mean, mean <= tolerance};
}

}  // namespace tidemark::claims
