#include "traces/expert_loads.h"

#include <algorithm>
#include <cmath>

#include "traces/normal_table.h"

namespace tidemark {
namespace {

constexpr std::int64_t kBlocks = 8;  // about, of a window of innovations

// Adds weight * a standard normal deviate to each.
void add_innovation(HashStream stream, double weight, std::span<double> out) {
  const NormalTable& normal = NormalTable::get();
  for (std::size_t e = 0; e < out.size(); e += 2) {
    const std::uint64_t bits = stream.bits(static_cast<std::int64_t>(e));
    out[e] += weight * normal.at(static_cast<std::uint32_t>(bits));
    if (e + 1 < out.size()) {
      out[e + 1] += weight * normal.at(static_cast<std::uint32_t>(bits >> 32));
    }
  }
}

// Adds weight * a standard normal deviate that an iteration shares with its neighbours: the window
// slides over blocks of innovations, the newest block comes in as the oldest goes out.
void add_drifting(HashStream stream, std::int64_t iteration, std::int64_t window, double weight,
                  std::span<double> out) {
  if (window == 0) {
    add_innovation(stream, weight, out);
    return;
  }
  const std::int64_t length = std::max<std::int64_t>(1, (window + kBlocks / 2) / kBlocks);
  const std::int64_t blocks = (window + length / 2) / length;
  const std::int64_t newest = iteration / length;
  const double in = static_cast<double>(iteration % length) / static_cast<double>(length);
  const double out_going = 1 - in;
  const double norm =
      weight / std::sqrt(static_cast<double>(blocks - 1) + in * in + out_going * out_going);
  for (std::int64_t back = 0; back <= blocks; ++back) {
    const double part = back == 0 ? in : back == blocks ? out_going : 1;
    if (part > 0) add_innovation(stream.inner(newest - back), norm * part, out);
  }
}

}  // namespace

ExpertLoads::ExpertLoads(const RoutingShape& shape, const Workload& workload, double alpha,
                         HashStream stream)
    : shape_(shape), workload_(workload), alpha_(alpha), stream_(stream) {}

double ExpertLoads::second_weight(std::int64_t iteration) const {
  if (workload_.kind == WorkloadKind::kDomainShift) {
    const auto since = static_cast<double>(iteration - workload_.shift_iteration + 1);
    return std::clamp(since / static_cast<double>(workload_.ramp_iterations), 0.0, 1.0);
  }
  if (workload_.kind == WorkloadKind::kPeriodic) {
    const auto phase = static_cast<double>(iteration % workload_.period_iterations) /
                       static_cast<double>(workload_.period_iterations);
    return phase < 0.5 ? 2 * phase : 2 - 2 * phase;
  }
  return 0;
}

double ExpertLoads::relative_variance() const {
  return (1 - workload_.microbatch_correlation) / alpha_;
}

void ExpertLoads::shares(std::int64_t iteration, std::int64_t layer,
                         std::vector<double>& out) const {
  const auto experts = static_cast<std::size_t>(shape_.experts);
  if (workload_.microbatch_correlation == 0) {
    out.assign(experts, 1 / static_cast<double>(experts));
    return;
  }
  out.assign(experts, 0);
  const double second = second_weight(iteration);
  const double norm = std::sqrt(second * second + (1 - second) * (1 - second));
  const double common = std::sqrt(workload_.layer_correlation);
  const double own = std::sqrt(1 - workload_.layer_correlation);
  for (const std::int64_t distribution : {0, 1}) {
    const double weight = (distribution == 0 ? 1 - second : second) / norm;
    const HashStream stream = stream_.inner(distribution);
    const auto add = [&](std::int64_t id, double part) {
      if (part == 0) return;
      add_drifting(stream.inner(id), iteration, workload_.drift_iterations, part, out);
    };
    add(-1, weight * common);
    add(layer, weight * own);
  }
  // Gamma of shape a, divided by a.
  const double a = alpha_ / workload_.microbatch_correlation;
  const double deviation = 1 / (3 * std::sqrt(a));
  double sum = 0;
  for (double& value : out) {
    const double root = std::max(0.0, 1 - deviation * deviation + deviation * value);
    sum += value = root * root * root;
  }
  for (double& value : out) value /= sum;
}

}  // namespace tidemark
