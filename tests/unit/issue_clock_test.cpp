// One card that runs ahead of its device.
#include "sim/issue_clock.h"

#include <gtest/gtest.h>

#include "models/job.h"
#include "traces/routing.h"

namespace tidemark::issue_clock_test {
namespace {

// One slot of `operators` operators that take 10 ns each and 1 ns to issue, then an empty backward.
Program slow_device(std::int32_t operators) {
  Program program;
  program.schedule = build_1f1b(1, 1);
  program.host_issue_ns = 1;
  program.stages.resize(1);
  ChunkProgram& chunk = program.stages[0].chunks.emplace_back();
  for (std::int32_t i = 0; i < operators; ++i) {
    ProgramOp& op = chunk.first_forward.ops.emplace_back();
    op.operator_index = i;
    op.cost.fixed_ns = 10;
  }
  return program;
}

TEST(ClockRecorder, TheCpuIsNeverMoreThanALaunchQueueAhead) {
  const Program program = slow_device(1500);
  ClockRecorder clocks(program, {0}, nullptr);
  const LaneRows no_routing(Job{}, RoutingCounts{});
  Recorder* const recorders[] = {&clocks};
  run_units(program, {&no_routing, 1}, recorders);
  const auto& times = clocks.clock(0).steps[0];
  ASSERT_EQ(times.size(), 1500u);
  // The device does operator i from 1 + 10 i to 11 + 10 i.
  EXPECT_EQ(times[1023].issued_ns, 1024);
  EXPECT_EQ(times[1024].issued_ns, 1025) << "the device was done with operator 0 long ago";
  EXPECT_EQ(times[1499].issued_ns, times[1499 - 1024].done_ns + 1);
  EXPECT_EQ(times[1499 - 1024].done_ns, 11 + 10 * (1499 - 1024));
}

}  // namespace
}  // namespace tidemark::issue_clock_test
