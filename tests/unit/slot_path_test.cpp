#include "tools/slot_path.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "sim/simulation.h"
#include "tests/support/jobs.h"

namespace tidemark::slot_path_test {
namespace {

using After = PathOperator::After;
using testing::ElementsAre;

std::vector<std::int32_t> operators(const std::vector<PathOperator>& path) {
  std::vector<std::int32_t> out;
  for (const PathOperator& p : path) out.push_back(p.op);
  return out;
}
std::vector<After> reasons(const std::vector<PathOperator>& path) {
  std::vector<After> out;
  for (const PathOperator& p : path) out.push_back(p.after);
  return out;
}

ProgramOp on(Stream stream) {
  ProgramOp op;
  op.stream = stream;
  return op;
}

//   compute      0 a 10   11 b 14      18 d 28
//   exchange              10 c 18
TEST(CriticalPath, FollowsWhatEachOperatorWaitedFor) {
  SlotProgram slot;
  slot.ops = {on(Stream::kCompute), on(Stream::kExpertComm), on(Stream::kCompute),
              on(Stream::kCompute)};
  slot.deps = {0, 1};
  slot.ops[1].dep_begin = 0;
  slot.ops[1].dep_end = 1;
  slot.ops[3].dep_begin = 1;
  slot.ops[3].dep_end = 2;
  const SlotRun run{{{0, 10}, {10, 18}, {11, 14}, {18, 28}}, 28};
  const auto path = critical_path(slot, run);
  EXPECT_THAT(operators(path), ElementsAre(0, 1, 3));
  EXPECT_THAT(reasons(path), ElementsAre(After::kHost, After::kDependency, After::kDependency));
}

// The host goes on 2 after a gate.
TEST(CriticalPath, GoesOverTheGateThatTheHostWaitedAt) {
  SlotProgram slot;
  slot.ops = {on(Stream::kCompute), on(Stream::kExpertComm), on(Stream::kCompute),
              on(Stream::kCompute)};
  slot.ops[1].host_waits = true;
  const SlotRun run{{{0, 3}, {0, 9}, {11, 20}, {20, 21}}, 21};
  const auto path = critical_path(slot, run);
  EXPECT_THAT(operators(path), ElementsAre(1, 2, 3));
  EXPECT_THAT(reasons(path), ElementsAre(After::kHost, After::kHost, After::kStream));
}

// A path has no gaps but those of the host, and ends when the slot does.
TEST(CriticalPath, OfARealSlotIsAChain) {
  Job job = small_moe_job(4, 8);
  job.layout.schedule = PipelineSchedule::kCombined1F1B;
  const HardwareProfile profile = load_hardware_profile("bw1000");
  const Program program = build_program(on_platform(job, profile), profile);
  const LaneRows rows(job, balanced_routing(job));
  const ExplainedSlot explained = explain_slot(program, 0, rows);
  ASSERT_NE(explained.slot, nullptr);
  std::int64_t end = 0;
  for (const PathOperator& p : explained.path) {
    const SlotRun::Span& span = explained.run.spans[static_cast<std::size_t>(p.op)];
    if (p.after == After::kHost) {
      EXPECT_GE(span.start_ns, end);
    } else {
      EXPECT_EQ(span.start_ns, end);
    }
    end = span.end_ns;
  }
  EXPECT_EQ(end, explained.run.ns);
}

}  // namespace
}  // namespace tidemark::slot_path_test
