// One slot of two: a forward and a backward of different microbatches, interleaved.
#pragma once

#include <vector>

#include "sim/program.h"
#include "sim/slot_operators.h"

namespace tidemark {

// The operators of both programs in the given order, each behind those of its own program that came
// before it. Data-parallel ones follow the operator they followed.
SlotProgram fuse_slots(const SlotProgram& forward, const SlotProgram& backward,
                       const std::vector<IssuedOperator>& order);

}  // namespace tidemark
