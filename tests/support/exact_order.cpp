#include "tests/support/exact_order.h"

#include <algorithm>
#include <limits>
#include <map>
#include <utility>
#include <vector>

namespace tidemark {
namespace {

constexpr std::int64_t kForever = std::numeric_limits<std::int64_t>::max();

// The operators and, of each, what must come before and after.
struct Instance {
  std::vector<SlotOperator> ops;
  std::vector<std::vector<std::size_t>> before, after;
  std::size_t num_streams = 0;
  MemoryLimit memory;

  explicit Instance(const SlotProblem& problem) : memory(problem.memory) {
    std::vector<std::vector<std::size_t>> number;
    std::vector<std::pair<std::size_t, std::size_t>> edges;
    for (const Chain& chain : problem.chains) {
      number.emplace_back();
      for (const SlotOperator& o : chain.operators) {
        if (!number.back().empty()) edges.emplace_back(ops.size() - 1, ops.size());
        number.back().push_back(ops.size());
        ops.push_back(o);
      }
    }
    const auto at = [&](ChainPoint p) {
      return number[static_cast<std::size_t>(p.chain)][static_cast<std::size_t>(p.position)];
    };
    for (const Precedence& p : problem.precedences) edges.emplace_back(at(p.first), at(p.then));
    for (const FloatingOperator& f : problem.floating) {
      if (f.after.chain >= 0) edges.emplace_back(at(f.after), ops.size());
      if (f.before.chain >= 0) edges.emplace_back(ops.size(), at(f.before));
      ops.push_back(f.work);
    }
    before.resize(ops.size());
    after.resize(ops.size());
    for (const auto& [first, then] : edges) {
      before[then].push_back(first);
      after[first].push_back(then);
    }
    for (const SlotOperator& o : ops) {
      num_streams = std::max(num_streams, static_cast<std::size_t>(o.stream) + 1);
    }
  }

  bool fits(const SlotOperator& o, std::int64_t in_use) const {
    return in_use + std::max(o.before_bytes, o.before_bytes + o.after_bytes) <= memory.limit_bytes;
  }
};

class Exhaustive {
 public:
  explicit Exhaustive(const SlotProblem& problem)
      : in_(problem), end_(in_.ops.size(), -1), free_(in_.num_streams, 0) {}

  std::int64_t run() {
    go(0, in_.memory.held_bytes, 0);
    return best_;
  }

 private:
  void go(std::size_t issued, std::int64_t in_use, std::int64_t makespan) {
    if (issued == in_.ops.size()) best_ = std::min(best_, makespan);
    for (std::size_t o = 0; o < in_.ops.size(); ++o) {
      if (end_[o] >= 0) continue;
      const SlotOperator& op = in_.ops[o];
      std::int64_t& free = free_[static_cast<std::size_t>(op.stream)];
      const std::int64_t was_free = free;
      std::int64_t start = free;
      bool ready = in_.fits(op, in_use);
      for (std::size_t p : in_.before[o]) {
        ready &= end_[p] >= 0;
        start = std::max(start, end_[p]);
      }
      if (!ready) continue;
      free = end_[o] = start + op.duration_ns;
      go(issued + 1, in_use + op.before_bytes + op.after_bytes, std::max(makespan, end_[o]));
      end_[o] = -1;
      free = was_free;
    }
  }

  Instance in_;
  std::vector<std::int64_t> end_;  // -1: not issued
  std::vector<std::int64_t> free_;
  std::int64_t best_ = kForever;
};

class Exact {
 public:
  Exact(const SlotProblem& problem, std::int64_t below, std::size_t max_states)
      : in_(problem), below_(below), max_states_(max_states), path_(in_.ops.size(), -1) {
    for (std::size_t o = 0; o < in_.ops.size(); ++o) longest_path(o);
  }

  ExactOrder run() {
    Level level;
    State root;
    root.end.assign(in_.ops.size(), -1);
    root.free.assign(in_.num_streams, 0);
    root.in_use = in_.memory.held_bytes;
    level[key(root)].push_back({times(root), root});
    std::size_t states = 0;
    for (std::size_t issued = 0; issued < in_.ops.size(); ++issued) {
      Level next;
      for (const auto& [k, kept] : level) {
        for (const Kept& state : kept) {
          states += expand(state.state, next);
          if (states > max_states_) return {ExactAnswer::kTooBig, 0};
        }
      }
      level = std::move(next);
    }
    if (level.empty()) return {ExactAnswer::kNoneBelow, 0};
    std::int64_t best = kForever;
    for (const Kept& k : level.begin()->second) {
      best = std::min(best, *std::max_element(k.state.end.begin(), k.state.end.end()));
    }
    return {ExactAnswer::kFound, in_.ops.empty() ? 0 : best};
  }

