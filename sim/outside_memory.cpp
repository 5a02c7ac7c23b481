#include "sim/outside_memory.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "models/linear_operators.h"

namespace tidemark {
namespace {

constexpr Bytes kSendEnd = 2 * kMiB;
constexpr Bytes kReceiveEnd = 10 * kMiB;
constexpr Bytes kNetworkEnd = 10 * kMiB;
constexpr std::int64_t kPoolSteps = 16;
constexpr Bytes kChunkInNode = kMiB / 2;
constexpr Bytes kChunkBetweenNodes = kMiB / 8;
constexpr std::int64_t kChannelsOfPeerAcrossNodes = 2;
constexpr std::int64_t kSlowChannelsOfKwai = 4;  // --kaimm-overlap-cp-slow-ctas

}  // namespace

std::vector<Communicator> communicators(const Job& job, std::int64_t cards_per_node) {
  const ParallelLayout& l = job.layout;
  std::vector<Communicator> out;
  const auto add = [&](std::string name, std::int64_t size, std::int64_t stride, std::int64_t peers,
                       std::int64_t asked_channels = 0) {
    if (size == 1) return;
    const GroupShape shape = group_shape(size, stride, cards_per_node);
    out.push_back({std::move(name), shape, std::min(peers, shape.ranks_per_node - 1),
                   peers > 0 && shape.nodes() > 1, asked_channels});
  };
  const std::int64_t stage_cards = l.cards / l.pipeline;
  const bool kwai = job.versions.fork == Fork::kKwai;
  // Attention passes keys and values around the ring; Kwai's fork gathers them.
  const std::int64_t ring = kwai ? 0 : std::min<std::int64_t>(2, l.context - 1);
  add("world", l.cards, 1, 0);
  add("tensor parallel", l.tensor, 1, 0);
  add("context parallel", l.context, l.tensor, ring);
  if (kwai) {
    add("context parallel, few channels", l.context, l.tensor, 0, kSlowChannelsOfKwai);
  }
  add("data parallel", l.data() * l.context, l.tensor, 0);
  if (job.model.moe) {
    add("expert parallel", l.expert, l.expert_tensor, l.expert - 1);
    add("expert tensor parallel", l.expert_tensor, 1, 0);
    add("expert data parallel", l.expert_data(), l.expert * l.expert_tensor, 0);
  }
  if (l.virtual_pipeline > 1 && job.options.overlap_p2p_comm) {
    if (l.pipeline > 1) add("next stage", 2, stage_cards, 1);
    if (l.pipeline > 2) add("previous stage", 2, stage_cards, 1);
  } else {
    add("pipeline parallel", l.pipeline, stage_cards, std::min<std::int64_t>(2, l.pipeline - 1));
  }
  return out;
}

Bytes communicator_memory(const Communicator& communicator, const CommunicatorChannels& channels) {
  const GroupShape& shape = communicator.shape;
  const bool one_node = shape.nodes() == 1;
  const auto taken = static_cast<std::int64_t>(
      one_node ? channels.in_node.value
               : channels.per_card_between_nodes.value * static_cast<double>(shape.ranks_per_node));
  const std::int64_t count = communicator.asked_channels > 0 ? communicator.asked_channels : taken;
  const std::int64_t of_port = ceil_div(count, shape.ranks_per_node);
  std::int64_t in_node = 0;  // pairs
  std::int64_t off_node = 0;
  if (shape.ranks == 2) {
    (one_node ? in_node : off_node) = count;
  } else if (one_node) {
    in_node = 2 * count;
  } else {
    in_node = 2 * (count - of_port);
    off_node = of_port * (1 + std::min<std::int64_t>(2, shape.nodes() - 1));
  }
  const auto pooled = static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(count)));
  in_node += communicator.peers_on_node * (one_node ? pooled : kChannelsOfPeerAcrossNodes);
  const Bytes pool = (one_node ? kChunkInNode : kChunkBetweenNodes) * (kPoolSteps * pooled);
  return (kSendEnd + kReceiveEnd) * in_node + kNetworkEnd * (2 * off_node) +
         pool * (communicator.peers_on_other_nodes ? 2 : 1);
}

std::vector<OutsideItem> outside_memory(const Job& job, const HardwareProfile& profile) {
  std::vector<OutsideItem> out;
  if (profile.context_gib) {
    out.push_back({"context of the driver",
                   Bytes(static_cast<std::int64_t>(profile.context_gib->value *
                                                   static_cast<double>(kGiB.value))),
                   profile.context_gib->source});
  }
  if (job.versions.fork == Fork::kKwai && job.layout.splits_sequence()) {
    const Bytes input(kBf16 * rank_tokens(job) * job.model.hidden_size);
    out.push_back({"user buffers", 2 * input, "Megatron-Kwai core/utils.py GlobalTEUserBuffer"});
  }
  if (!profile.communicator_channels) return out;
  const auto cards_per_node = static_cast<std::int64_t>(profile.cards_per_node.value);
  for (const Communicator& c : communicators(job, cards_per_node)) {
    out.push_back({"communicator: " + c.name,
                   communicator_memory(c, *profile.communicator_channels),
                   profile.communicator_channels->in_node.source});
  }
  return out;
}

}  // namespace tidemark
