#include "planner/two_chain_order.h"

#include <algorithm>
#include <limits>

#include "models/input_error.h"

namespace tidemark {
namespace {

constexpr std::int64_t kUnreached = std::numeric_limits<std::int64_t>::max();

void lay_end_to_end(std::span<const SlotOperator> chain, std::vector<std::int64_t>& start) {
  start.clear();
  std::int64_t at = 0;
  for (const SlotOperator& o : chain) {
    start.push_back(at);
    at += o.duration_ns;
  }
  start.push_back(at);
}

}  // namespace

std::int64_t TwoChainSolver::solve(std::span<const SlotOperator> first,
                                   std::span<const SlotOperator> second) {
  lay_end_to_end(first, first_start_);
  lay_end_to_end(second, second_start_);
  const std::size_t n = first.size();
  const std::size_t m = second.size();
  const std::size_t row = m + 1;
  const std::int64_t* const x = first_start_.data();
  const std::int64_t* const y = second_start_.data();
  distance_.assign((n + 1) * row, kUnreached);
  from_.resize((n + 1) * row);
  distance_[0] = 0;
  nodes_ = 0;
  std::int64_t shortest = kUnreached;  // to the far corner
  std::size_t last = 0;                // the grid point before it

  // Row by row is an order in which every path goes forward.
  for (std::size_t i = 0; i <= n; ++i) {
    for (std::size_t j = 0; j <= m; ++j) {
      const std::size_t point = i * row + j;
      const std::int64_t here = distance_[point];
      if (here == kUnreached) continue;
      const std::int64_t rest = std::max(x[n] - x[i], y[m] - y[j]);
      if (here + rest >= shortest) continue;
      ++nodes_;
      const auto relax = [&](std::size_t a, std::size_t b) {
        const std::int64_t d = here + std::max(x[a] - x[i], y[b] - y[j]);
        const std::size_t corner = a * row + b;
        if (d >= distance_[corner]) return;
        distance_[corner] = d;
        from_[corner] = static_cast<std::int32_t>(point);
      };
      std::size_t a = i;
      std::size_t b = j;
      std::int64_t walked = 0;
      while (a < n && b < m) {
        const std::int64_t first_ends = x[a + 1] - x[i];
        const std::int64_t second_ends = y[b + 1] - y[j];
        if (first[a].stream == second[b].stream) {
          // An operator without duration goes before one that begins now.
          if (first_ends == walked && y[b] - y[j] == walked) {
            ++a;
            continue;
          }
          if (second_ends == walked && x[a] - x[i] == walked) {
            ++b;
            continue;
          }
          relax(a, b + 1);
          relax(a + 1, b);
          break;
        }
        walked = std::min(first_ends, second_ends);
        a += first_ends == walked;
        b += second_ends == walked;
      }
      if (a == n || b == m) {
        shortest = here + rest;
        last = point;
      }
    }
  }
  distance_[n * row + m] = shortest;
  from_[n * row + m] = static_cast<std::int32_t>(last);
  return shortest;
}

void TwoChainSolver::order(std::vector<std::int32_t>& out) const {
  const std::size_t n = first_start_.size() - 1;
  const std::size_t row = second_start_.size();
  path_.clear();
  for (std::size_t p = n * row + row - 1;; p = static_cast<std::size_t>(from_[p])) {
    path_.push_back(static_cast<std::int32_t>(p));
    if (p == 0) break;
  }
  // On a leg both chains start together; operators are issued as they start.
  out.clear();
  for (std::size_t leg = path_.size() - 1; leg > 0; --leg) {
    const auto begin = static_cast<std::size_t>(path_[leg]);
    const auto end = static_cast<std::size_t>(path_[leg - 1]);
    std::size_t a = begin / row;
    std::size_t b = begin % row;
    const std::int64_t x0 = first_start_[a];
    const std::int64_t y0 = second_start_[b];
    while (a < end / row || b < end % row) {
      bool take_first = b == end % row;
      if (!take_first && a < end / row) {
        const std::int64_t x = first_start_[a] - x0;
        const std::int64_t y = second_start_[b] - y0;
        const bool second_is_empty = second_start_[b + 1] == second_start_[b];
        const bool first_is_empty = first_start_[a + 1] == first_start_[a];
        take_first = x < y || (x == y && (first_is_empty || !second_is_empty));
      }
      out.push_back(static_cast<std::int32_t>(take_first ? a++ : n + b++));
    }
  }
}

StreamOrder two_chain_order(std::span<const SlotOperator> first,
                            std::span<const SlotOperator> second) {
  SlotProblem problem;
  problem.chains = {{"first", {first.begin(), first.end()}},
                    {"second", {second.begin(), second.end()}}};
  validate(problem);
  TwoChainSolver solver;
  StreamOrder result;
  result.makespan_ns = result.bound_ns = solver.solve(first, second);
  solver.order(result.order);
  result.status = SolveStatus::kOptimal;
  result.nodes = solver.nodes();
  return result;
}

}  // namespace tidemark
