// One slot of two: a forward and a backward of different microbatches, interleaved.
#pragma once

#include <vector>

#include "sim/program.h"
#include "sim/slot_operators.h"

namespace tidemark {

// The operators of both programs in the given order, and of each program the data-parallel ones
// right behind all those that came before them. Where weight gradients have moved, what waited for
// all that the compute stream had been given waits for what its own program gives it there.
SlotProgram fuse_slots(const SlotProgram& forward, const SlotProgram& backward,
                       const std::vector<IssuedOperator>& order);

}  // namespace tidemark
