#include "traces/normal_table.h"

#include <cstddef>

namespace tidemark {
namespace {

// The normal density: e^(-x^2/2) as the 64th power of a Taylor series, since libraries' exp differ
// in the last bit.
double density(double x) {
  const double y = -x * x / 2 / 64;
  double term = 1;
  double sum = 1;
  for (int k = 1; k < 16; ++k) sum += term *= y / k;
  for (int k = 0; k < 6; ++k) sum *= sum;
  constexpr double kInverseSqrtTwoPi = 0.3989422804014326779;
  return kInverseSqrtTwoPi * sum;
}

// Probability above x >= 0. Source: Marsaglia, Evaluating the Normal Distribution, 2004.
double tail_probability(double x) {
  double term = x;
  double sum = x;
  for (int k = 1; k < 200; ++k) sum += term *= x * x / (2 * k + 1);
  return 0.5 - density(x) * sum;
}

}  // namespace

const NormalTable& NormalTable::get() {
  static const NormalTable table;
  return table;
}

NormalTable::NormalTable() {
  constexpr int kCells = 1 << kCellBits;
  double z = 6.3;
  double left = 0;  // the previous knot and its quantile
  double left_z = 0;
  for (int knot = 0; knot <= kOctaves * kCells; ++knot) {
    const double tail = static_cast<double>(std::uint64_t{1} << (knot / kCells)) *
                        (1 + static_cast<double>(knot % kCells) / kCells);
    for (int step = 0; step < 12; ++step) {
      z += (tail_probability(z) - tail * 0x1p-33) / density(z);
    }
    if (knot > 0) {
      Cell& cell = cells_[static_cast<std::size_t>(knot - 1)];
      cell.slope = (z - left_z) / (tail - left);
      cell.at_zero = z - cell.slope * tail;
    }
    left = tail;
    left_z = z;
  }
}

}  // namespace tidemark