 private:
  struct State {
    std::vector<std::int64_t> end;  // -1: not issued
    std::vector<std::int64_t> free;
    std::int64_t in_use = 0;
  };
  struct Kept {
    std::vector<std::int64_t> times;
    State state;
  };
  using Level = std::map<std::vector<bool>, std::vector<Kept>>;

  std::int64_t longest_path(std::size_t o) {
    if (path_[o] >= 0) return path_[o];
    std::int64_t longest = 0;
    for (std::size_t a : in_.after[o]) longest = std::max(longest, longest_path(a));
    return path_[o] = longest + in_.ops[o].duration_ns;
  }

  static std::vector<bool> key(const State& s) {
    std::vector<bool> issued;
    for (std::int64_t e : s.end) issued.push_back(e >= 0);
    return issued;
  }

  // From what is issued: the earliest start of `o`, later where its stream is busy.
  std::int64_t earliest(const State& s, std::size_t o) const {
    std::int64_t start = s.free[static_cast<std::size_t>(in_.ops[o].stream)];
    for (std::size_t p : in_.before[o]) start = std::max(start, s.end[p]);
    return start;
  }

  // All that the past can do to the future: the earliest starts of what is left.
  std::vector<std::int64_t> times(const State& s) const {
    std::vector<std::int64_t> t;
    for (std::size_t o = 0; o < in_.ops.size(); ++o) {
      if (s.end[o] < 0) t.push_back(earliest(s, o));
    }
    t.push_back(*std::max_element(s.free.begin(), s.free.end()));
    return t;
  }

  std::int64_t bound(const State& s) const {
    std::int64_t bound = *std::max_element(s.free.begin(), s.free.end());
    std::vector<std::int64_t> left = std::vector<std::int64_t>(in_.num_streams, 0);
    std::vector<std::int64_t> begin(in_.num_streams, kForever);
    for (std::size_t o = 0; o < in_.ops.size(); ++o) {
      if (s.end[o] >= 0) continue;
      const std::int64_t start = earliest(s, o);
      bound = std::max(bound, start + path_[o]);
      const auto stream = static_cast<std::size_t>(in_.ops[o].stream);
      left[stream] += in_.ops[o].duration_ns;
      begin[stream] = std::min(begin[stream], start);
    }
    for (std::size_t i = 0; i < in_.num_streams; ++i) {
      if (begin[i] != kForever) bound = std::max(bound, begin[i] + left[i]);
    }
    return bound;
  }

  // Returns: how many states were made.
  std::size_t expand(const State& s, Level& next) {
    std::size_t made = 0;
    for (std::size_t o = 0; o < in_.ops.size(); ++o) {
      if (s.end[o] >= 0 || !in_.fits(in_.ops[o], s.in_use)) continue;
      const auto& before = in_.before[o];
      if (std::any_of(before.begin(), before.end(), [&](std::size_t p) { return s.end[p] < 0; })) {
        continue;
      }
      State t = s;
      t.end[o] = earliest(s, o) + in_.ops[o].duration_ns;
      t.free[static_cast<std::size_t>(in_.ops[o].stream)] = t.end[o];
      t.in_use += in_.ops[o].before_bytes + in_.ops[o].after_bytes;
      ++made;
      if (bound(t) >= below_) continue;
      Kept kept{times(t), std::move(t)};
      const auto no_later = [](const Kept& a, const Kept& b) {
        for (std::size_t i = 0; i < a.times.size(); ++i) {
          if (a.times[i] > b.times[i]) return false;
        }
        return true;
      };
      std::vector<Kept>& others = next[key(kept.state)];
      if (std::any_of(others.begin(), others.end(),
                      [&](const Kept& other) { return no_later(other, kept); })) {
        continue;
      }
      std::erase_if(others, [&](const Kept& other) { return no_later(kept, other); });
      others.push_back(std::move(kept));
    }
    return made;
  }

  Instance in_;
  std::int64_t below_;
  std::size_t max_states_;
  std::vector<std::int64_t> path_;  // [operator]: longest path from its start, -1 before
};

}  // namespace

std::optional<std::int64_t> exhaustive_makespan(const SlotProblem& problem) {
  const std::int64_t best = Exhaustive(problem).run();
  if (best == kForever) return std::nullopt;
  return best;
}

ExactOrder exact_makespan(const SlotProblem& problem, std::int64_t below, std::size_t max_states) {
  return Exact(problem, below, max_states).run();
}

}  // namespace tidemark
