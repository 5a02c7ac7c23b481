// How long each operator of a graph takes on a hardware profile.
#pragma once

#include "hw_profiles/collective_costs.h"
#include "hw_profiles/hardware_profile.h"
#include "hw_profiles/kernel_costs.h"
#include "models/operator_graph.h"
#include "sim/program.h"

namespace tidemark {

class OperatorCosts {
 public:
  OperatorCosts(const Job& job, const HardwareProfile& profile);

  // `balanced_rows`: rows of a lane under balanced routing, where costs of routed work are exact.
  OpCost cost(const Operator& op, std::int64_t balanced_rows) const;

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
  Cost evaluate(const Operator& op, std::int64_t rows) const;
  GroupShape shape_of(Group group) const;

  const Job& job_;
  KernelCosts kernels_;
  CollectiveCosts collectives_;
  std::int64_t cards_per_node_;
  double slowdown_;
  double d2h_bytes_per_s_;
  double h2d_bytes_per_s_;
};

TimeClass time_class(const Operator& op);

}  // namespace tidemark
