#include "planner/slot_order.h"

#include <algorithm>

#include "models/input_error.h"

namespace tidemark {
namespace {

constexpr std::int32_t kMaxStreams = 64;

// Calls `edge(first, then)` with the numbers of both, for every precedence.
template <class Edge>
void for_each_edge(const SlotProblem& problem, const SlotGraph& graph, Edge edge) {
  for (std::size_t c = 0; c < problem.chains.size(); ++c) {
    for (std::int32_t o = graph.chain_begin[c] + 1; o < graph.chain_begin[c + 1]; ++o) {
      edge(o - 1, o);
    }
  }
  for (const Precedence& p : problem.precedences) edge(graph.at(p.first), graph.at(p.then));
  std::int32_t op = graph.chain_begin.back();
  for (const FloatingOperator& f : problem.floating) {
    if (f.after.exists()) edge(graph.at(f.after), op);
    if (f.before.exists()) edge(op, graph.at(f.before));
    ++op;
  }
}

// Names along one cycle, from the operators that a topological order leaves over.
std::string find_cycle(const SlotProblem& problem, const SlotGraph& graph) {
  const auto n = static_cast<std::size_t>(graph.size());
  std::vector<std::int32_t> missing(n, 0);
  std::vector<std::vector<std::int32_t>> then(n);
  for (std::int32_t o = 0; o < graph.size(); ++o) {
    for (std::int32_t p : graph.preds_of(o)) {
      ++missing[static_cast<std::size_t>(o)];
      then[static_cast<std::size_t>(p)].push_back(o);
    }
  }
  std::vector<std::int32_t> ready;
  for (std::int32_t o = 0; o < graph.size(); ++o) {
    if (missing[static_cast<std::size_t>(o)] == 0) ready.push_back(o);
  }
  for (std::size_t i = 0; i < ready.size(); ++i) {
    for (std::int32_t o : then[static_cast<std::size_t>(ready[i])]) {
      if (--missing[static_cast<std::size_t>(o)] == 0) ready.push_back(o);
    }
  }
  if (ready.size() == n) return "";
  // Each that is left has a predecessor that is left.
  const auto left = std::find_if(missing.begin(), missing.end(), [](auto m) { return m > 0; });
  std::vector<std::int32_t> path = {static_cast<std::int32_t>(left - missing.begin())};
  while (true) {
    for (std::int32_t p : graph.preds_of(path.back())) {
      if (missing[static_cast<std::size_t>(p)] == 0) continue;
      const auto seen = std::find(path.begin(), path.end(), p);
      if (seen == path.end()) {
        path.push_back(p);
        break;
      }
      std::string text = operator_name(problem, p);
      for (auto it = path.end(); it-- != seen;) text += " -> " + operator_name(problem, *it);
      return text;
    }
  }
}

class Validator {
 public:
  explicit Validator(const SlotProblem& problem) : problem_(problem) {}

  std::vector<Violation> run() {
    for (const Chain& chain : problem_.chains) {
      for (std::size_t i = 0; i < chain.operators.size(); ++i) {
        check(chain.operators[i], chain.name + "[" + std::to_string(i) + "]");
      }
    }
    for (std::size_t i = 0; i < problem_.precedences.size(); ++i) {
      const Precedence& p = problem_.precedences[i];
      const std::string place = "precedence[" + std::to_string(i) + "]";
      check(p.first, place + ".first", true);
      check(p.then, place + ".then", true);
    }
    for (std::size_t i = 0; i < problem_.floating.size(); ++i) {
      const FloatingOperator& f = problem_.floating[i];
      const std::string place = "floating[" + std::to_string(i) + "]";
      check(f.work, place);
      check(f.after, place + ".after", false);
      check(f.before, place + ".before", false);
      if (f.after.exists() && f.after.chain == f.before.chain &&
          f.before.position <= f.after.position) {
        violate(place, "deadline " + name(f.before),
                "a deadline after its producer " + name(f.after));
      }
    }
    if (violations_.empty()) {
      SlotGraph graph;
      graph.assign(problem_);
      const std::string cycle = find_cycle(problem_, graph);
      if (!cycle.empty()) violate("order", "the cycle " + cycle, "an order without cycles");
    }
    return violations_;
  }

