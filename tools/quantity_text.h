// Numbers as people read them.
#pragma once

#include <cstdint>
#include <string>

#include "models/units.h"

namespace tidemark {

std::string fixed_text(double value, int digits);   // "51.60"
std::string grouped_text(std::int64_t value);       // "1,140,916,224"
std::string gib_text(Bytes bytes);                  // "48.32 GiB"
std::string duration_text(SimDuration time);        // "39.664 s", "12.3 ms", "45 us"
std::string share_text(double part, double whole);  // "12.5 %"; "-" of nothing
std::string signed_percent_text(double percent);    // "+1.73 %"

// 100 * (value / reference - 1). Requires: reference != 0.
double percent_off(double value, double reference);

}  // namespace tidemark
