#include "planner/interleaved_run.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "models/input_error.h"
#include "models/job_reader.h"
#include "sim/lane_engine.h"
#include "traces/lane_rows.h"

namespace tidemark {
namespace {

std::int64_t iteration_ns(const Job& job, const AdaptiveRun& run, const RoutingCounts& counts) {
  const LaneRows rows(job, counts);
  const UnitDecisions decisions = decide_unit(*run.policy, run.program.stages.size(), rows);
  return run_units(run.program, {&rows, 1}, {}, {&decisions, 1}).iteration_ns;
}

bool fits(const AdaptiveRun& run) {
  return std::ranges::all_of(
      run.plan.stages, [](const AdaptivePlan::Stage& stage) { return stage.headroom_bytes >= 0; });
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
  InterleavedRun out{job, adaptive_run(job, profile, rows_bound), 0, 0};
  out.iteration_ns = out.own_schedule_ns = iteration_ns(job, out.run, typical);
  const std::optional<Job> combined = with_combined_slots(job);
  if (!combined) return out;
  for (const auto& [order, name] : slot_order_names()) {
    Job candidate = *combined;
    candidate.options.combined_slot_order = order;
    AdaptiveRun run = adaptive_run(candidate, profile, rows_bound);
    if (!fits(run)) continue;
    const std::int64_t ns = iteration_ns(candidate, run, typical);
    if (fits(out.run) && ns >= out.iteration_ns) continue;
    out.job = std::move(candidate);
    out.run = std::move(run);
    out.iteration_ns = ns;
  }
  return out;
}

}  // namespace tidemark
