#include "sim/zero_bubble.h"

#include <algorithm>

namespace tidemark {
namespace {

// Forwards, then backwards and forwards in turn; weight gradients follow `owed` backwards later.
// With `forward_first` the steady phase begins with a forward, as in 1F1B.
std::vector<Slot> stage_order(std::int32_t microbatches, std::int32_t warmup, std::int32_t owed,
                              bool forward_first) {
  std::vector<Slot> order;
  std::int32_t forwards = 0;
  std::int32_t weights = 0;
  const auto forward = [&] {
    if (forwards < microbatches) order.push_back({SlotKind::kForward, forwards++});
  };
  while (forwards < std::min(warmup, microbatches)) forward();
  for (std::int32_t b = 0; b < microbatches; ++b) {
    const bool steady = forwards < microbatches;
    if (forward_first) forward();
    order.push_back({SlotKind::kBackwardInput, b});
    // Once forwards are over, weight gradients take their place.
    const bool pays = b >= owed || (forward_first && !steady);
    if (pays) order.push_back({SlotKind::kBackwardWeight, weights++});
    if (!forward_first) forward();
  }
  while (weights < microbatches) order.push_back({SlotKind::kBackwardWeight, weights++});
  return order;
}

}  // namespace

SlotOrders build_zb_h1(std::int32_t stages, std::int32_t microbatches) {
  SlotOrders orders;
  for (std::int32_t r = 0; r < stages; ++r) {
    orders.push_back(stage_order(microbatches, stages - r - 1, r, true));
  }
  return orders;
}

SlotOrders build_zb_h2(std::int32_t stages, std::int32_t microbatches) {
  SlotOrders orders;
  for (std::int32_t r = 0; r < stages; ++r) {
    orders.push_back(stage_order(microbatches, 2 * (stages - r) - 1, 2 * r, false));
  }
  return orders;
}

}  // namespace tidemark
