#include "tools/quantity_text.h"

#include <iomanip>
#include <sstream>

namespace tidemark {

std::string fixed_text(double value, int digits) {
  std::ostringstream out;
  out << std::fixed << std::setprecision(digits) << value;
  return out.str();
}

std::string grouped_text(std::int64_t value) {
  std::string text = std::to_string(value);
  const std::ptrdiff_t first = value < 0 ? 1 : 0;
  for (std::ptrdiff_t at = std::ssize(text) - 3; at > first; at -= 3) {
    text.insert(static_cast<std::size_t>(at), ",");
  }
  return text;
}

std::string gib_text(Bytes bytes) { return fixed_text(to_gib(bytes), 2) + " GiB"; }

std::string duration_text(SimDuration time) {
  const auto ns = static_cast<double>(time.count());
  if (ns >= 1e9) return fixed_text(ns * 1e-9, 3) + " s";
  if (ns >= 1e6) return fixed_text(ns * 1e-6, 1) + " ms";
  return fixed_text(ns * 1e-3, 0) + " us";
}

std::string share_text(double part, double whole) {
  return whole == 0 ? "-" : fixed_text(100 * part / whole, 1) + " %";
}

std::string signed_percent_text(double percent) {
  return (percent < 0 ? "" : "+") + fixed_text(percent, 2) + " %";
}

double percent_off(double value, double reference) { return 100 * (value / reference - 1); }

}  // namespace tidemark
