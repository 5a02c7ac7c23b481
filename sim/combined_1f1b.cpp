#include "sim/combined_1f1b.h"

#include <algorithm>

namespace tidemark {

SlotOrders build_combined_1f1b(std::int32_t stages, std::int32_t microbatches,
                               bool delays_weights) {
  SlotOrders orders;
  for (std::int32_t r = 0; r < stages; ++r) {
    const std::int32_t warmup = std::min(2 * (stages - r - 1) + 1, microbatches);
    std::vector<Slot>& order = orders.emplace_back();
    for (std::int32_t f = 0; f < warmup; ++f) order.push_back({SlotKind::kForward, f});
    for (std::int32_t b = 0; b < microbatches; ++b) {
      const std::int32_t f = warmup + b;
      if (f >= microbatches) {
        order.push_back({SlotKind::kBackward, b});
        continue;
      }
      order.push_back({SlotKind::kForwardBackward, f, 0, {0, b}});
      if (delays_weights) order.push_back({SlotKind::kBackwardWeight, b});
    }
  }
  return orders;
}

}  // namespace tidemark
