// What a cost query returns: a duration and how far to trust it.
#pragma once

#include <cstdint>

namespace tidemark {

constexpr double kMicro = 1e-6;

inline double as_double(std::int64_t value) { return static_cast<double>(value); }

enum class CostKind {
  kMeasured,      // this very shape was measured
  kInterpolated,  // from measurements of other shapes, by a stated rule
  kRoofline,      // a count of bytes over a measured or datasheet bandwidth
  kAssumed,       // over a rate that nobody measured
};

struct Cost {
  double seconds = 0;
  CostKind kind = CostKind::kAssumed;
};

}  // namespace tidemark
