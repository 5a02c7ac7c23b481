#include "planner/interleaver.h"

#include <algorithm>
#include <array>
#include <numeric>

#include "planner/two_chain_order.h"

namespace tidemark {
namespace {

constexpr std::int32_t kMaxSerialChains = 4;  // 4! serial orders
constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();

std::size_t index(std::int32_t i) { return static_cast<std::size_t>(i); }

// One or more operators of a queue that are issued together.
struct QueueStep {
  std::int32_t first_op = 0;
  std::int32_t count = 1;
  std::int32_t queue = 0;
  std::int32_t position = 0;  // in the queue
  std::int32_t stream = 0;
  std::int32_t signal = -1;  // where a state keeps its end, if another queue waits for it
  std::int64_t duration = 0;
  std::int64_t before_bytes = 0;
  std::int64_t after_bytes = 0;
  std::int64_t head = 0;  // longest path to its start
  std::int64_t tail = 0;  // longest path from its end
};

// What the search expands: a state with one more step issued.
struct Candidate {
  std::int64_t bound = 0;
  std::int64_t idle = 0;
  std::int64_t end = 0;
  std::int32_t parent = 0;
  std::int32_t step = 0;

  friend bool operator<(const Candidate& a, const Candidate& b) {
    if (a.bound != b.bound) return a.bound < b.bound;
    if (a.idle != b.idle) return a.idle < b.idle;
    if (a.parent != b.parent) return a.parent < b.parent;
    return a.step < b.step;
  }
};

}  // namespace

struct Interleaver::Workspace {
  // --- the problem as queues of steps ---
  SlotGraph graph;
  std::vector<QueueStep> steps;           // queue by queue
  std::vector<std::int32_t> queue_begin;  // [queue + 1]
  std::vector<std::int32_t> step_of;      // [operator]
  std::vector<std::int32_t> pred_begin;   // [step + 1]: steps of other queues
  std::vector<std::int32_t> preds;
  std::vector<std::int32_t> waiter_begin;  // [signal + 1]: steps that wait for it
  std::vector<std::int32_t> waiters;
  std::vector<std::int32_t> topological;
  std::vector<std::int64_t> work;        // [stream]
  std::vector<std::int64_t> least_tail;  // [step][stream]: of the steps from here on in its queue
  std::vector<std::int64_t> rise;        // [step]: how far the queue can still raise the memory
  std::vector<std::int32_t> users;       // [stream]: queues
  std::vector<std::int32_t> floating;    // scratch
  std::vector<std::int32_t> successors;  // [operator]: how many
  MemoryLimit memory;
  bool queues_are_free = true;  // some shortest order keeps the queues of floating operators
  bool tries_all = false;       // while the memory limit binds: also what would start late
  bool left_out = false;        // something was not tried

  std::int32_t num_queues() const { return static_cast<std::int32_t>(queue_begin.size()) - 1; }
  std::int32_t queue_end(std::int32_t q) const { return queue_begin[index(q) + 1]; }

  // --- states: [position of each queue as its next step][end of each queue's last step][free of
  // each stream][work left on it][ends that others wait for], then one word each for the memory in
  // use, the bound, the idle time, the node and a hash of the positions ---
  std::size_t ready_at = 0, free_at = 0, left_at = 0, signal_at = 0, level_at = 0, stride = 0;
  std::vector<std::int64_t> states;
  std::vector<std::int64_t> next_states;
  std::vector<Candidate> candidates;
  std::vector<std::int32_t> table;        // hash of positions -> last state with it, or -1
  std::vector<std::uint64_t> queue_hash;  // [queue]: what one step adds to the hash
  std::vector<std::int32_t> same_slot;    // [state]: the one before it in the table
  struct Node {
    std::int32_t parent = -1;
    std::int32_t step = -1;
  };
  std::vector<Node> nodes;
  std::vector<std::int32_t> available;  // scratch of one state: steps, and
  std::vector<std::int64_t> starts;     // when they could start

