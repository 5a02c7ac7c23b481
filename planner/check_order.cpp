#include "planner/check_order.h"

#include <algorithm>
#include <map>
#include <utility>

namespace tidemark {
namespace {

struct NamedOperator {
  std::string name;
  SlotOperator work;
};

class Checker {
 public:
  explicit Checker(const SlotProblem& problem) : memory_(problem.memory) {
    std::map<std::pair<std::int32_t, std::int32_t>, std::size_t> number;  // of a chain's operator
    for (std::size_t c = 0; c < problem.chains.size(); ++c) {
      const Chain& chain = problem.chains[c];
      for (std::size_t i = 0; i < chain.operators.size(); ++i) {
        if (i > 0) edges_.emplace_back(operators_.size() - 1, operators_.size());
        number[{static_cast<std::int32_t>(c), static_cast<std::int32_t>(i)}] = operators_.size();
        operators_.push_back({chain.name + "[" + std::to_string(i) + "]", chain.operators[i]});
      }
    }
    const auto at = [&](ChainPoint p) { return number.at({p.chain, p.position}); };
    for (const Precedence& p : problem.precedences) edges_.emplace_back(at(p.first), at(p.then));
    for (std::size_t f = 0; f < problem.floating.size(); ++f) {
      const FloatingOperator& o = problem.floating[f];
      if (o.after.exists()) edges_.emplace_back(at(o.after), operators_.size());
      if (o.before.exists()) edges_.emplace_back(operators_.size(), at(o.before));
      operators_.push_back({"floating[" + std::to_string(f) + "]", o.work});
    }
  }

  std::vector<std::string> run(const StreamOrder& result) {
    if (!read_order(result.order)) return wrong_;
    for (const auto& [first, then] : edges_) {
      if (place_[first] > place_[then]) {
        wrong_.push_back(operators_[then].name + " is issued before its predecessor " +
                         operators_[first].name);
      }
    }
    if (!wrong_.empty()) return wrong_;
    check_memory(result.order);
    check_makespan(result);
    return wrong_;
  }

 private:
  bool read_order(const std::vector<std::int32_t>& order) {
    constexpr std::size_t kNowhere = static_cast<std::size_t>(-1);
    place_.assign(operators_.size(), kNowhere);
    for (std::size_t i = 0; i < order.size(); ++i) {
      const auto op = static_cast<std::size_t>(order[i]);
      if (order[i] < 0 || op >= operators_.size()) {
        wrong_.push_back("there is no operator " + std::to_string(order[i]));
      } else if (place_[op] != kNowhere) {
        wrong_.push_back(operators_[op].name + " is issued twice");
      } else {
        place_[op] = i;
      }
    }
    for (std::size_t op = 0; op < operators_.size(); ++op) {
      if (place_[op] == kNowhere) wrong_.push_back(operators_[op].name + " is never issued");
    }
    return wrong_.empty();
  }

  void check_memory(const std::vector<std::int32_t>& order) {
    if (!memory_.is_set()) return;
    std::int64_t in_use = memory_.held_bytes;
    for (std::int32_t number : order) {
      const NamedOperator& op = operators_[static_cast<std::size_t>(number)];
      for (std::int64_t change : {op.work.before_bytes, op.work.after_bytes}) {
        in_use += change;
        if (in_use > memory_.limit_bytes) {
          wrong_.push_back(op.name + " exceeds the memory limit by " +
                           std::to_string(in_use - memory_.limit_bytes) + " bytes");
        }
      }
    }
  }

  // Ends of all operators, each at least its duration and its duration after everything before it.
  std::int64_t relax(const std::vector<std::pair<std::size_t, std::size_t>>& edges) const {
    std::vector<std::int64_t> end;
    for (const NamedOperator& op : operators_) end.push_back(op.work.duration_ns);
    for (bool moved = true; moved;) {
      moved = false;
      for (const auto& [first, then] : edges) {
        const std::int64_t least = end[first] + operators_[then].work.duration_ns;
        if (end[then] >= least) continue;
        end[then] = least;
        moved = true;
      }
    }
    return end.empty() ? 0 : *std::max_element(end.begin(), end.end());
  }

  void check_makespan(const StreamOrder& result) {
    auto edges = edges_;
    std::map<std::int32_t, std::size_t> last;  // of each stream
    std::map<std::int32_t, std::int64_t> busy;
    std::int64_t serial = 0;
    for (std::int32_t number : result.order) {
      const auto op = static_cast<std::size_t>(number);
      const SlotOperator& work = operators_[op].work;
      if (const auto it = last.find(work.stream); it != last.end()) {
        edges.emplace_back(it->second, op);
      }
      last[work.stream] = op;
      busy[work.stream] += work.duration_ns;
      serial += work.duration_ns;
    }
    const auto compare = [&](bool holds, const std::string& than, std::int64_t other) {
      if (!holds) {
        wrong_.push_back("the makespan is " + std::to_string(result.makespan_ns) + " ns, " + than +
                         " " + std::to_string(other));
      }
    };
    const std::int64_t makespan = result.makespan_ns;
    const std::int64_t follows = relax(edges);
    compare(makespan == follows, "but the order takes", follows);
    compare(makespan >= result.bound_ns, "less than its bound,", result.bound_ns);
    const std::int64_t critical = relax(edges_);
    compare(makespan >= critical, "less than the critical path,", critical);
    for (const auto& [stream, ns] : busy) {
      compare(makespan >= ns, "less than the work of stream " + std::to_string(stream) + ",", ns);
    }
    compare(makespan <= serial, "more than the serial time,", serial);
  }

  MemoryLimit memory_;
  std::vector<NamedOperator> operators_;
  std::vector<std::pair<std::size_t, std::size_t>> edges_;  // first, then
  std::vector<std::size_t> place_;                          // [operator], in the order
  std::vector<std::string> wrong_;
};

}  // namespace

std::vector<std::string> check_order(const SlotProblem& problem, const StreamOrder& result) {
  return Checker(problem).run(result);
}

}  // namespace tidemark
