// The question that interleaving answers: in which order should the operators of one slot be
// issued, between two gates, so that the slot is as short as it can be within the memory limit?
//
// Chains run in their own order: the forward of one microbatch, the backward of another, the
// recomputation that belongs to the backward. Floating operators belong to no chain: a weight
// gradient has an earliest point, a copy also a deadline (an offload is waited for where its
// storage is released, a reload where it is read). An order is one sequence over all operators. It
// is what the host issues, so it fixes each stream's queue and the memory; times follow from it:
//
//   start(o) = max(end of the operator before o in its stream's queue, ends of its predecessors)
//
// The host's own time is left out. Lanes of a group differ in durations and share one order.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "planner/solve_status.h"

namespace tidemark {

struct SlotOperator {
  std::int32_t stream = 0;
  std::int64_t duration_ns = 0;
  std::int64_t before_bytes = 0;  // change of the memory in use when it is issued, and
  std::int64_t after_bytes = 0;   // right after that: temporaries, storages that it used last
};

// Operator `position` of chain `chain`; by default none.
struct ChainPoint {
  std::int32_t chain = -1;
  std::int32_t position = 0;

  bool exists() const { return chain >= 0; }
  friend bool operator==(ChainPoint, ChainPoint) = default;
};

struct Chain {
  std::string name;  // in messages
  std::vector<SlotOperator> operators;
};

// `first` is done before `then` starts: the recomputation of a layer before its backward.
struct Precedence {
  ChainPoint first;
  ChainPoint then;
};

struct FloatingOperator {
  SlotOperator work;
  ChainPoint after;   // starts when this is done
  ChainPoint before;  // done before this starts
};

// Memory in use may reach `limit_bytes`. It depends on what has been issued, never on times.
struct MemoryLimit {
  static constexpr std::int64_t kNone = std::numeric_limits<std::int64_t>::max();

  std::int64_t held_bytes = 0;  // in use when the slot begins
  std::int64_t limit_bytes = kNone;

  bool is_set() const { return limit_bytes != kNone; }
};

// Operators are numbered chain by chain, then the floating ones.
struct SlotProblem {
  std::vector<Chain> chains;
  std::vector<Precedence> precedences;
  std::vector<FloatingOperator> floating;
  MemoryLimit memory;
};

// What a search may spend: partial orders looked at.
struct OrderLimit {
  std::int64_t nodes = 6 << 10;
};

struct StreamOrder {
  std::vector<std::int32_t> order;  // operators; empty when there is none
  std::int64_t makespan_ns = 0;
  std::int64_t bound_ns = 0;                 // no order is shorter
  SolveStatus status = SolveStatus::kLimit;  // infeasible: none stays within the memory limit
  std::int64_t nodes = 0;                    // spent
};

// The operators by number, each with its predecessors.
struct SlotGraph {
  std::vector<SlotOperator> operators;
  std::vector<std::int32_t> chain_begin;  // [chain + 1]; the last is the first floating operator
  std::vector<std::int32_t> pred_begin;   // [operator + 1], into preds
  std::vector<std::int32_t> preds;
  std::int32_t num_streams = 0;

  // Keeps its memory from one problem to the next. Requires: points that exist.
  void assign(const SlotProblem& problem);

  std::int32_t size() const { return static_cast<std::int32_t>(operators.size()); }
  std::int32_t at(ChainPoint p) const {
    return chain_begin[static_cast<std::size_t>(p.chain)] + p.position;
  }
  std::span<const std::int32_t> preds_of(std::int32_t op) const {
    const auto o = static_cast<std::size_t>(op);
    return {preds.data() + pred_begin[o], preds.data() + pred_begin[o + 1]};
  }

 private:
  std::vector<std::int32_t> fill_;
};

// Streams, durations and points that exist, deadlines after their producers, and no operator that
// waits for itself. Throws: InputError with every violation.
void validate(const SlotProblem& problem);

// "backward[3]", "floating[0]".
std::string operator_name(const SlotProblem& problem, std::int32_t op);

// When the last operator ends. `end_ns`: [operator], set. Requires: a legal order.
std::int64_t order_makespan(const SlotGraph& graph, std::span<const std::int32_t> order,
                            std::vector<std::int64_t>& end_ns);
std::int64_t order_makespan(const SlotProblem& problem, std::span<const std::int32_t> order);

// Whether the memory limit holds at every operator. Requires: a legal order.
bool within_memory(const SlotGraph& graph, const MemoryLimit& memory,
                   std::span<const std::int32_t> order);

}  // namespace tidemark