  TwoChainSolver two_chains;
  std::vector<SlotOperator> spliced;
  std::vector<std::pair<std::int64_t, std::int32_t>> by_head;
  std::vector<std::pair<std::int64_t, std::int64_t>> open;  // tail, work left
  StreamOrder result;
  std::vector<std::int32_t> found;        // the order of a search
  std::vector<std::int32_t> chain_order;  // scratch
  std::vector<std::int64_t> ends;

  void build(const SlotProblem& problem);
  void add_queue_of_chain(std::int32_t chain);
  void add_step(std::int32_t op);
  void link();
  void sort_topologically();
  std::int64_t lower_bound(const SlotProblem& problem);
  std::int64_t one_machine_bound(std::int32_t stream);
  std::int64_t two_chain_bound(const SlotProblem& problem);

  // Of each level at most so many states, and of each of its positions.
  struct Beam {
    std::int64_t width = 1;
    std::int64_t of_position = 1;
  };
  struct Pass {
    std::int64_t makespan = kNever;
    bool cut = false;      // states beyond the width, or all when the work was spent
    bool thinned = false;  // states beyond those of a position
  };
  Pass search(Beam beam, std::int64_t incumbent, std::int64_t max_nodes);
  bool run_serially(std::span<const std::int32_t> chains);
  void try_serial_orders(std::int32_t num_chains);
  void expand(std::int32_t parent, std::int64_t incumbent);
  enum class Kept : std::uint8_t { kYes, kDominated, kThinned };
  Kept keep(const Candidate& candidate, std::int32_t kept, std::int64_t of_position);
  bool dominates(const std::int64_t* a, const std::int64_t* b) const;
  void solve(const SlotProblem& problem, OrderLimit limit);
  void issue_by_start();
};

// --- the problem --------------------------------------------------------------------------------

void Interleaver::Workspace::add_step(std::int32_t op) {
  const SlotOperator& o = graph.operators[index(op)];
  QueueStep step;
  step.first_op = op;
  step.queue = num_queues();  // the one that is being filled
  step.position = static_cast<std::int32_t>(steps.size()) - queue_begin.back();
  step.stream = o.stream;
  step.duration = o.duration_ns;
  step.before_bytes = o.before_bytes;
  step.after_bytes = o.after_bytes;
  step_of[index(op)] = static_cast<std::int32_t>(steps.size());
  steps.push_back(step);
}

void Interleaver::Workspace::add_queue_of_chain(std::int32_t chain) {
  const std::int32_t begin = graph.chain_begin[index(chain)];
  for (std::int32_t op = begin; op < graph.chain_begin[index(chain) + 1]; ++op) {
    const SlotOperator& o = graph.operators[index(op)];
    const bool merges = op > begin && !memory.is_set() && users[index(o.stream)] == 1 &&
                        graph.operators[index(op - 1)].stream == o.stream &&
                        graph.preds_of(op).size() == 1 && successors[index(op - 1)] == 1;
    if (merges) {
      ++steps.back().count;
      steps.back().duration += o.duration_ns;
      step_of[index(op)] = static_cast<std::int32_t>(steps.size()) - 1;
    } else {
      add_step(op);
    }
  }
}

void Interleaver::Workspace::build(const SlotProblem& problem) {
  memory = problem.memory;
  graph.assign(problem);
  const auto n = static_cast<std::size_t>(graph.size());
  step_of.assign(n, -1);
  steps.clear();
  queue_begin.clear();
  successors.assign(n, 0);
  for (std::int32_t p : graph.preds) ++successors[index(p)];

  floating.clear();
  for (std::int32_t f = 0; f < static_cast<std::int32_t>(problem.floating.size()); ++f) {
    floating.push_back(f);
  }
  const auto group = [&](std::int32_t f) {
    const FloatingOperator& o = problem.floating[index(f)];
    return std::array{o.work.stream, o.after.chain, o.before.chain};
  };
  std::sort(floating.begin(), floating.end(), [&](std::int32_t a, std::int32_t b) {
    const FloatingOperator& x = problem.floating[index(a)];
    const FloatingOperator& y = problem.floating[index(b)];
    if (group(a) != group(b)) return group(a) < group(b);
    if (x.before.position != y.before.position) return x.before.position < y.before.position;
    if (x.after.position != y.after.position) return x.after.position < y.after.position;
    return a < b;
  });
  users.assign(index(graph.num_streams), 0);
  for (std::size_t c = 0; c < problem.chains.size(); ++c) {
    std::uint64_t seen = 0;
    for (const SlotOperator& o : problem.chains[c].operators) {
      const std::uint64_t bit = std::uint64_t{1} << o.stream;
      if ((seen & bit) == 0) ++users[index(o.stream)];
      seen |= bit;
    }
  }
  for (std::size_t i = 0; i < floating.size(); ++i) {
    if (i > 0 && group(floating[i]) == group(floating[i - 1])) continue;
    ++users[index(problem.floating[index(floating[i])].work.stream)];
  }

  for (std::size_t c = 0; c < problem.chains.size(); ++c) {
    queue_begin.push_back(static_cast<std::int32_t>(steps.size()));
    add_queue_of_chain(static_cast<std::int32_t>(c));
  }
  queues_are_free = true;
  for (std::size_t i = 0; i < floating.size(); ++i) {
    if (i == 0 || group(floating[i]) != group(floating[i - 1])) {
      queue_begin.push_back(static_cast<std::int32_t>(steps.size()));
    } else {
      const FloatingOperator& o = problem.floating[index(floating[i])];
      const FloatingOperator& earlier = problem.floating[index(floating[i - 1])];
      queues_are_free &= users[index(o.work.stream)] == 1 && !memory.is_set() &&
                         earlier.after.position <= o.after.position;
    }
    add_step(graph.chain_begin.back() + floating[i]);
  }
  queue_begin.push_back(static_cast<std::int32_t>(steps.size()));
  for (std::int32_t q = 0; q < num_queues(); ++q) {
    for (std::int32_t s = queue_begin[index(q)]; s < queue_end(q); ++s) steps[index(s)].queue = q;
  }
  link();
}

// Predecessors and waiters between queues, heads, tails, and what is left from each step on.
void Interleaver::Workspace::link() {
  const auto num_steps = static_cast<std::int32_t>(steps.size());
  const auto streams = index(graph.num_streams);
  pred_begin.assign(1, 0);
  preds.clear();
  std::int32_t signals = 0;
  for (std::int32_t s = 0; s < num_steps; ++s) {
    for (std::int32_t p : graph.preds_of(steps[index(s)].first_op)) {
      QueueStep& pred = steps[index(step_of[index(p)])];
      if (pred.queue == steps[index(s)].queue) continue;
      if (pred.signal < 0) pred.signal = signals++;
      preds.push_back(step_of[index(p)]);
    }
    pred_begin.push_back(static_cast<std::int32_t>(preds.size()));
  }
  waiter_begin.assign(index(signals) + 1, 0);
  for (std::int32_t p : preds) ++waiter_begin[index(steps[index(p)].signal) + 1];
  for (std::size_t i = 1; i < waiter_begin.size(); ++i) waiter_begin[i] += waiter_begin[i - 1];
  waiters.assign(preds.size(), -1);
  for (std::int32_t s = 0; s < num_steps; ++s) {
    for (std::int32_t i = pred_begin[index(s)]; i < pred_begin[index(s) + 1]; ++i) {
      std::int32_t w = waiter_begin[index(steps[index(preds[index(i)])].signal)];
      while (waiters[index(w)] >= 0) ++w;
      waiters[index(w)] = s;
    }
  }

  sort_topologically();
  work.assign(streams, 0);
  for (std::int32_t s : topological) {
    QueueStep& step = steps[index(s)];
    work[index(step.stream)] += step.duration;
    step.head = 0;
    step.tail = 0;
    const auto after = [&](std::int32_t p) {
      step.head = std::max(step.head, steps[index(p)].head + steps[index(p)].duration);
    };
    if (step.position > 0) after(s - 1);
    for (std::int32_t i = pred_begin[index(s)]; i < pred_begin[index(s) + 1]; ++i) {
      after(preds[index(i)]);
    }
  }
  for (auto it = topological.rbegin(); it != topological.rend(); ++it) {
    const QueueStep& step = steps[index(*it)];
    const auto before = [&](std::int32_t p) {
      QueueStep& pred = steps[index(p)];
      pred.tail = std::max(pred.tail, step.duration + step.tail);
    };
    if (step.position > 0) before(*it - 1);
    for (std::int32_t i = pred_begin[index(*it)]; i < pred_begin[index(*it) + 1]; ++i) {
      before(preds[index(i)]);
    }
  }

  least_tail.assign(steps.size() * streams, kNever);
  rise.assign(steps.size(), 0);
  for (std::int32_t q = 0; q < num_queues(); ++q) {
    for (std::int32_t s = queue_end(q) - 1; s >= queue_begin[index(q)]; --s) {
      const QueueStep& step = steps[index(s)];
      std::int64_t* const least = &least_tail[index(s) * streams];
      std::int64_t later = 0;
      if (s + 1 < queue_end(q)) {
        std::copy_n(least + streams, streams, least);
        later = rise[index(s) + 1];
      }
      least[step.stream] = std::min(least[step.stream], step.tail);
      rise[index(s)] = std::max(
          {std::int64_t{0}, step.before_bytes, step.before_bytes + step.after_bytes + later});
    }
  }
}

void Interleaver::Workspace::sort_topologically() {
  topological.clear();
  available.assign(queue_begin.begin(), queue_begin.end() - 1);  // next of each queue
  while (topological.size() < steps.size()) {
    for (std::int32_t q = 0; q < num_queues(); ++q) {
      std::int32_t& next = available[index(q)];
      for (; next < queue_end(q); ++next) {
        const auto done = [&](std::int32_t p) {
          return p < available[index(steps[index(p)].queue)];
        };
        if (!std::all_of(preds.begin() + pred_begin[index(next)],
                         preds.begin() + pred_begin[index(next) + 1], done)) {
          break;
        }
        topological.push_back(next);
      }
    }
  }
}

// --- lower bound --------------------------------------------------------------------------------

// Jackson's preemptive schedule: of the steps that could run, the one with the longest tail does.
std::int64_t Interleaver::Workspace::one_machine_bound(std::int32_t stream) {
  by_head.clear();
  for (std::size_t s = 0; s < steps.size(); ++s) {
    if (steps[s].stream == stream) {
      by_head.emplace_back(steps[s].head, static_cast<std::int32_t>(s));
    }
  }
  std::sort(by_head.begin(), by_head.end());
  open.clear();
  std::int64_t bound = 0;
  std::int64_t now = 0;
  for (std::size_t next = 0; next < by_head.size() || !open.empty();) {
    if (open.empty()) now = std::max(now, by_head[next].first);
    for (; next < by_head.size() && by_head[next].first <= now; ++next) {
      const QueueStep& step = steps[index(by_head[next].second)];
      open.emplace_back(step.tail, step.duration);
      std::push_heap(open.begin(), open.end());
    }
    const std::int64_t until = next < by_head.size() ? by_head[next].first : kNever;
    auto& [tail, left] = open.front();
    if (left > until - now) {
      left -= until - now;
      now = until;
      continue;
    }
    now += left;
    bound = std::max(bound, now + tail);
    std::pop_heap(open.begin(), open.end());
    open.pop_back();
  }
  return bound;
}

std::int64_t Interleaver::Workspace::two_chain_bound(const SlotProblem& problem) {
  std::int64_t bound = 0;
  const std::vector<Chain>& chains = problem.chains;
  for (std::size_t a = 0; a < chains.size(); ++a) {
    for (std::size_t b = a + 1; b < chains.size(); ++b) {
      bound = std::max(bound, two_chains.solve(chains[a].operators, chains[b].operators));
    }
  }
  if (chains.size() < 3) return bound;
  // The longest way from one chain into another, beside a third.
  for (std::size_t a = 0; a < chains.size(); ++a) {
    for (std::size_t b = 0; b < chains.size(); ++b) {
      const Precedence* longest = nullptr;
      std::int64_t length = -1;
      for (const Precedence& p : problem.precedences) {
        if (index(p.first.chain) != a || index(p.then.chain) != b || a == b) continue;
        const QueueStep& first = steps[index(step_of[index(graph.at(p.first))])];
        const QueueStep& then = steps[index(step_of[index(graph.at(p.then))])];
        const std::int64_t l = first.head + first.duration + then.duration + then.tail;
        if (l > length) longest = &p;
        length = std::max(length, l);
      }
      if (longest == nullptr) continue;
      const auto& x = chains[a].operators;
      const auto& y = chains[b].operators;
      spliced.assign(x.begin(), x.begin() + longest->first.position + 1);
      spliced.insert(spliced.end(), y.begin() + longest->then.position, y.end());
      for (std::size_t c = 0; c < chains.size(); ++c) {
        if (c == a || c == b) continue;
        bound = std::max(bound, two_chains.solve(spliced, chains[c].operators));
      }
    }
  }
  return bound;
}

std::int64_t Interleaver::Workspace::lower_bound(const SlotProblem& problem) {
  std::int64_t bound = two_chain_bound(problem);
  for (const QueueStep& s : steps) bound = std::max(bound, s.head + s.duration + s.tail);
  for (std::int32_t s = 0; s < graph.num_streams; ++s) {
    bound = std::max(bound, one_machine_bound(s));
  }
  return bound;
}

// --- search -------------------------------------------------------------------------------------

void Interleaver::Workspace::expand(std::int32_t parent, std::int64_t incumbent) {
  const std::int64_t* const state = &states[index(parent) * stride];
  const std::int64_t* const ready = state + ready_at;
  const std::int64_t* const free = state + free_at;
  const std::int64_t* const signal = state + signal_at;
  const std::int64_t level = state[level_at];

  std::size_t num_available = 0;
  std::int64_t highest = level;
  for (std::int32_t q = 0; q < num_queues() && memory.is_set(); ++q) {
    if (state[q] < queue_end(q)) highest += rise[static_cast<std::size_t>(state[q])];
  }
  const bool limit_binds = memory.is_set() && highest > memory.limit_bytes;

  std::int64_t first_end = kNever;
  std::int32_t stream = -1;
  for (std::int32_t q = 0; q < num_queues(); ++q) {
    const auto s = static_cast<std::int32_t>(state[q]);
    if (s == queue_end(q)) continue;
    const QueueStep& step = steps[index(s)];
    std::int64_t start = std::max(ready[q], free[step.stream]);
    bool issued = true;
    for (std::int32_t i = pred_begin[index(s)]; i < pred_begin[index(s) + 1]; ++i) {
      const QueueStep& pred = steps[index(preds[index(i)])];
      issued &= state[pred.queue] > preds[index(i)];
      start = std::max(start, signal[pred.signal]);
    }
    if (!issued) continue;
    if (limit_binds) {
      const std::int64_t peak =
          level + std::max(step.before_bytes, step.before_bytes + step.after_bytes);
      if (peak > memory.limit_bytes) continue;
    }
    available[num_available] = s;
    starts[num_available++] = start;
    if (start + step.duration < first_end) {
      first_end = start + step.duration;
      stream = step.stream;
    }
  }

  for (std::size_t i = 0; i < num_available; ++i) {
    const QueueStep& step = steps[index(available[i])];
    if (!limit_binds && step.stream != stream) continue;
    if (!(limit_binds && tries_all) && starts[i] >= first_end &&
        starts[i] + step.duration > first_end) {
      left_out |= limit_binds;
      continue;
    }
    const std::int64_t end = starts[i] + step.duration;
    const std::int64_t left = state[left_at + index(step.stream)] - step.duration;
    std::int64_t bound = std::max(state[level_at + 1], end + step.tail);
    std::int64_t least = kNever;
    for (std::int32_t q = 0; q < num_queues(); ++q) {
      auto s = static_cast<std::size_t>(state[q]);
      s += q == step.queue;
      if (s == index(queue_end(q))) continue;
      least = std::min(least, least_tail[s * index(graph.num_streams) + index(step.stream)]);
      const QueueStep& next = steps[s];
      if (next.stream == step.stream && q != step.queue) {
        bound = std::max(bound, std::max(end, ready[q]) + next.duration + next.tail);
      }
    }
    if (least != kNever) bound = std::max(bound, end + left + least);
    if (bound >= incumbent) continue;
    const std::int64_t idle = state[level_at + 2] + (left > 0 ? starts[i] - free[step.stream] : 0);
    candidates.push_back({bound, idle, end, parent, available[i]});
  }
}

bool Interleaver::Workspace::dominates(const std::int64_t* a, const std::int64_t* b) const {
  for (std::size_t i = ready_at; i < left_at; ++i) {
    if (a[i] > b[i]) return false;
  }
  for (std::size_t i = 0; i + 1 < waiter_begin.size(); ++i) {
    if (a[signal_at + i] <= b[signal_at + i]) continue;
    for (std::int32_t w = waiter_begin[i]; w < waiter_begin[i + 1]; ++w) {
      const std::int32_t waiter = waiters[index(w)];
      if (a[steps[index(waiter)].queue] <= waiter) return false;  // still waits
    }
  }
  return true;
}

// Writes the candidate as state `kept` of the next level, if no other dominates it or fills its
// position.
Interleaver::Workspace::Kept Interleaver::Workspace::keep(const Candidate& candidate,
                                                          std::int32_t kept,
                                                          std::int64_t of_position) {
  std::int64_t* const state = &next_states[index(kept) * stride];
  std::copy_n(&states[index(candidate.parent) * stride], stride, state);
  const QueueStep& step = steps[index(candidate.step)];
  ++state[step.queue];
  state[ready_at + index(step.queue)] = candidate.end;
  state[free_at + index(step.stream)] = candidate.end;
  state[left_at + index(step.stream)] -= step.duration;
  if (step.signal >= 0) state[signal_at + index(step.signal)] = candidate.end;
  state[level_at] += step.before_bytes + step.after_bytes;
  state[level_at + 1] = candidate.bound;
  state[level_at + 2] = candidate.idle;

  const std::uint64_t hash =
      static_cast<std::uint64_t>(state[level_at + 4]) + queue_hash[index(step.queue)];
  state[level_at + 4] = static_cast<std::int64_t>(hash);
  std::int32_t& slot = table[static_cast<std::size_t>(hash >> 32) & (table.size() - 1)];
  std::int64_t others = 0;
  for (std::int32_t other = slot; other >= 0; other = same_slot[index(other)]) {
    const std::int64_t* const o = &next_states[index(other) * stride];
    if (o[level_at + 4] != state[level_at + 4] || !std::equal(o, o + num_queues(), state)) continue;
    if (dominates(o, state)) return Kept::kDominated;
    if (++others == of_position) return Kept::kThinned;
  }
  same_slot[index(kept)] = slot;
  slot = kept;
  nodes.push_back({static_cast<std::int32_t>(state[level_at + 3]), candidate.step});
  state[level_at + 3] = static_cast<std::int64_t>(nodes.size()) - 1;
  return Kept::kYes;
}

Interleaver::Workspace::Pass Interleaver::Workspace::search(Beam beam, std::int64_t incumbent,
                                                            std::int64_t max_nodes) {
  const auto width = static_cast<std::size_t>(beam.width);
  const auto queues = queue_begin.size() - 1;
  const auto streams = index(graph.num_streams);
  ready_at = queues;
  free_at = ready_at + queues;
  left_at = free_at + streams;
  signal_at = left_at + streams;
  level_at = signal_at + waiter_begin.size() - 1;
  stride = level_at + 5;
  queue_hash.resize(queues);
  std::uint64_t power = 1;
  for (std::uint64_t& hash : queue_hash) hash = power *= 0x9e3779b97f4a7c15ULL;
  states.resize(std::max(states.size(), width * stride));
  next_states.resize(std::max(next_states.size(), (width + 1) * stride));
  states.resize(next_states.size());
  same_slot.resize(std::max(same_slot.size(), width + 1));
  std::size_t slots = 16;
  while (slots < 2 * width) slots *= 2;
  table.resize(slots);

  std::fill_n(states.begin(), stride, 0);
  std::copy_n(queue_begin.begin(), queues, states.begin());
  std::copy(work.begin(), work.end(), states.begin() + static_cast<std::ptrdiff_t>(left_at));
  states[level_at] = memory.held_bytes;
  states[level_at + 3] = -1;
  nodes.clear();
  available.resize(queues);
  starts.resize(queues);

  Pass pass;
  std::int32_t alive = 1;
  for (std::size_t level = 0; level < steps.size(); ++level) {
    candidates.clear();
    // Every level may spend an equal share of the work that is left, its best states first.
    const std::int64_t share = std::max<std::int64_t>(0, max_nodes - result.nodes) /
                               static_cast<std::int64_t>(steps.size() - level);
    std::int32_t parent = 0;
    do expand(parent, incumbent);
    while (++parent < alive && std::ssize(candidates) < share);
    pass.cut |= parent < alive;
    result.nodes += std::ssize(candidates);
    std::sort(candidates.begin(), candidates.end());
    std::fill(table.begin(), table.end(), -1);
    alive = 0;
    for (const Candidate& candidate : candidates) {
      if (index(alive) == width) {
        pass.cut = true;
        break;
      }
      const Kept kept = keep(candidate, alive, beam.of_position);
      if (kept == Kept::kYes) ++alive;
      pass.thinned |= kept == Kept::kThinned;
    }
    if (alive == 0) return pass;
    states.swap(next_states);
  }
  // Its bound is its makespan: nothing is left to do.
  pass.makespan = states[level_at + 1];
  found.clear();
  for (auto n = static_cast<std::int32_t>(states[level_at + 3]); n >= 0;
       n = nodes[index(n)].parent) {
    const QueueStep& step = steps[index(nodes[index(n)].step)];
    for (std::int32_t i = step.count; i-- > 0;) found.push_back(step.first_op + i);
  }
  std::reverse(found.begin(), found.end());
  return pass;
}

// Issues `chains` one after the other into `found`; where one waits, the next goes on. Floating
// operators: those that are waited for when their chain comes to it, others at once. Returns:
// whether that stays within the memory limit.
bool Interleaver::Workspace::run_serially(std::span<const std::int32_t> chains) {
  const auto num_chains = static_cast<std::int32_t>(chains.size());
  available.assign(queue_begin.begin(), queue_begin.end() - 1);  // next of each queue
  found.clear();
  std::int64_t level = memory.held_bytes;
  const auto issue_next = [&](std::int32_t q) {
    const std::int32_t s = available[index(q)];
    if (s == queue_end(q)) return false;
    const QueueStep& step = steps[index(s)];
    if (level + std::max(step.before_bytes, step.before_bytes + step.after_bytes) >
        memory.limit_bytes) {
      return false;
    }
    for (std::int32_t i = pred_begin[index(s)]; i < pred_begin[index(s) + 1]; ++i) {
      const std::int32_t p = preds[index(i)];
      if (available[index(steps[index(p)].queue)] <= p) return false;
    }
    level += step.before_bytes + step.after_bytes;
    for (std::int32_t i = 0; i < step.count; ++i) found.push_back(step.first_op + i);
    ++available[index(q)];
    return true;
  };
  const auto is_waited_for_by = [&](std::int32_t q, std::int32_t chain) {
    const std::int32_t s = available[index(q)];
    if (s == queue_end(q) || steps[index(s)].signal < 0) return false;
    const std::int32_t w = waiter_begin[index(steps[index(s)].signal)];
    return steps[index(waiters[index(w)])].queue == chain;
  };
  const auto issue_one = [&] {
    for (std::int32_t q = num_chains; q < num_queues(); ++q) {
      if (available[index(q)] < queue_end(q) && steps[index(available[index(q)])].signal < 0 &&
          issue_next(q)) {
        return true;
      }
    }
    for (std::int32_t chain : chains) {
      if (issue_next(chain)) return true;
      for (std::int32_t q = num_chains; q < num_queues(); ++q) {
        if (is_waited_for_by(q, chain) && issue_next(q)) return true;
      }
    }
    return false;
  };
  while (issue_one()) {
  }
  return found.size() == index(graph.size());
}

void Interleaver::Workspace::try_serial_orders(std::int32_t num_chains) {
  chain_order.resize(index(num_chains));
  std::iota(chain_order.begin(), chain_order.end(), 0);
  do {
    if (!run_serially(chain_order)) continue;
    const std::int64_t makespan = order_makespan(graph, found, ends);
    if (makespan >= result.makespan_ns) continue;
    result.makespan_ns = makespan;
    result.order = found;
  } while (num_chains <= kMaxSerialChains &&
           std::next_permutation(chain_order.begin(), chain_order.end()));
}

void Interleaver::Workspace::solve(const SlotProblem& problem, OrderLimit limit) {
  result.order.clear();
  result.nodes = 0;
  build(problem);
  result.makespan_ns = kNever;

  if (problem.chains.size() == 2 && problem.floating.empty() && problem.precedences.empty()) {
    result.bound_ns = two_chains.solve(problem.chains[0].operators, problem.chains[1].operators);
    result.nodes = two_chains.nodes();
    two_chains.order(found);
    if (within_memory(graph, memory, found)) {
      result.order = found;
      result.makespan_ns = result.bound_ns;
      result.status = SolveStatus::kOptimal;
      issue_by_start();
      return;
    }
  } else {
    result.bound_ns = lower_bound(problem);
  }

  if (memory.is_set()) try_serial_orders(static_cast<std::int32_t>(problem.chains.size()));
  constexpr std::int64_t kWidening = 4;
  tries_all = false;
  bool proven = result.makespan_ns == result.bound_ns;
  for (Beam beam; !proven && result.nodes < limit.nodes;) {
    left_out = false;
    const Pass pass = search(beam, result.makespan_ns, limit.nodes);
    if (pass.makespan < result.makespan_ns) {
      result.order = found;
      result.makespan_ns = pass.makespan;
    }
    const bool all = !pass.cut && !pass.thinned;
    proven = result.makespan_ns == result.bound_ns || (all && !left_out && queues_are_free);
    if (all && left_out) {
      tries_all = true;
      continue;
    }
    if (all) break;
    if (!pass.cut) {
      beam.of_position *= kWidening;
      continue;
    }
    // The last pass is as wide as the work left allows.
    const std::int64_t rest = (limit.nodes - result.nodes) / std::ssize(steps);
    if (rest <= beam.width) break;
    beam.width *= kWidening;
    if (beam.width * kWidening > rest) beam.width = rest;
  }
  const bool none = result.makespan_ns == kNever;
  if (none) {
    result.status = proven ? SolveStatus::kInfeasible : SolveStatus::kLimit;
    result.makespan_ns = 0;
    return;
  }
  result.status = proven ? SolveStatus::kOptimal : SolveStatus::kFeasible;
  if (proven) result.bound_ns = result.makespan_ns;
  issue_by_start();
}

// Of the sequences with these queues of the streams the one that the host can issue last minute,
// unless it needs more memory.
void Interleaver::Workspace::issue_by_start() {
  order_makespan(graph, result.order, ends);
  const auto start = [&](std::int32_t op) {
    return ends[index(op)] - graph.operators[index(op)].duration_ns;
  };
  by_head.clear();
  for (std::size_t i = 0; i < result.order.size(); ++i) {
    by_head.emplace_back(start(result.order[i]), static_cast<std::int32_t>(i));
  }
  std::sort(by_head.begin(), by_head.end());
  found.clear();
  for (const auto& [at, place] : by_head) found.push_back(result.order[index(place)]);
  if (within_memory(graph, memory, found)) result.order.swap(found);
}

Interleaver::Interleaver() : workspace_(std::make_unique<Workspace>()) {}
Interleaver::~Interleaver() = default;

const StreamOrder& Interleaver::solve(const SlotProblem& problem, OrderLimit limit) {
  workspace_->solve(problem, limit);
  return workspace_->result;
}

StreamOrder interleave(const SlotProblem& problem, OrderLimit limit) {
  validate(problem);
  Interleaver interleaver;
  return interleaver.solve(problem, limit);
}

}  // namespace tidemark
