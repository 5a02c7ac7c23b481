// What a card holds that PyTorch's counters do not show: the driver's context, and the buffers of
// the collective library, made with the first collective of each communicator and kept for ever.
//
// NCCL 2.18 to 2.21 connects all rings and trees of a communicator at once. Memory is taken 2 MiB
// at a time:
//
//   connection in a node       sender 4 KiB -> 2 MiB; receiver 4 KiB + LL 512 KiB
//                              + LL128 4,800 KiB + simple 4 MiB -> 10 MiB   (transport/p2p.cc)
//   connection between nodes   each end LL128 + simple -> 10 MiB; LL is on the host (net.cc)
//   pool of sends              16 steps * channels, rounded up to a power of two, * chunk: 512 KiB
//                              in a node, 128 KiB between nodes; also where nothing leaves the node
//
//   C channels: as many as NVLink takes, between nodes `p` for each card's port (graph/connect.cc).
//   pairs of a send and a receive connection on one card, the most on any:
//     2 ranks                  C, which trees share with rings
//     one node                 2 C: ring, and both directions along the chain of the tree
//     several                  2 (C - p) in the node; p + p * (up to 2 for the trees) off it
//   sends and receives of single ranks: channels a peer in the node (2 where there are several
//   nodes), one pair each; a pool of receives where they leave it.
//
// The same rules give what an A100 was measured to take: 544 MB with two ranks, 688 MB with more on
// the rank at the end of the chain (NVIDIA/nccl issue 964).
//
// Communicators are those that Megatron uses (parallel_state.py), each with buffers of its own.
// With virtual stages transfers are not batched, and ProcessGroupNCCL makes a communicator for each
// pair of ranks. Kwai's fork makes a second communicator of context parallelism, with the four
// channels that its launch script asks for (core/parallel_state.py), and registers one user buffer
// of Transformer Engine for gathers and one for reduce-scatters, each of a linear's whole input
// (core/utils.py GlobalTEUserBuffer: one for each name; at least these two).
//
// Left out: NVLink SHARP (up to 1.5 GiB a communicator where the driver offers it; an H800 did not,
// NVIDIA/nccl issue 892), and RCCL, whose channels on the DCUs nobody has published.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "hw_profiles/collective_costs.h"
#include "hw_profiles/hardware_profile.h"
#include "models/job.h"
#include "models/units.h"

namespace tidemark {

struct Communicator {
  std::string name;
  GroupShape shape;
  // Single ranks to which this one sends, and from which it receives; 0: collectives only.
  std::int64_t peers_on_node = 0;
  bool peers_on_other_nodes = false;
  std::int64_t asked_channels = 0;  // 0: as many as the library takes
};
// Of any card of the job, one rank's alone left out.
std::vector<Communicator> communicators(const Job& job, std::int64_t cards_per_node);

Bytes communicator_memory(const Communicator& communicator, const CommunicatorChannels& channels);

struct OutsideItem {
  std::string name;
  Bytes bytes;
  std::string source;
};
// What the profile knows of; without channels in it no communicators.
std::vector<OutsideItem> outside_memory(const Job& job, const HardwareProfile& profile);

}  // namespace tidemark
