// A bound on what any policy could reach: the time of an iteration that keeps everything, on cards
// without limit, under the routing that the iteration gets.
//
// It is a true bound for policies that save, recompute or offload the same job's storages and leave
// its split of layers, its schedule and the order of its operators alone. What an action does is
// adding operators to a program. Operators keep their order in their streams, start when the latest
// of what they wait for is done, and take the same time whatever runs beside them; so one that is
// added only delays others, and no iteration ends earlier for it. Knowing the routing in advance
// does not help either. It is not one for policies that change the work, such as dropping rows
// beyond a capacity.
//
// The exposed time that memory forces on a clairvoyant policy (planner/clairvoyant_bound.h) is not
// added: copies and re-runs may hide in the pipeline's bubble and in waits for other stages, and
// the part that must not is not known without scheduling it. So the bound is loose where memory is
// short.
#pragma once

#include <cstdint>
#include <map>

#include "hw_profiles/hardware_profile.h"
#include "models/job.h"
#include "sim/program.h"
#include "sim/training_run.h"
#include "traces/routing_source.h"

namespace tidemark {

class TimeBound {
 public:
  // The job's own memory settings do not matter. `alike`, and what must outlive this: as for
  // TrainingRun.
  TimeBound(const Job& job, const HardwareProfile& profile, const RoutingSource& routing,
            bool alike);

  std::int64_t of_iteration(std::int64_t iteration, std::int64_t attempt);
  // The bound of all iterations that finished, over the time that the run took with everything it
  // lost. 0 when none finished.
  double reached(const RunResult& run);

 private:
  const Job job_;
  const Program program_;
  const RoutingSource& routing_;
  const std::int64_t units_;
  std::map<std::int64_t, std::int64_t> known_;  // by the routing's iteration
};

}  // namespace tidemark
