#include "planner/bagualu2_offload.h"

#include <algorithm>
#include <cassert>

namespace tidemark {
namespace {

// Part of max_active up to which the average is not asked.
constexpr double kEarly = 0.1;

}  // namespace

double BaGuaLu2OffloadManager::add_batch(std::int64_t microbatch, double bytes) {
  assert(bytes > 0 && !resident_.contains(microbatch));
  const std::int64_t active = num_active() + 1;
  assert(active < max_active_);
  double offloaded = std::max(0.0, resident_bytes_ + bytes - limit_bytes_);
  if (static_cast<double>(num_active()) / static_cast<double>(max_active_) > kEarly) {
    const double average = (resident_bytes_ + bytes) / static_cast<double>(active);
    const double projected = (average * static_cast<double>(max_active_ - 1) - limit_bytes_) /
                             static_cast<double>(max_active_ - active);
    offloaded = std::max(offloaded, projected);
  }
  offloaded = std::min(offloaded, bytes);
  resident_.emplace(microbatch, bytes - offloaded);
  resident_bytes_ += bytes - offloaded;
  return offloaded / bytes;
}

void BaGuaLu2OffloadManager::remove_batch(std::int64_t microbatch) {
  const auto it = resident_.find(microbatch);
  if (it == resident_.end()) return;
  resident_bytes_ -= it->second;
  resident_.erase(it);
}

}  // namespace tidemark
