// When the stages of a pipeline are done, from how long each of their slots takes.
//
// A slot starts when the one before it on its stage has ended and its input has come. A message
// takes `exchange_ns` from when both sides are ready. A stage that blocks in a transfer is ready
// when its copies are done too, and goes on when the transfer's last message has come; otherwise
// only the slot that needs a message waits for it.
//
// For slots F and B on p stages of 1F1B and m microbatches, without messages, this is the time
// (m + p - 1) (F + B); the W, E and S of planner/adapipe.h are its closed form for stages that
// differ. Left out: that a stage lets only one unfinished message go on in each direction where it
// does not buffer them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "sim/schedule.h"

namespace tidemark {

// From when the slot begins.
struct SlotTime {
  std::int64_t work_ns = 0;    // until the next slot may begin
  std::int64_t copies_ns = 0;  // until what runs beside is done
};

// `slot_time(stage, step)`: of a step that is a slot. Returns: [stage]. Throws: std::logic_error
// when stages wait for each other.
std::vector<std::int64_t> walk_pipeline(
    const Schedule& schedule, std::int64_t exchange_ns,
    const std::function<SlotTime(std::size_t stage, std::size_t step)>& slot_time);

}  // namespace tidemark
