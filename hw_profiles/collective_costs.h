// Durations of collectives, one at a time, while the sibling groups of the same node do the same.
//
// Where collectives were measured (bus bandwidth by operation, nodes 1 or 2, ranks and size):
//
//   time(B) = B * factor / bus(B),   factor = (n-1)/n; all-reduce 2(n-1)/n; send-receive 1
//
// - Time is interpolated linearly in bytes; below the smallest measured size it is the time of that
//   size, above the largest its bandwidth. A row that is slower than a larger message of its column
//   was disturbed and takes the larger one's time (all-to-all, 2 ranks, 128 MiB: 45 GB/s between 82
//   and 103), so time never falls with size. Between columns it is linear in the ranks.
// - Beyond the measured number of ranks or nodes, a ring (the vendor's setting is NCCL_ALGO=Ring)
//   keeps the time of a step for the same chunk, and the steps are counted:
//   time(n, B) = (n-1)/(n2-1) * time(n2, B * n2/n), n2 = ranks of the widest column with as many
//   ranks on each node.
// - All-to-all beyond two nodes is bound by what leaves the node: bytes off the node over the rate
//   at which they leave in the two-node column, for the same bytes to each peer. (61 MB on 64
//   ranks, 8 nodes: 14 GB/s a card. Nothing beyond two nodes was measured: contention of the
//   network's upper levels is not in it.)
// - A group with fewer ranks on a node than the node has cards shares the network with its
// siblings,
//   while the tables were taken alone: no rank sends off its node faster than a card of the full
//   16-rank ring does at the largest size (15.4 GB/s; alone, one pair reaches 17.8).
//
// Otherwise (`fabric`): steps * latency + B * factor / bandwidth, the slower of inside and between
// nodes.
#pragma once

#include <cstdint>
#include <map>
#include <tuple>
#include <vector>

#include "hw_profiles/cost.h"
#include "hw_profiles/hardware_profile.h"
#include "models/kernel_shapes.h"
#include "models/units.h"

namespace tidemark {

// How a communicator lies on the machine: `ranks`, as many on each node.
struct GroupShape {
  std::int64_t ranks = 1;
  std::int64_t ranks_per_node = 1;

  std::int64_t nodes() const { return ceil_div(ranks, ranks_per_node); }
};

// The group {first, first + stride, ...} of `size` cards, `first` a multiple of size * stride apart
// from an offset below `stride`; cards are numbered node by node.
// Returns: for a group that does not divide evenly over nodes, the most ranks that share a node.
GroupShape group_shape(std::int64_t size, std::int64_t stride, std::int64_t cards_per_node);

// Share of the buffer that crosses each rank's links: the "factor" above.
double bus_factor(Collective op, std::int64_t ranks);

class CollectiveCosts {
 public:
  explicit CollectiveCosts(const HardwareProfile& profile);

  // `bytes`: all-gather, reduce-scatter, all-reduce: the full buffer (gathered, or to be reduced);
  // all-to-all: what one rank sends to all ranks together, its own part included; send-receive: the
  // message between two ranks (ranks_per_node 2 on one node, 1 across nodes).
  // Returns: 0 s for one rank or no bytes.
  Cost time(Collective op, double bytes, GroupShape group) const;

 private:
  struct Point {
    double bytes = 0;
    double seconds = 0;
  };
  using Column = std::vector<Point>;  // ascending in both

  double measured(Collective op, double bytes, GroupShape group) const;
  double modelled(Collective op, double bytes, GroupShape group) const;
  double on_columns(Collective op, std::int64_t nodes, double bytes, std::int64_t ranks) const;

  std::map<std::tuple<Collective, std::int64_t, std::int64_t>, Column>
      columns_;  // op, nodes, ranks
  double card_off_node_bytes_per_second_ = 0;
  CostKind exact_ = CostKind::kAssumed;
  CostKind derived_ = CostKind::kAssumed;
  Fabric fabric_;
};

}  // namespace tidemark
