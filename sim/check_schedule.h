// Whether a schedule can run and computes what it should; shares no code with the builders.
//
//   - on every stage each microbatch of each chunk runs forward once and backward once (whole, or
//     the input's gradient and then the weights'), forward first
//     after fused slots weight gradients follow everywhere or nowhere
//   - what a slot reads is there: made by another slot of the stage, or received and waited for
//   - what is sent has been made; each message has one sender and one receiver
//   - no stages wait for each other for ever
#pragma once

#include <string>
#include <vector>

#include "sim/schedule.h"

namespace tidemark {

// Returns: what is wrong, a sentence each; empty: nothing.
std::vector<std::string> check_schedule(const Schedule& schedule);

}  // namespace tidemark
