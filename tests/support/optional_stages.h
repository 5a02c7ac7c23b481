// Stages of a job with everything optional that its catalogue has, and random decisions about it.
#pragma once

#include <cstdint>
#include <vector>

#include "hw_profiles/hardware_profile.h"
#include "models/job.h"
#include "planner/optional_actions.h"
#include "tests/support/random_jobs.h"

namespace tidemark {

std::vector<OptionalGraph> optional_stages(const Job& job, const HardwareProfile& profile);
std::vector<OperatorGraph> graphs_of(const std::vector<OptionalGraph>& stages);

// Drawn for every microbatch and entry.
StageDecisions random_decisions(const OptionalGraph& stage, std::int32_t microbatches, Rng& rng);

}  // namespace tidemark
