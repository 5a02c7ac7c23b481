// How much of the expert-parallel communication no computation hides.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "sim/lane_engine.h"

namespace tidemark {

// Watches lane 0 of every stage of a run.
class ExposedCommunication : public Recorder {
 public:
  explicit ExposedCommunication(std::size_t stages) : stages_(stages) {}

  void on_operator(std::int32_t stage, std::int32_t step, std::int32_t op, const SlotProgram& slot,
                   std::span<const std::int64_t> start, std::span<const std::int64_t> end) override;
  void on_transfer(std::int32_t, std::int32_t, std::span<const std::int64_t>,
                   std::span<const std::int64_t>) override {}

  // ns, means over the stages: all of it, and what runs while no kernel of the compute stream or of
  // the shared expert's does.
  std::int64_t all_ns() const;
  std::int64_t exposed_ns() const;

 private:
  using Spans = std::vector<std::pair<std::int64_t, std::int64_t>>;  // start, end
  struct Stage {
    Spans computing;
    Spans exchanging;
  };
  std::vector<Stage> stages_;
};

}  // namespace tidemark
