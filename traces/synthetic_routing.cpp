#include "traces/synthetic_routing.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>
#include <vector>

#include "traces/count_sampler.h"
#include "traces/expert_loads.h"

namespace tidemark {
namespace {

// Streams of the generator. Values are part of what a seed means: never renumber.
enum class Purpose : std::int64_t { kLoads = 1, kRows = 2, kHotExpert = 3, kBurst = 4 };

HashStream stream_of(std::uint64_t seed, Purpose purpose) {
  return HashStream(mix_bits(seed)).inner(static_cast<std::int64_t>(purpose));
}

// Ranks of bagualu2's calm iterations deviate so much: the largest of 10^5 to 10^7 of them, those
// of an iteration of a large job, is then 1.13 to 1.16.
constexpr double kCalmDeviation = 0.03;
constexpr std::int64_t kCalmDrift = 200;  // iterations

// An iteration's burst.
struct Burst {
  double ratio = 0;
  std::int64_t first_layer = 0;
  std::int64_t layers = 0;
  std::int64_t first_microbatch = 0;
  std::int64_t microbatches = 0;

  bool hits(std::int64_t layer, std::int64_t microbatch) const {
    return layer >= first_layer && layer < first_layer + layers && microbatch >= first_microbatch &&
           microbatch < first_microbatch + microbatches;
  }
};

std::int64_t sum_of(std::span<const std::int64_t> counts) {
  return std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
}

// Sets a rank's rows; the other ranks share what remains as before.
void set_rank(std::span<std::int64_t> counts, std::size_t rank, std::size_t size,
              std::int64_t rows) {
  if (size == counts.size()) return;
  const std::int64_t total = sum_of(counts);
  const auto before = counts.first(rank * size);
  const auto after = counts.subspan((rank + 1) * size);
  const std::int64_t before_rows = sum_of(before);
  const std::int64_t other_rows = before_rows + sum_of(after);
  rescale(counts.subspan(rank * size, size), rows);
  // Where the others have no rows, by their number.
  const std::int64_t first = other_rows > 0 ? (total - rows) * before_rows / other_rows
                                            : (total - rows) * std::ssize(before) /
                                                  (std::ssize(before) + std::ssize(after));
  rescale(before, first);
  rescale(after, total - rows - first);
}

// Cuts ranks to `most` rows and gives what is cut to the others, in proportion to their room.
void bound_ranks(std::span<std::int64_t> counts, std::size_t size, std::int64_t most) {
  std::int64_t excess = 0;
  for (std::size_t begin = 0; begin < counts.size(); begin += size) {
    std::int64_t rows = 0;
    for (std::size_t e = begin; e < begin + size; ++e) rows += counts[e];
    excess += std::max<std::int64_t>(0, rows - most);
  }
  if (excess == 0) return;
  const std::int64_t ranks = std::ssize(counts) / static_cast<std::int64_t>(size);
  const std::int64_t room = ranks * most - sum_of(counts) + excess;
  std::int64_t running = 0;
  for (std::size_t begin = 0; begin < counts.size(); begin += size) {
    const auto rank = counts.subspan(begin, size);
    const std::int64_t rows = sum_of(rank);
    const std::int64_t before = running * excess / room;
    running += std::max<std::int64_t>(0, most - rows);
    rescale(rank, std::min(rows, most) + running * excess / room - before);
  }
}

class SyntheticRouting : public RoutingSource {
 public:
  SyntheticRouting(const RoutingShape& shape, const Workload& workload, std::uint64_t seed)
      : shape_(shape), workload_(workload), seed_(seed) {
    if (workload.kind == WorkloadKind::kMultinomial) return;
    double alpha = workload.alpha;
    if (workload.kind == WorkloadKind::kBagualu2) {
      // Of the mean over a rank's experts.
      alpha = static_cast<double>(shape.ranks) /
              (static_cast<double>(shape.experts) * kCalmDeviation * kCalmDeviation);
      workload_.drift_iterations = kCalmDrift;
    }
    loads_.emplace(shape, workload_, alpha, stream_of(seed, Purpose::kLoads));
  }

