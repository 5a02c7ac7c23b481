// The shortest order of two chains that share streams, exactly: the job shop of two jobs.
//
// In the plane whose axes are the two chains' operators laid end to end, a schedule is a path from
// the origin to the far corner that goes right, up, or diagonally (both chains run); its length is
// the makespan. Two operators of one stream span a rectangle that the path may not enter.
//
//   second
//     ^   .  .  .  .
//     |   .  A----.
//     |   . /|####|
//     |   v  |####B
//     +---------------> first
//
// From a point v where both chains start afresh the path goes diagonally until it hits a rectangle,
// and passes it at A (the second chain's operator first) or at B. Either takes max(dx, dy) from v:
// the chain that is ahead waits on a grid line, inside no rectangle. From where the diagonal hits,
// B would be out of reach, since second has already begun what it should have held back.
//
// A shortest path over grid points, each with one diagonal walk: O(n m) walks at most, most of them
// a few cells long.
//
// Source: S. B. Akers, A graphical approach to production scheduling problems, Operations Research
// 4 (1956); P. Brucker, An efficient algorithm for the job-shop problem with two jobs, Computing 40
// (1988). Operators may repeat streams. Without a memory limit, which see interleaver.h.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "planner/slot_order.h"

namespace tidemark {

class TwoChainSolver {
 public:
  // Returns: the least makespan. Requires: durations >= 0. Allocates only for chains longer than
  // any before.
  std::int64_t solve(std::span<const SlotOperator> first, std::span<const SlotOperator> second);

  // Of the last `solve`, in issue order: i is first[i], first.size() + j is second[j].
  void order(std::vector<std::int32_t>& out) const;

  // Grid points that the last `solve` left from.
  std::int64_t nodes() const { return nodes_; }

 private:
  std::vector<std::int64_t> first_start_;   // [i], and the end of the last
  std::vector<std::int64_t> second_start_;  // [j], likewise
  std::vector<std::int64_t> distance_;      // [i][j]
  std::vector<std::int32_t> from_;          // [i][j]: the grid point before
  mutable std::vector<std::int32_t> path_;
  std::int64_t nodes_ = 0;
};

// Throws: InputError for a negative duration.
StreamOrder two_chain_order(std::span<const SlotOperator> first,
                            std::span<const SlotOperator> second);

}  // namespace tidemark
