#include "tools/stream_overlap.h"

#include <array>

#include <gtest/gtest.h>

namespace tidemark::stream_overlap_test {
namespace {

ProgramOp on(Stream stream, TimeClass time_class, Group group = Group::kNone) {
  ProgramOp op;
  op.stream = stream;
  op.time_class = time_class;
  op.group = group;
  return op;
}

//   compute          0 ... 10          20 ... 30
//   shared experts         5 ...... 15
//   expert exchange     8 ....................... 32
//   copy                      12 .. 18
//   gather                                                 34 .. 36
TEST(StreamOverlap, IsExposedWhileNothingComputes) {
  const SlotProgram slot{
      {on(Stream::kCompute, TimeClass::kGemm), on(Stream::kSharedExpert, TimeClass::kGemm),
       on(Stream::kExpertComm, TimeClass::kExpertComm, Group::kExpert),
       on(Stream::kDeviceToHost, TimeClass::kHostCopy), on(Stream::kCompute, TimeClass::kGemm),
       on(Stream::kTensorComm, TimeClass::kTensorComm, Group::kTensor)},
      {},
      0};
  constexpr std::array<std::array<std::int64_t, 2>, 6> kSpans{
      {{0, 10}, {5, 15}, {8, 32}, {12, 18}, {20, 30}, {34, 36}}};
  StreamOverlap overlap(2);  // the second stage does nothing
  for (std::size_t op = 0; op < kSpans.size(); ++op) {
    overlap.on_operator(0, 0, static_cast<std::int32_t>(op), slot, {&kSpans[op][0], 1},
                        {&kSpans[op][1], 1});
  }
  const StreamTimes times = overlap.times();
  EXPECT_EQ(times.computing, (15 + 10) / 2);
  EXPECT_EQ(times.expert_communication, 24 / 2);
  EXPECT_EQ(times.exposed_expert_communication, (5 + 2) / 2);  // 15 to 20, 30 to 32
  EXPECT_EQ(times.tensor_communication, 2 / 2);
  EXPECT_EQ(times.exposed_tensor_communication, 2 / 2);
  EXPECT_EQ(times.copies, 6 / 2);
  EXPECT_EQ(times.exposed_copies, 3 / 2);  // 15 to 18
}

}  // namespace
}  // namespace tidemark::stream_overlap_test
