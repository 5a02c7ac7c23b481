#include "planner/time_bound.h"

#include <vector>

#include "planner/static_policies.h"
#include "sim/lane_engine.h"
#include "sim/parallel.h"
#include "sim/simulation.h"
#include "traces/lane_rows.h"

namespace tidemark {

TimeBound::TimeBound(const Job& job, const HardwareProfile& profile, const RoutingSource& routing,
                     bool alike)
    : job_(on_platform(static_policy(job, "keep-everything").job, profile)),
      program_(build_program(job_, profile)),
      routing_(routing),
      units_(alike ? 1 : job.layout.units()) {}

std::int64_t TimeBound::of_iteration(std::int64_t iteration, std::int64_t attempt) {
  const std::int64_t drawn = drawn_iteration(iteration, attempt);
  const auto [it, fresh] = known_.try_emplace(drawn, 0);
  if (!fresh) return it->second;
  std::vector<LaneRows> rows(static_cast<std::size_t>(units_), LaneRows(job_));
  parallel_for(rows.size(), [&](std::size_t u) {
    thread_local RoutingCounts counts;
    routing_.counts(drawn, static_cast<std::int64_t>(u), counts);
    rows[u].assign(counts);
  });
  return it->second = run_units(program_, rows).iteration_ns;
}

double TimeBound::reached(const RunResult& run) {
  std::int64_t bound = 0;
  for (const IterationRecord& record : run.iterations) {
    if (!record.out_of_memory) bound += of_iteration(record.iteration, record.attempt);
  }
  return run.total_ns == 0 ? 0 : static_cast<double>(bound) / static_cast<double>(run.total_ns);
}

}  // namespace tidemark