  void counts(std::int64_t iteration, std::int64_t unit, RoutingCounts& out) const override {
    resize(out, shape_);
    std::vector<double> shares;
    CountSampler sampler;
    const std::optional<Burst> burst = burst_of(iteration);
    for (std::int64_t layer = 0; layer < shape_.moe_layers; ++layer) {
      set_shares(iteration, layer, shares);
      sampler.set_shares(shares, shape_.rows(), loads_ ? loads_->relative_variance() : 0);
      const HashStream stream =
          stream_of(seed_, Purpose::kRows).inner(iteration).inner(unit).inner(layer);
      for (std::int64_t mb = 0; mb < shape_.microbatches; ++mb) {
        const auto row = out.row(mb, layer);
        sampler.draw(stream.inner(mb), shape_.tokens, row);
        if (bursts()) bound(row);
        if (burst && burst->hits(layer, mb)) raise(row, iteration, layer, burst->ratio);
      }
    }
  }

 private:
  bool bursts() const {
    return workload_.kind == WorkloadKind::kBurst || workload_.kind == WorkloadKind::kBagualu2;
  }

  void set_shares(std::int64_t iteration, std::int64_t layer, std::vector<double>& shares) const {
    const auto experts = static_cast<std::size_t>(shape_.experts);
    if (!loads_) {
      shares.assign(experts, 1 / static_cast<double>(experts));
      return;
    }
    loads_->shares(iteration, layer, shares);
    if (workload_.kind != WorkloadKind::kHotExpert) return;
    const auto hot = static_cast<std::size_t>(
        stream_of(seed_, Purpose::kHotExpert).below(layer, shape_.experts));
    const double share = workload_.hot_ratio / static_cast<double>(experts);
    const double others = (1 - share) / (1 - shares[hot]);
    for (double& value : shares) value *= others;
    shares[hot] = share;
  }

  double mean_rows() const {
    return static_cast<double>(shape_.rows()) / static_cast<double>(shape_.ranks);
  }

  // Below `burst_low` where whole rows allow it.
  void bound(std::span<std::int64_t> row) const {
    const double mean = mean_rows();
    const auto below = static_cast<std::int64_t>(std::ceil(workload_.burst_low * mean)) - 1;
    const auto least = static_cast<std::int64_t>(std::ceil(mean));
    bound_ranks(row, static_cast<std::size_t>(shape_.experts_per_rank()), std::max(below, least));
  }

  void raise(std::span<std::int64_t> row, std::int64_t iteration, std::int64_t layer,
             double ratio) const {
    const auto size = static_cast<std::size_t>(shape_.experts_per_rank());
    const bool one_rank = workload_.ratio_of == RatioOf::kCard;
    const auto rank = static_cast<std::size_t>(stream_of(seed_, Purpose::kBurst)
                                                   .inner(iteration)
                                                   .inner(one_rank ? 0 : layer)
                                                   .below(0, shape_.ranks));
    set_rank(row, rank, size, static_cast<std::int64_t>(ratio * mean_rows()));
    cap_counts(row.subspan(rank * size, size), shape_.tokens);
  }

  std::optional<Burst> burst_of(std::int64_t iteration) const {
    if (!bursts()) return std::nullopt;
    const HashStream stream = stream_of(seed_, Purpose::kBurst).inner(iteration);
    if (stream.uniform(0) >= workload_.burst_probability) return std::nullopt;
    Burst burst;
    const double low = workload_.burst_low;
    const double k = workload_.burst_exponent;
    const double below = 1 - std::pow(low / workload_.burst_high, k);
    // To 2^-20, so that the last bit of pow does not matter.
    const double ratio = low * std::pow(1 - stream.uniform(1) * below, -1 / k);
    burst.ratio = std::round(ratio * 0x1p20) * 0x1p-20;
    burst.layers = shape_.moe_layers;
    burst.microbatches = shape_.microbatches;
    if (workload_.ratio_of == RatioOf::kCard) return burst;
    burst.layers = 1 + stream.below(2, std::min(workload_.burst_layers, shape_.moe_layers));
    burst.first_layer = stream.below(3, shape_.moe_layers - burst.layers + 1);
    if (workload_.ratio_of == RatioOf::kLayer) return burst;
    burst.microbatches = 1 + stream.below(4, shape_.microbatches);
    burst.first_microbatch = stream.below(5, shape_.microbatches - burst.microbatches + 1);
    return burst;
  }

  RoutingShape shape_;
  Workload workload_;
  std::uint64_t seed_;
  std::optional<ExpertLoads> loads_;  // empty: all alike
};

}  // namespace

std::unique_ptr<RoutingSource> synthetic_routing(const RoutingShape& shape,
                                                 const Workload& workload, std::uint64_t seed) {
  return std::make_unique<SyntheticRouting>(shape, workload, seed);
}

}  // namespace tidemark
