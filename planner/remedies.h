// What would free memory on the fullest stage: the levers that Megatron-LM offers by a flag.
//
// A lever that a job can express is simulated: the gain is what the changed job leaves free more,
// and its price in time is known. Recompute cannot be simulated yet: there the bytes are an upper
// bound, everything live at the peak that the re-run would make again.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "hw_profiles/hardware_profile.h"
#include "models/job.h"
#include "sim/simulation.h"

namespace tidemark {

struct Remedy {
  std::string change;  // in words
  std::string flags;   // Megatron's
  Bytes freed;         // of the allocated peak
  struct Simulated {
    std::int64_t time_change_ns = 0;  // of an iteration
    bool fits = false;
  };
  std::optional<Simulated> simulated;  // empty: `freed` is an upper bound
};

// Those that free something on `stage` at its peak; most bytes first. Levers that change the layout
// keep the number of cards and the batch; what they free counts on the fullest stage afterwards.
// Cost: a simulation for each lever that applies.
std::vector<Remedy> find_remedies(const Job& job, const HardwareProfile& profile,
                                  const Simulation& simulation, std::int64_t stage);

}  // namespace tidemark
