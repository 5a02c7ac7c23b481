// Megatron's gradient and parameter buffers (core/distributed/param_and_grad_buffer.py): one
// contiguous buffer for the dense parameters of a card and one for its experts, filled in reverse
// order of registration and cut into buckets that are reduced and gathered as one collective each.
//
//   buffer:  | last registered ... | ... | ... first registered |     reduced left to right, as the
//            |      bucket 0       |     |       bucket n       |     backward fills them
#pragma once

#include <cstdint>
#include <vector>

#include "models/job.h"
#include "models/parameters.h"

namespace tidemark {

struct GradientBucket {
  std::int64_t parameters = 0;  // with padding
  // Layers whose weights lie in it. Outside layers: the embedding counts as the layer before the
  // chunk's first, final norm and output as the layer after its last.
  std::int64_t first_layer = 0;
  std::int64_t last_layer = 0;
};

struct GradientBuffer {
  bool expert = false;
  std::int64_t shards = 1;      // ranks that share the optimizer state
  std::int64_t parameters = 0;  // with padding
  std::vector<GradientBucket> buckets;
  // Lengths of the pieces of weights that a rank's optimizer owns, each an allocation.
  std::vector<std::int64_t> owned_pieces;

  std::int64_t owned() const;
};

// Buffers of a virtual stage (Megatron wraps each chunk by itself): dense, then experts if there
// are any. `rank`: among those that share the dense optimizer state (DP * CP); experts' pieces are
// those of its place among theirs.
std::vector<GradientBuffer> gradient_buffers(const Job& job, std::int64_t virtual_stage,
                                             std::int64_t rank = 0);

}  // namespace tidemark
