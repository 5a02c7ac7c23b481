// A second interpretation of `Program`, written for obviousness: one card at a time, an event
// queue, a host and FIFO queues for each card. It shares no code with sim/lane_engine; the property
// tests demand the same start and end of every operator of every card.
//
// - The host of a card walks the steps of its stage. In a slot it issues the operators in order;
// each
//   takes `host_issue_ns`, and is in its stream's queue from then on. After an operator with
//   `host_waits` the host goes on when that is done.
// - The first operator of a queue starts once its dependencies are done; with a group of several
//   lanes, when all members have got that far, for the longest duration of any of them.
// - Before an exchange, and at the end, the host waits until all its queues are empty. An exchange
//   starts when both cards (the same lane of two neighbouring stages) have come to it, and both
//   hosts go on `exchange_ns` later.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "sim/decisions.h"
#include "sim/program.h"
#include "traces/lane_rows.h"

namespace tidemark {

struct Span {
  std::int64_t start = -1;
  std::int64_t end = -1;
  friend bool operator==(Span, Span) = default;
};

struct NaiveUnit {
  // [stage][step][operator of the slot][lane]; an exchange has one "operator".
  std::vector<std::vector<std::vector<std::vector<Span>>>> spans;
  std::vector<std::vector<std::int64_t>> finish_ns;  // [stage][lane]
};

struct NaiveRun {
  std::vector<NaiveUnit> units;
  std::int64_t iteration_ns = 0;
};

// `rows`: of each unit. Throws: std::logic_error when cards wait for each other for ever.
NaiveRun run_naively(const Program& program, std::span<const LaneRows> rows,
                     std::span<const UnitDecisions> decisions = {});

}  // namespace tidemark
