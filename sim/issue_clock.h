// When the CPU issues each operator of a stage and when the device is done with it, on one lane:
// the allocator asks on the CPU whether another stream has finished with a block.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "sim/lane_engine.h"

namespace tidemark {

// Operators that the CPU may have queued on the device before a launch blocks. CUDA's launch queue
// holds about 1,024 kernels (not documented; assumed for HIP too).
constexpr std::size_t kLaunchQueue = 1024;

struct StageClock {
  struct Times {
    std::int64_t issued_ns = 0;
    std::int64_t done_ns = 0;
  };
  std::vector<std::vector<Times>>
      steps;  // [step][operator of the graph's pass]; transfers and waits: one
};

// Collects the clocks of stages, each of its own lane (-1: of none), and passes everything on.
class ClockRecorder : public Recorder {
 public:
  ClockRecorder(const Program& program, std::vector<std::int64_t> lanes, Recorder* next);

  bool watches(std::int32_t stage) const override {
    return lanes_[static_cast<std::size_t>(stage)] >= 0 || next_ != nullptr;
  }
  void on_operator(std::int32_t stage, std::int32_t step, std::int32_t op, const SlotProgram& slot,
                   std::span<const std::int64_t> start, std::span<const std::int64_t> end) override;
  void on_transfer(std::int32_t stage, std::int32_t step, std::span<const std::int64_t> start,
                   std::span<const std::int64_t> end) override;

  const StageClock& clock(std::size_t stage) const { return clocks_[stage]; }

 private:
  // The launch queue as a ring: when the device is done with each of the last launches.
  struct Launches {
    std::array<std::int64_t, kLaunchQueue> done_ns{};
    std::size_t count = 0;
  };

  const Program& program_;
  std::vector<std::int64_t> lanes_;  // [stage]
  Recorder* next_;
  std::vector<StageClock> clocks_;
  std::vector<std::int64_t> host_;  // [stage]: as the engine advances it, or later
  std::vector<Launches> launches_;  // [stage]
};

}  // namespace tidemark
