#include "hw_profiles/collective_costs.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <string>

#include "models/input_error.h"

namespace tidemark {
namespace {

constexpr double kGiga = 1e9;
constexpr std::int64_t kMeasuredNodes = 2;

Collective parse_op(const std::string& op) {
  if (op == "all_gather") return Collective::kAllGather;
  if (op == "reduce_scatter") return Collective::kReduceScatter;
  if (op == "all_reduce") return Collective::kAllReduce;
  if (op == "all_to_all") return Collective::kAllToAll;
  return Collective::kSendReceive;
}

// Ring steps, or messages of an all-to-all.
std::int64_t steps(Collective op, std::int64_t ranks) {
  if (op == Collective::kSendReceive) return 1;
  return op == Collective::kAllReduce ? 2 * (ranks - 1) : ranks - 1;
}

}  // namespace

GroupShape group_shape(std::int64_t size, std::int64_t stride, std::int64_t cards_per_node) {
  const std::int64_t on_node = std::max<std::int64_t>(1, ceil_div(cards_per_node, stride));
  return {size, std::min(size, on_node)};
}

double bus_factor(Collective op, std::int64_t ranks) {
  if (op == Collective::kSendReceive) return 1;
  return as_double(steps(op, ranks)) / as_double(ranks);
}

CollectiveCosts::CollectiveCosts(const HardwareProfile& profile) {
  if (profile.fabric) {
    fabric_ = *profile.fabric;
    return;
  }
  assert(profile.collectives);
  const CollectiveTable& table = *profile.collectives;
  const bool is_measured = table.kind == NumberKind::kMeasured;
  exact_ = is_measured ? CostKind::kMeasured : CostKind::kAssumed;
  derived_ = is_measured ? CostKind::kInterpolated : CostKind::kAssumed;
  double fastest = 0;
  std::int64_t widest = 0;  // ranks on two nodes
  for (const CollectiveRow& row : table.rows) {
    const Collective op = parse_op(row.op);
    const double bytes = as_double(row.bytes);
    const double seconds = bytes * bus_factor(op, row.ranks) / (row.bus_gb_per_s * kGiga);
    columns_[{op, row.nodes, row.ranks}].push_back({bytes, seconds});
    if (row.nodes != kMeasuredNodes || op == Collective::kAllToAll) continue;
    if (row.ranks > widest) fastest = 0;
    widest = std::max(widest, row.ranks);
    if (row.ranks == widest) fastest = std::max(fastest, row.bus_gb_per_s * kGiga);
  }
  for (const Collective op :
       {Collective::kAllGather, Collective::kReduceScatter, Collective::kAllReduce,
        Collective::kAllToAll, Collective::kSendReceive}) {
    for (const std::int64_t nodes : {std::int64_t{1}, kMeasuredNodes}) {
      if (!columns_.contains({op, nodes, 2})) {
        throw InputError(profile.name, "collectives", "no rows with 2 ranks",
                         "rows of every operation with 2 ranks, on one node and on two");
      }
    }
  }
  card_off_node_bytes_per_second_ = fastest * as_double(kMeasuredNodes) / as_double(widest);
  for (auto& [key, column] : columns_) {
    std::sort(column.begin(), column.end(),
              [](const Point& a, const Point& b) { return a.bytes < b.bytes; });
    for (std::size_t i = column.size() - 1; i > 0; --i) {
      column[i - 1].seconds = std::min(column[i - 1].seconds, column[i].seconds);
    }
  }
}

Cost CollectiveCosts::time(Collective op, double bytes, GroupShape group) const {
  assert(group.ranks >= 1 && group.ranks_per_node >= 1);
  if (group.ranks == 1 || bytes <= 0) return {0, exact_};
  if (columns_.empty()) return {modelled(op, bytes, group), CostKind::kAssumed};
  const auto it = columns_.find({op, group.nodes(), group.ranks});
  const auto is_row = [&](const Point& point) { return point.bytes == bytes; };
  const double seconds = measured(op, bytes, group);
  if (it != columns_.end()) {
    const auto row = std::find_if(it->second.begin(), it->second.end(), is_row);
    if (row != it->second.end() && row->seconds == seconds) return {seconds, exact_};
  }
  return {seconds, derived_};
}

// A column by its size, two columns by their ranks; a ring beyond the widest.
double CollectiveCosts::on_columns(Collective op, std::int64_t nodes, double bytes,
                                   std::int64_t ranks) const {
  const auto at = [&](const Column& column) {
    if (bytes <= column.front().bytes) return column.front().seconds;
    if (bytes >= column.back().bytes) {
      return column.back().seconds * bytes / column.back().bytes;
    }
    const auto above = std::lower_bound(column.begin(), column.end(), bytes,
                                        [](const Point& p, double b) { return p.bytes < b; });
    const auto below = above - 1;
    const double part = (bytes - below->bytes) / (above->bytes - below->bytes);
    return std::lerp(below->seconds, above->seconds, part);  // monotone
  };
  const auto above = columns_.lower_bound({op, nodes, ranks});
  const auto is_of_op = [&](auto it) {
    return it != columns_.end() && std::get<0>(it->first) == op && std::get<1>(it->first) == nodes;
  };
  if (is_of_op(above) && std::get<2>(above->first) == ranks) return at(above->second);
  const auto below = std::prev(above);  // the 2-rank column exists
  const std::int64_t fewer = std::get<2>(below->first);
  if (!is_of_op(above)) {
    const double share = as_double(fewer) / as_double(ranks);
    return on_columns(op, nodes, bytes * share, fewer) * as_double(steps(op, ranks)) /
           as_double(steps(op, fewer));
  }
  const double part = as_double(ranks - fewer) / as_double(std::get<2>(above->first) - fewer);
  return std::lerp(at(below->second), at(above->second), part);
}

double CollectiveCosts::measured(Collective op, double bytes, GroupShape group) const {
  const std::int64_t nodes = group.nodes();
  if (nodes == 1) return on_columns(op, 1, bytes, group.ranks);
  const std::int64_t ranks = kMeasuredNodes * group.ranks_per_node;  // of the two-node column
  const double share = as_double(ranks) / as_double(group.ranks);
  double seconds = on_columns(op, kMeasuredNodes, bytes * share, ranks);
  double off_node = bytes;  // that each rank of the group sends off its node
  if (op == Collective::kAllToAll) {
    constexpr double kLeaving = 1.0 / kMeasuredNodes;  // share of the two-node column's bytes
    const double leaving = as_double(group.ranks - group.ranks_per_node) / as_double(group.ranks);
    off_node *= leaving;
    seconds *= leaving / (share * kLeaving);
  } else {
    off_node *= bus_factor(op, group.ranks) / as_double(group.ranks_per_node);
    seconds *= as_double(steps(op, group.ranks)) / as_double(steps(op, ranks));
  }
  return std::max(seconds, off_node / card_off_node_bytes_per_second_);
}

double CollectiveCosts::modelled(Collective op, double bytes, GroupShape group) const {
  const double inside = fabric_.intra_node_gb_per_s.value * kGiga;
  const double between = fabric_.inter_node_gb_per_s.value * kGiga;
  const bool one_node = group.nodes() == 1;
  const double latency = kMicro * (one_node ? fabric_.intra_node_latency_us.value
                                            : fabric_.inter_node_latency_us.value);
  double on_node = bytes * bus_factor(op, group.ranks);  // bytes of a rank on its links
  double off_node = on_node / as_double(group.ranks_per_node);
  if (op == Collective::kAllToAll) {
    const double to_each = bytes / as_double(group.ranks);
    on_node = to_each * as_double(group.ranks_per_node - 1);
    off_node = to_each * as_double(group.ranks - group.ranks_per_node);
  } else if (op == Collective::kSendReceive && !one_node) {
    on_node = 0;
  }
  const double transfer =
      one_node ? on_node / inside : std::max(on_node / inside, off_node / between);
  return as_double(steps(op, group.ranks)) * latency + transfer;
}

}  // namespace tidemark
