// The shortest order of a slot (slot_order.h): exact for two chains without a memory limit
// (two_chain_order.h); otherwise a dynamic program over positions, with dominance, as a beam search
// under a work limit, and a lower bound.
//
// - Floating operators of one stream that have the same chains as producer and consumer keep the
//   order of their deadlines, then of their earliest points, as a queue does (Megatron's delayed
//   weight gradients are one; for copies on a stream of their own no order is better, since earlier
//   points go with earlier deadlines). So every operator is in one of a few queues and a position
//   in each says what has been issued.
// - Of what can be issued next, the operator that would end first names a stream, and only
//   operators of that stream which could start before that end are tried: some shortest order is
//   among the "active" ones that this yields (B. Giffler, G. L. Thompson, Operations Research 8,
//   1960). While the memory limit can still bind, other streams' operators that could start before
//   that end are tried too; in the end everything that fits, if there is work left for a proof. The
//   serial orders are tried first, so one is found where the chains fit one after the other.
// - Of two states with equal positions one whose streams, chains and pending results are all free
//   no later makes the other needless.
// - A state's bound is max(the tails of its next operators, the work left on its streams). The beam
//   keeps the lowest bounds, ties by the time that streams have idled; of equal positions one at
//   first, so that it spreads over the positions, then more. It is widened until an order meets the
//   lower bound, nothing was cut off (then the order is optimal, if the queues of floating
//   operators cost nothing) or the work is spent, of which every level gets an equal share.
// - Consecutive operators of one chain are one step where their stream has no other user, nothing
//   waits for the inner ones and there is no memory limit: splitting them could not change a time.
//
// The lower bound is the largest of: the critical path; each stream's work with heads and tails as
// a preemptive one-machine schedule (J. R. Jackson 1956; J. Carlier, European Journal of
// Operational Research 11, 1982); every pair of chains as a two-chain problem, where a chain may
// continue into another that waits for it.
#pragma once

#include <memory>

#include "planner/slot_order.h"

namespace tidemark {

class Interleaver {
 public:
  Interleaver();
  ~Interleaver();

  // The result lives until the next call. Allocates only for problems larger than any before.
  // Requires: a validated problem.
  const StreamOrder& solve(const SlotProblem& problem, OrderLimit limit);

 private:
  struct Workspace;
  std::unique_ptr<Workspace> workspace_;
};

// Throws: InputError when the problem is not valid.
StreamOrder interleave(const SlotProblem& problem, OrderLimit limit);

}  // namespace tidemark
