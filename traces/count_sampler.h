// Rows of each expert when `rows` rows choose experts at random: the multinomial distribution, and
// its overdispersed form, approximated at the cost of one hashed normal deviate a count.
//
//   Each count is first drawn as if the experts were independent: Poisson with mean m = rows *
//   share, or, with a relative variance v of the mean, gamma-Poisson. Cornish and Fisher's
//   expansion turns a normal deviate z into one with that distribution's first four cumulants (k2 =
//   m + v m^2, k3 = m + 3 v m^2 + 2 v^2 m^3, ...). Poisson counts given their total are
//   multinomial; scaling them to the total has the same covariances and, to first order, the same
//   third moments.
//
//   Totals are exact: the scaled counts are rounded as a running sum, so that every count is within
//   one row of its value and the remainders fall where the sum passes a half. No count is negative,
//   none is above `tokens` (a token goes to an expert at most once): what is above goes to the
//   other experts in proportion to their counts.
//
//   Error: the total variation between the distributions of max/mean over 256 experts, here and
//   exactly multinomial, is below 1 % from 32 rows an expert on
//   (tests/unit/count_sampler_test.cpp). What top-k without replacement takes from the variance (a
//   factor 1 - topk/experts) is left out.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "traces/counter_hash.h"

namespace tidemark {

class CountSampler {
 public:
  // `shares` of the experts, which add up to 1. Requires: `relative_variance` >= 0.
  void set_shares(std::span<const double> shares, std::int64_t rows, double relative_variance);

  // Requires: counts for each share; rows <= tokens * number of experts.
  void draw(HashStream stream, std::int64_t tokens, std::span<std::int64_t> counts);

 private:
  struct Cubic {
    double c0, c1, c2, c3;  // of z
  };
  std::int64_t rows_ = 0;
  std::vector<Cubic> cubics_;   // [expert]
  std::vector<double> values_;  // [expert], before scaling
};

// Multiplies counts so that they add up to `total` (from equal ones where all are zero), with
// remainders where the running sum passes a whole number. Requires: sums below 2^31.
void rescale(std::span<std::int64_t> counts, std::int64_t total);

// Cuts counts to `most` and gives what is cut to the others in proportion to their counts.
// Requires: sum <= most * number of counts.
void cap_counts(std::span<std::int64_t> counts, std::int64_t most);

}  // namespace tidemark