 private:
  std::string name(ChainPoint p) const {
    const auto c = static_cast<std::size_t>(p.chain);
    return (c < problem_.chains.size() ? problem_.chains[c].name
                                       : "chain " + std::to_string(p.chain)) +
           "[" + std::to_string(p.position) + "]";
  }
  void violate(std::string place, std::string found, std::string allowed) {
    violations_.push_back({"", std::move(place), std::move(found), std::move(allowed)});
  }
  void check(const SlotOperator& op, const std::string& place) {
    if (op.duration_ns < 0) {
      violate(place + ".duration_ns", std::to_string(op.duration_ns), ">= 0");
    }
    if (op.stream < 0 || op.stream >= kMaxStreams) {
      violate(place + ".stream", std::to_string(op.stream),
              "0 to " + std::to_string(kMaxStreams - 1));
    }
  }
  void check(ChainPoint p, const std::string& place, bool required) {
    if (!p.exists() && !required) return;
    const auto chains = static_cast<std::int32_t>(problem_.chains.size());
    const bool known = p.exists() && p.chain < chains;
    const std::size_t size =
        known ? problem_.chains[static_cast<std::size_t>(p.chain)].operators.size() : 0;
    if (!known || p.position < 0 || static_cast<std::size_t>(p.position) >= size) {
      violate(place, name(p), "an operator of a chain");
    }
  }

  const SlotProblem& problem_;
  std::vector<Violation> violations_;
};

}  // namespace

void SlotGraph::assign(const SlotProblem& problem) {
  operators.clear();
  chain_begin.clear();
  for (const Chain& chain : problem.chains) {
    chain_begin.push_back(size());
    operators.insert(operators.end(), chain.operators.begin(), chain.operators.end());
  }
  chain_begin.push_back(size());
  for (const FloatingOperator& f : problem.floating) operators.push_back(f.work);
  num_streams = 0;
  for (const SlotOperator& o : operators) num_streams = std::max(num_streams, o.stream + 1);

  pred_begin.assign(operators.size() + 1, 0);
  for_each_edge(problem, *this, [&](std::int32_t, std::int32_t then) {
    ++pred_begin[static_cast<std::size_t>(then) + 1];
  });
  for (std::size_t o = 0; o < operators.size(); ++o) pred_begin[o + 1] += pred_begin[o];
  preds.resize(static_cast<std::size_t>(pred_begin.back()));
  fill_.assign(pred_begin.begin(), pred_begin.end());
  for_each_edge(problem, *this, [&](std::int32_t first, std::int32_t then) {
    preds[static_cast<std::size_t>(fill_[static_cast<std::size_t>(then)]++)] = first;
  });
}

void validate(const SlotProblem& problem) { throw_if_any(Validator(problem).run()); }

std::string operator_name(const SlotProblem& problem, std::int32_t op) {
  std::int32_t position = op;
  for (const Chain& chain : problem.chains) {
    const auto size = static_cast<std::int32_t>(chain.operators.size());
    if (position < size) return chain.name + "[" + std::to_string(position) + "]";
    position -= size;
  }
  return "floating[" + std::to_string(position) + "]";
}

std::int64_t order_makespan(const SlotGraph& graph, std::span<const std::int32_t> order,
                            std::vector<std::int64_t>& end_ns) {
  const auto n = static_cast<std::size_t>(graph.size());
  end_ns.assign(n + static_cast<std::size_t>(graph.num_streams), 0);
  std::int64_t* const free = end_ns.data() + n;
  std::int64_t makespan = 0;
  for (std::int32_t op : order) {
    const SlotOperator& o = graph.operators[static_cast<std::size_t>(op)];
    std::int64_t start = free[o.stream];
    for (std::int32_t p : graph.preds_of(op)) {
      start = std::max(start, end_ns[static_cast<std::size_t>(p)]);
    }
    const std::int64_t end = start + o.duration_ns;
    free[o.stream] = end_ns[static_cast<std::size_t>(op)] = end;
    makespan = std::max(makespan, end);
  }
  end_ns.resize(n);
  return makespan;
}

std::int64_t order_makespan(const SlotProblem& problem, std::span<const std::int32_t> order) {
  SlotGraph graph;
  graph.assign(problem);
  std::vector<std::int64_t> end_ns;
  return order_makespan(graph, order, end_ns);
}

bool within_memory(const SlotGraph& graph, const MemoryLimit& memory,
                   std::span<const std::int32_t> order) {
  if (!memory.is_set()) return true;
  std::int64_t level = memory.held_bytes;
  std::int64_t highest = level;
  for (std::int32_t op : order) {
    const SlotOperator& o = graph.operators[static_cast<std::size_t>(op)];
    level += o.before_bytes;
    highest = std::max(highest, level);
    level += o.after_bytes;
    highest = std::max(highest, level);
  }
  return highest <= memory.limit_bytes;
}

}  // namespace tidemark
