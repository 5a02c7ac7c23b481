// What computation hides: communication of tensor- and expert-parallel groups, and copies to and
// from the host.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "sim/lane_engine.h"

namespace tidemark {

// ns of a card, means over the stages. Exposed: while no kernel of the compute stream or of the
// shared expert's runs.
struct StreamTimes {
  std::int64_t computing = 0;
  std::int64_t tensor_communication = 0;
  std::int64_t exposed_tensor_communication = 0;
  std::int64_t expert_communication = 0;
  std::int64_t exposed_expert_communication = 0;
  std::int64_t copies = 0;
  std::int64_t exposed_copies = 0;
};

// Watches lane 0 of every stage of a run.
class StreamOverlap : public Recorder {
 public:
  explicit StreamOverlap(std::size_t stages) : stages_(stages) {}

  void on_operator(std::int32_t stage, std::int32_t step, std::int32_t op, const SlotProgram& slot,
                   std::span<const std::int64_t> start, std::span<const std::int64_t> end) override;
  void on_transfer(std::int32_t, std::int32_t, std::span<const std::int64_t>,
                   std::span<const std::int64_t>) override {}

  StreamTimes times() const;

 private:
  using Spans = std::vector<std::pair<std::int64_t, std::int64_t>>;  // start, end
  struct Stage {
    Spans computing;
    Spans gathering;   // tensor-parallel
    Spans exchanging;  // of experts
    Spans copying;
  };
  std::vector<Stage> stages_;
};

}  // namespace tidemark
