#include "planner/interleaved_run.h"

#include <algorithm>
#include <functional>
#include <span>
#include <utility>

#include "models/input_error.h"
#include "sim/lane_engine.h"
#include "sim/simulation.h"
#include "traces/lane_rows.h"

namespace tidemark {
namespace {

std::int64_t iteration_ns(const Job& job, const AdaptiveRun& run, const RoutingCounts& counts) {
  const LaneRows rows(job, counts);
  const UnitDecisions decisions = decide_unit(*run.policy, run.program.stages.size(), rows);
  return run_units(run.program, {&rows, 1}, {}, {&decisions, 1}).iteration_ns;
}

// With nothing given up: no policy is faster on this schedule.
std::int64_t least_iteration_ns(const Job& given, const HardwareProfile& profile,
                                const RoutingCounts& counts) {
  const Job job = on_platform(given, profile);
  const LaneRows rows(job, counts);
  return run_units(build_program(job, profile), {&rows, 1}).iteration_ns;
}

bool fits(const AdaptiveRun& run) {
  return std::ranges::all_of(
      run.plan.stages, [](const AdaptivePlan::Stage& stage) { return stage.headroom_bytes >= 0; });
}

using Provision = std::function<AdaptiveRun(const Job&)>;

// With the first of these orders that fits.
std::optional<InterleavedRun> combined_run(const Job& job, std::span<const SlotOrder> orders,
                                           const Provision& provision,
                                           const RoutingCounts& typical) {
  std::optional<Job> combined = with_combined_slots(job);
  if (!combined) return std::nullopt;
  for (const SlotOrder order : orders) {
    combined->options.combined_slot_order = order;
    AdaptiveRun run = provision(*combined);
    if (!fits(run)) continue;
    const std::int64_t ns = iteration_ns(*combined, run, typical);
    return InterleavedRun{std::move(*combined), std::move(run), ns, 0};
  }
  return std::nullopt;
}

InterleavedRun faster_run(const Job& job, const HardwareProfile& profile,
                          std::span<const SlotOrder> orders, const Provision& provision,
                          const RoutingCounts& typical) {
  std::optional<InterleavedRun> combined = combined_run(job, orders, provision, typical);
  if (combined) {
    combined->own_schedule_ns = least_iteration_ns(job, profile, typical);
    if (combined->iteration_ns <= combined->own_schedule_ns) return std::move(*combined);
  }
  InterleavedRun own{job, provision(job), 0, 0};
  own.iteration_ns = own.own_schedule_ns = iteration_ns(job, own.run, typical);
  if (!combined || (fits(own.run) && own.iteration_ns <= combined->iteration_ns)) return own;
  combined->own_schedule_ns = own.iteration_ns;
  return std::move(*combined);
}

}  // namespace

std::optional<Job> with_combined_slots(const Job& job) {
  Job out = job;
  if (out.layout.virtual_pipeline > 1) {
    out.options.overlap_moe_expert_parallel_comm = true;
  } else {
    out.layout.schedule = PipelineSchedule::kCombined1F1B;
  }
  out.options.moe_shared_expert_overlap = false;
  out.options.delay_wgrad_compute = true;
  try {
    validate(out, "");
  } catch (const InputError&) {
    return std::nullopt;
  }
  return out;
}

Job without_combined_slots(Job job) {
  if (!job.combines_slots()) return job;
  job.options.overlap_moe_expert_parallel_comm = false;
  job.options.delay_wgrad_compute = false;
  job.options.ep_overlap_early_attn_memory_release = false;
  if (job.layout.schedule == PipelineSchedule::kCombined1F1B) {
    job.layout.schedule = PipelineSchedule::kOneForwardOneBackward;
  }
  return job;
}

InterleavedRun interleaved_run(const Job& job, const HardwareProfile& profile, double rows_bound,
                               const RoutingCounts& typical) {
  constexpr SlotOrder kOrders[] = {SlotOrder::kShortest, SlotOrder::kMegatron};
  return faster_run(
      job, profile, kOrders, [&](const Job& j) { return adaptive_run(j, profile, rows_bound); },
      typical);
}

InterleavedRun bagualu2_run(const Job& job, const HardwareProfile& profile,
                            const RoutingCounts& typical) {
  constexpr SlotOrder kOrders[] = {SlotOrder::kMegatron};
  return faster_run(
      job, profile, kOrders, [&](const Job& j) { return heuristic_run(j, profile); }, typical);
}

}  // namespace tidemark
