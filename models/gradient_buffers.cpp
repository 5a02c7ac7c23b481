#include "models/gradient_buffers.h"

#include <algorithm>
#include <numeric>

#include "models/units.h"

namespace tidemark {
namespace {

struct Placed {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::int64_t layer = 0;
};

struct Extent {
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

// The distributed optimizer starts every weight at a multiple of 64 elements.
constexpr std::int64_t kWeightAlignment = 64;
// Buckets end at a multiple of the shard count and of this many elements.
constexpr std::int64_t kBucketAlignment = 128;

GradientBuffer fill(const Job& job, std::int64_t virtual_stage, const std::vector<Weight>& weights,
                    bool expert, std::int64_t rank) {
  const OptimizerOptions& optimizer = job.options.optimizer;
  const std::int64_t ranks =
      expert ? job.layout.expert_data() : job.layout.data() * job.layout.context;
  const auto layers = job.layout.chunk_layers(virtual_stage, job.model.num_layers);
  GradientBuffer buffer;
  buffer.expert = expert;
  buffer.shards = optimizer.distributed ? ranks : 1;

  // Without overlap, and on all virtual stages but the first, a buffer is one bucket.
  const bool buckets = job.options.overlap_grad_reduce && virtual_stage == 0;
  const std::int64_t default_size =
      std::max<std::int64_t>(40'000'000, 1'000'000 * job.layout.data() * job.layout.context);
  const std::int64_t bucket_size = job.options.ddp_bucket_size.value_or(default_size);
  const std::int64_t alignment =
      optimizer.distributed ? std::lcm(buffer.shards, kBucketAlignment) : 1;

  std::vector<Placed> placed;
  std::vector<Extent> extents;
  std::int64_t bucket_begin = 0;
  std::int64_t at = 0;
  const auto close_bucket = [&] {
    at = round_up(at, alignment);
    extents.push_back({bucket_begin, at});
    bucket_begin = at;
  };
  bool before_layers = false;
  for (auto w = weights.rbegin(); w != weights.rend(); ++w) {
    if (w->expert != expert) continue;
    before_layers =
        w->kind == WeightKind::kWordEmbedding || w->kind == WeightKind::kPositionEmbedding;
    const std::int64_t outside = before_layers ? layers.begin - 1 : layers.end;
    if (optimizer.distributed) at = round_up(at, kWeightAlignment);
    placed.push_back({at, at + w->count(), w->layer >= 0 ? w->layer : outside});
    at += w->count();
    if (buckets && at - bucket_begin >= bucket_size) close_bucket();
  }
  if (at > bucket_begin) close_bucket();
  buffer.parameters = at;

  for (const Extent& extent : extents) {
    GradientBucket bucket{extent.end - extent.begin, layers.end, layers.begin - 1};
    const std::int64_t share = bucket.parameters / buffer.shards;
    const std::int64_t owned_begin = extent.begin + rank % buffer.shards * share;
    const std::int64_t owned_end = owned_begin + share;
    for (const Placed& p : placed) {
      if (p.end <= extent.begin || p.begin >= extent.end) continue;
      bucket.first_layer = std::min(bucket.first_layer, p.layer);
      bucket.last_layer = std::max(bucket.last_layer, p.layer);
      const std::int64_t piece = std::min(p.end, owned_end) - std::max(p.begin, owned_begin);
      if (piece > 0) buffer.owned_pieces.push_back(piece);
    }
    buffer.buckets.push_back(bucket);
  }
  return buffer;
}

}  // namespace

std::int64_t GradientBuffer::owned() const {
  return std::accumulate(owned_pieces.begin(), owned_pieces.end(), std::int64_t{0});
}

std::vector<GradientBuffer> gradient_buffers(const Job& job, std::int64_t virtual_stage,
                                             std::int64_t rank) {
  const std::vector<Weight> weights = chunk_weights(job, virtual_stage);
  std::vector<GradientBuffer> buffers{fill(job, virtual_stage, weights, false, rank)};
  if (count_parameters(weights).expert > 0)
    buffers.push_back(fill(job, virtual_stage, weights, true, rank));
  return buffers;
}

}  // namespace tidemark
