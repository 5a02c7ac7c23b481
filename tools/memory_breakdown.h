// What a stage's memory consists of, for people: when it peaks, what is live then, and what each
// layer keeps for its backward.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "models/job.h"
#include "sim/simulation.h"

namespace tidemark {

// The moment of the peak of a stage's hottest lane.
struct PeakMoment {
  std::string pass;  // "forward", "backward", "transfer"; "between iterations" when nothing runs
  std::int32_t microbatch = -1;
  std::int32_t layer = -1;  // -1: outside layers
  std::string operator_name;

  std::string text() const;  // "forward of microbatch 6, layer 12"
};
PeakMoment peak_moment(const Simulation& simulation, std::int64_t stage);

// Live storages of the hottest lane at its peak, added up.
struct LiveGroup {
  std::string name;
  std::int64_t copies = 0;  // over layers and microbatches
  Bytes bytes;
};
struct LiveLayer {
  std::int32_t layer = -1;
  Bytes bytes;
};
struct LiveMemory {
  std::vector<LiveGroup> names;   // most bytes first
  std::vector<LiveLayer> layers;  // ascending
  Bytes bytes;
};
LiveMemory live_at_peak(const Job& job, const Simulation& simulation, std::int64_t stage);

// What one microbatch keeps between its forward and its backward.
struct KeptLayer {
  std::int32_t layer = -1;
  bool moe = false;
  Bytes bytes;
  std::vector<LiveGroup> names;  // most bytes first
};
// By layer, ascending; a layer's output counts as its own. Under balanced routing.
std::vector<KeptLayer> kept_by_layer(const Job& job, const Simulation& simulation,
                                     std::int64_t stage);

}  // namespace tidemark
