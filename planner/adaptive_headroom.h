// How much memory the adaptive policy's decisions share on each stage, in bytes of a card, into the
// stages of `plan`. `job`: as on_platform gives it.
#pragma once

#include <vector>

#include "hw_profiles/hardware_profile.h"
#include "models/job.h"
#include "planner/adaptive_plan.h"
#include "planner/ladder_policy.h"
#include "sim/program.h"

namespace tidemark {

// What is left of a card under the most frugal plan and the plan's bound; what the allocator holds
// beyond what is allocated counts as it is then, or under the lightest plan in calm. In a spike the
// card may have to wait for its device.
void measure_headroom(const Job& job, const HardwareProfile& profile, const Program& program,
                      const std::vector<LadderStage>& stages, AdaptivePlan& plan);

// Leaves of it what cards lack in calm while the CPU runs ahead, so that it need not wait.
void leave_room_to_run_ahead(const Job& job, const HardwareProfile& profile, const Program& program,
                             std::vector<LadderStage> stages, AdaptivePlan& plan);

}  // namespace tidemark
