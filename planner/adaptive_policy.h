// Provisioning while a job runs: at each gate the lightest plan that leaves the future recoverable.
//
// A state is recoverable if every card stays within its limit when everything still to come gives
// up all it can, for rows up to a stated bound (a multiple of the balanced load). What a
// microbatch holds more than that is its excess; the excess of all that is in flight, on any lane,
// stays below the headroom that the most frugal plan leaves under the bound. A gate takes its
// share of what is left, in proportion to what it would like to keep and what is still to come
// before the pipeline is full; when a microbatch's backward ends, its excess comes back. So a
// spike's layers climb the ladder (planner/action_ladder.h) and calm ones come down, without
// restart or configuration.
//
// Where the job's combined slots have an order of the planner (planner/slot_interleaving.h), it is
// sought for what the policy takes of them under the balanced load.
//
// Deciding costs CPU time at each gate, while the device has nothing to do.
//
// Bytes are reserved ones: the headroom is that of the emulated allocator. In calm it leaves room
// for blocks that other streams still use while the CPU runs ahead; in a spike a card may have to
// wait for its device (CardMemory::alloc_retries), rather than give up more from the start.
//
// Where the hardware profile says how much host memory a node has, no plan pins more than a card's
// share of it, for rows up to the bound and as many microbatches as are in flight.
#pragma once

#include <cstdint>
#include <vector>

#include "hw_profiles/hardware_profile.h"
#include "models/job.h"
#include "planner/adaptive_plan.h"
#include "planner/managed_run.h"
#include "planner/optional_actions.h"

namespace tidemark {

// Assumed, of one decision: BaGuaLu-2's 10 ms for all of an iteration, shared by 64 microbatches of
// 6 MoE layers. tests/bench/policy_bench.cpp measures what ours takes.
constexpr std::int64_t kDecisionNs = 25'000;

struct AdaptiveRun : ManagedRun {
  struct Stage {
    ActionCatalogue catalogue;
    std::vector<OptionalAction> actions;  // [action of the program]
  };

  AdaptivePlan plan;
  std::vector<Stage> stages;
};

// Prepares a plan, safe for `rows_bound` >= 1 times the balanced load of a card. Activations are
// saved, recomputed or offloaded, and quantized where the job allows it (quantize_activations).
AdaptiveRun adaptive_run(const Job& job, const HardwareProfile& profile, double rows_bound);
// The same by heuristics, as a planner without a solver and without a bound on the routing to come
// would do: a greedy ladder (planner/greedy_ladder.h), and room for balanced loads only.
AdaptiveRun heuristic_run(const Job& job, const HardwareProfile& profile);
// As adaptive_run decided once, for rows at the bound: every microbatch of every iteration gives up
// alike.
ManagedRun fixed_run(const Job& job, const HardwareProfile& profile, double rows_bound);
// With a plan that was prepared before. Throws: InputError where it does not suit the job or pins
// more host memory than the profile has.
AdaptiveRun planned_run(const Job& job, const HardwareProfile& profile, const AdaptivePlan& plan);

}  // namespace tidemark
