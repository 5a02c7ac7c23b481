// How long each operator of a graph takes on a hardware profile.
#pragma once

#include <cstdint>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include "hw_profiles/collective_costs.h"
#include "hw_profiles/hardware_profile.h"
#include "hw_profiles/kernel_costs.h"
#include "models/operator_graph.h"
#include "sim/grouped_cost.h"
#include "sim/program.h"

namespace tidemark {

class OperatorCosts {
 public:
  OperatorCosts(const Job& job, const HardwareProfile& profile);

  // Grouped products are tabulated on the way.
  OpCost cost(const Operator& op);
  // ns of an operator under balanced routing.
  std::int64_t balanced_ns(const OpCost& cost) const;
  std::vector<GroupedCost> take_grouped_costs() { return std::move(grouped_costs_); }

  // A collective over a data-parallel group, of `bytes` in full; over expert-data ranks if
  // `expert`.
  std::int64_t data_collective_ns(Collective op, std::int64_t bytes, bool expert) const;
  // A message of `bytes` between neighbouring stages.
  std::int64_t transfer_ns(std::int64_t bytes) const;
  // Reading and writing `bytes` of HBM in one kernel.
  std::int64_t streaming_ns(std::int64_t bytes) const;

  std::int64_t host_issue_ns() const;
  double slowdown_under_collective() const { return slowdown_; }

 private:
  // Without the experts of a grouped product.
  Cost evaluate(const Operator& op, std::int64_t rows) const;
  std::int32_t grouped_cost(const GroupedGemmWork& work);
  GroupShape shape_of(Group group) const;

  using GroupedShape = std::tuple<std::int64_t, std::int64_t, Pass>;  // out, in
  const Job& job_;
  std::int64_t balanced_rows_;  // of a lane
  std::int64_t local_experts_;
  std::map<GroupedShape, std::int32_t> grouped_index_;
  std::vector<GroupedCost> grouped_costs_;
  KernelCosts kernels_;
  CollectiveCosts collectives_;
  std::int64_t cards_per_node_;
  double slowdown_;
  double d2h_bytes_per_s_;
  double h2d_bytes_per_s_;
};

TimeClass time_class(const Operator& op);

}  // namespace tidemark
