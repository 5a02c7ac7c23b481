// Rows that each lane's experts compute on: of one unit in one iteration.
//
// Lanes that split the same experts (ETP) see the same rows. Where a unit holds several expert
// groups, senders are uniform and each group gets its share of every expert, the first ones a row
// more where it does not divide.
#pragma once

#include <cstdint>
#include <functional>

#include "models/job.h"
#include "models/large_vector.h"
#include "traces/routing.h"

namespace tidemark {

class LaneRows {
 public:
  explicit LaneRows(const Job& job);  // without any
  LaneRows(const Job& job, const RoutingCounts& counts);

  // One lane in place of all, where they are alike: each of its experts receives its balanced share
  // (balanced_routing, lane 0) times `load` of the microbatch and MoE layer, rounded down.
  using Load = std::function<double(std::int64_t microbatch, std::int64_t moe_layer)>;
  static LaneRows alike(const Job& job, const Load& load);
  static LaneRows alike(const Job& job, double load = 1);

  // Takes another iteration's counts, in the memory of the last. Requires: the same job.
  void assign(const RoutingCounts& counts);

  // [lane]: of all its experts. `moe_layer` counts MoE layers of the whole model from 0.
  const std::int64_t* at(std::int64_t microbatch, std::int64_t moe_layer) const {
    return rows_.data() + (microbatch * moe_layers_ + moe_layer) * lanes_;
  }
  // [lane]: of each lane's `expert`-th expert.
  const std::int32_t* expert_at(std::int64_t microbatch, std::int64_t moe_layer,
                                std::int64_t expert) const {
    return of_expert_.data() +
           ((microbatch * moe_layers_ + moe_layer) * local_experts_ + expert) * lanes_;
  }
  // Most rows of a lane over the mean, of any microbatch and layer; 1 without rows.
  double max_over_mean() const;
  std::int64_t lanes() const { return lanes_; }
  std::int64_t local_experts() const { return local_experts_; }

 private:
  std::int64_t lanes_ = 0;
  std::int64_t ranks_ = 1;  // EP
  std::int64_t parts_ = 1;  // ETP
  std::int64_t moe_layers_ = 0;
  std::int64_t local_experts_ = 0;
  LargeVector<std::int64_t> rows_;       // [microbatch][MoE layer][lane]
  LargeVector<std::int32_t> of_expert_;  // [microbatch][MoE layer][local expert][lane]
};

}  // namespace tidemark
