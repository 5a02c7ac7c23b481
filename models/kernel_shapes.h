// What a kernel or collective is asked to do, apart from how long it takes: the words that the
// operator graph (models/) and the hardware profile (hw_profiles/) share.
#pragma once

#include <cstdint>

namespace tidemark {

// The three matrix products of a linear layer: y = x W^T, dx = dy W, dW = dy^T x.
enum class Pass { kForward, kBackwardInput, kBackwardWeight };

// Whole forward or whole backward of an operator that is not split further.
enum class Direction { kForward, kBackward };

struct GemmShape {
  std::int64_t out_features = 0;
  std::int64_t tokens = 0;
  std::int64_t in_features = 0;
};

struct AttentionShape {
  std::int64_t batch = 1;
  std::int64_t seq_q = 0;
  std::int64_t seq_kv = 0;  // >= seq_q; a causal mask is aligned at the end
  std::int64_t heads = 0;   // query heads on this card
  std::int64_t qk_dim = 0;
  std::int64_t v_dim = 0;
  bool causal = true;
};

enum class Collective { kAllGather, kReduceScatter, kAllReduce, kAllToAll, kSendReceive };

}  // namespace tidemark
