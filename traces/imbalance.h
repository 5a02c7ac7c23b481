// How unevenly rows are spread over expert-parallel ranks: the ratio of the fullest rank's rows to
// the mean, which BaGuaLu-2 and others report.
//
// What "imbalance of an iteration" means differs between sources; BaGuaLu-2's text does not say,
// its telemetry prints a ratio per microbatch, layer and expert-parallel group.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "traces/routing.h"

namespace tidemark {

enum class RatioOf {
  kMicrobatch,  // of each microbatch and layer; an iteration's is the largest
  kLayer,       // of each layer, its microbatches added up; an iteration's is the largest
  kCard,        // of microbatches and layers added up
};

const std::string& name_of(RatioOf ratio);
const std::vector<std::string>& ratio_names();  // in the order of RatioOf

// max / mean of neighbouring experts' sums. Requires: ranks > 0 that divide the number of counts.
// Returns: 1 when there are no rows.
double rank_ratio(std::span<const std::int64_t> counts, std::int64_t ranks);

// Of a unit's iteration. Requires: ranks that divide the number of experts.
double iteration_ratio(const RoutingCounts& counts, std::int64_t ranks, RatioOf ratio);

}  // namespace tidemark
