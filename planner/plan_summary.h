// What a prepared policy does with what each operator keeps, for people to read.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "planner/adaptive_policy.h"
#include "sim/decisions.h"

namespace tidemark {

constexpr int kNumActionKinds = 4;  // of ActionKind

// What operators of one name keep in the layers of a stage.
struct OperatorSummary {
  std::string name;
  std::int64_t layers = 0;
  std::int64_t bytes = 0;         // of one microbatch, balanced
  std::int64_t recompute_ns = 0;  // of one microbatch; 0 where it is refused
  std::int64_t copy_ns = 0;       // of one microbatch, each way; 0 where it is refused
  std::vector<Refusal> refused;   // in some layer, each reason once
};

// In the order of the forward.
std::vector<OperatorSummary> summarize_operators(const AdaptiveRun::Stage& stage,
                                                 std::int64_t balanced_rows);

// [operator][ActionKind]: the share of its layers and of all microbatches that the action is taken
// in. Each row adds up to 1.
std::vector<std::vector<double>> action_shares(const AdaptiveRun::Stage& stage,
                                               const StageDecisions& decisions,
                                               std::int32_t microbatches);

// Pinned host memory of a card, at most: what any microbatch copies out on a lane with `rows`, for
// as many as are in flight.
std::int64_t pinned_host_bytes(const AdaptiveRun::Stage& stage, const StageDecisions& decisions,
                               std::int32_t microbatches, std::int32_t in_flight,
                               std::int64_t rows);

}  // namespace tidemark
