// The time of an iteration under decisions, from prices on top of one run that keeps everything.
//
// That plain run, by the engine, gives what each slot takes. Decisions add operators to slots; what
// they take changes by the difference of their prices with and without these. A slot's price takes
// a card as five resources, each of which serves operators in the order of their issue, when what
// they wait for is done:
//
//   kernels, collectives inside the stage, data-parallel collectives, copies out, copies in
//
// all on the lane that receives most rows. So a re-run costs its kernels and what of its
// collectives no kernel hides; copies of one direction queue, and what they expose is how late they
// are for the slot's end (out, where the stage blocks in a transfer) or for the first operator that
// reads them (in). planner/pipeline_walk.h adds the slots up through the schedule, where fill,
// steady state and drain differ by themselves.
//
// Left out: lanes other than the hottest, several queues of one resource, and that copies may still
// be on their way when the next slot begins.
#pragma once

#include <cstdint>
#include <vector>

#include "planner/pipeline_walk.h"
#include "sim/decisions.h"
#include "sim/program.h"
#include "traces/lane_rows.h"

namespace tidemark {

class TimePrediction {
 public:
  // Of one unit that receives `rows`, which must outlive this. Cost: an iteration of the engine.
  TimePrediction(const Program& plain, const LaneRows& rows);

  std::int64_t plain_ns() const { return plain_ns_; }
  // `program`: the plain one with what recomputes and offloads in it. `decisions`: null where no
  // optional action is taken. Cost: a pass over the operators of every slot, on one lane.
  std::int64_t iteration_ns(const Program& program, const UnitDecisions* decisions) const;

 private:
  SlotTime price(const Program& program, std::int32_t stage, const Slot& slot,
                 const StageDecisions* decisions) const;

  const LaneRows& rows_;
  std::int64_t plain_ns_ = 0;
  // [stage][step]: what slots of the plain run take beyond their price, mostly negative.
  std::vector<std::vector<SlotTime>> beyond_price_;
};

}  // namespace tidemark
