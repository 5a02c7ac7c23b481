// BaGuaLu-2's rule for how much of a microbatch to offload when its bytes are known: enough to stay
// under a limit now, and on average until the pipeline is full.
//
//   now        = resident + bytes - limit
//   projected  = (average * (max_active - 1) - limit) / (max_active - active)
//                once more than a tenth of max_active microbatches are active, where
//                average = (resident + bytes) / active, this microbatch counted as kept whole
//   offloaded  = min(max(0, now, projected), bytes)
//
// Source: github.com/thu-pacman/BaGuaLu 8672ee5, bgl2/core/pipeline_parallel/offload.py. There the
// ratio only orders the tensors; the bytes copied are a fixed budget.
#pragma once

#include <cstdint>
#include <map>

namespace tidemark {

class BaGuaLu2OffloadManager {
 public:
  // For one iteration. `num_warmup`: forwards that the stage runs before its first backward.
  BaGuaLu2OffloadManager(std::int64_t num_warmup, double limit_bytes)
      : max_active_(num_warmup + 3), limit_bytes_(limit_bytes) {}

  // Decides for a microbatch whose forward keeps `bytes`. Returns: the part to offload, from 0 to
  // 1. Requires: bytes > 0, and a microbatch that is not active; at most num_warmup + 1 others are.
  double add_batch(std::int64_t microbatch, double bytes);
  // After its backward. A microbatch that was never added changes nothing.
  void remove_batch(std::int64_t microbatch);

  double resident_bytes() const { return resident_bytes_; }
  std::int64_t num_active() const { return static_cast<std::int64_t>(resident_.size()); }

 private:
  std::int64_t max_active_;
  double limit_bytes_;
  double resident_bytes_ = 0;
  std::map<std::int64_t, double> resident_;  // by active microbatch, what stays on the card
};

}  // namespace tidemark
