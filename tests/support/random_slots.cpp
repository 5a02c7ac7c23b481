#include "tests/support/random_slots.h"

#include <algorithm>

namespace tidemark {
namespace {

std::int32_t to_int(std::int64_t v) { return static_cast<std::int32_t>(v); }

std::int64_t size_of(const Chain& chain) {
  return static_cast<std::int64_t>(chain.operators.size());
}

// A random order of all chains' operators that keeps each chain's own.
std::vector<ChainPoint> random_merge(Rng& rng, const std::vector<Chain>& chains) {
  std::vector<std::int32_t> next(chains.size(), 0);
  std::vector<ChainPoint> order;
  std::int64_t total = 0;
  for (const Chain& chain : chains) total += size_of(chain);
  while (static_cast<std::int64_t>(order.size()) < total) {
    const auto c = static_cast<std::size_t>(rng.below(static_cast<std::int64_t>(chains.size())));
    if (next[c] < size_of(chains[c]))
      order.push_back({to_int(static_cast<std::int64_t>(c)), next[c]++});
  }
  return order;
}

std::int64_t peak_of(const SlotProblem& problem, const std::vector<std::int32_t>& order) {
  SlotGraph graph;
  graph.assign(problem);
  std::int64_t level = problem.memory.held_bytes;
  std::int64_t peak = level;
  for (std::int32_t op : order) {
    const SlotOperator& o = graph.operators[static_cast<std::size_t>(op)];
    level += o.before_bytes;
    peak = std::max(peak, level);
    level += o.after_bytes;
    peak = std::max(peak, level);
  }
  return peak;
}

SlotOperator random_work(Rng& rng, std::int32_t stream, std::int64_t longest) {
  return {stream, rng.below(8) == 0 ? 0 : rng.between(1, longest), 0, 0};
}

}  // namespace

Chain random_chain(Rng& rng, const char* name, std::int64_t size, std::int64_t streams,
                   std::int64_t longest, bool memory) {
  Chain chain{name, {}};
  std::int64_t held = 0;
  for (std::int64_t i = 0; i < size; ++i) {
    SlotOperator o = random_work(rng, to_int(rng.below(streams)), longest);
    if (memory) {
      o.before_bytes = rng.below(6);
      held += o.before_bytes;
      o.after_bytes = -rng.below(held + 1);
      held += o.after_bytes;
    }
    chain.operators.push_back(o);
  }
  return chain;
}

SlotProblem random_problem(std::uint64_t seed, std::int64_t max_size) {
  Rng rng(seed);
  SlotProblem problem;
  const std::int64_t streams = rng.between(1, 4);
  const std::int64_t longest = rng.pick<std::int64_t>({1, 4, 30});
  const bool memory = rng.coin();
  const std::int64_t num_chains = rng.between(1, 3);
  const std::int64_t size = rng.between(num_chains, max_size);
  std::int64_t left = size;
  for (std::int64_t c = 0; c < num_chains; ++c) {
    const std::int64_t length = rng.between(1, std::max<std::int64_t>(1, left / 2));
    left -= length;
    problem.chains.push_back(random_chain(rng, "chain", length, streams, longest, memory));
    problem.chains.back().name += std::to_string(c);
  }
  const std::vector<ChainPoint> merged = random_merge(rng, problem.chains);
  const auto num_points = static_cast<std::int64_t>(merged.size());
  const auto point = [&](std::int64_t i) { return merged[static_cast<std::size_t>(i)]; };
  for (std::int64_t i = rng.below(4); i > 0; --i) {
    const std::int64_t first = rng.below(num_points);
    const std::int64_t then = rng.between(first, num_points - 1);
    if (point(first).chain == point(then).chain) continue;
    problem.precedences.push_back({point(first), point(then)});
  }
  // The order that everything here respects: a floating operator right after its earliest point.
  std::vector<std::vector<std::int32_t>> released(merged.size() + 1);
  for (; left > 0; --left) {
    FloatingOperator f;
    f.work = random_work(rng, to_int(rng.below(streams + 1)), longest);
    if (memory) {
      f.work.before_bytes = rng.between(-3, 3);
      f.work.after_bytes = rng.between(-3, 1);
    }
    const std::int64_t after = rng.between(-1, num_points - 1);
    if (after >= 0) f.after = point(after);
    if (after + 1 < num_points && rng.coin())
      f.before = point(rng.between(after + 1, num_points - 1));
    released[static_cast<std::size_t>(after + 1)].push_back(
        to_int(num_points + static_cast<std::int64_t>(problem.floating.size())));
    problem.floating.push_back(f);
  }
  if (memory) {
    SlotGraph graph;
    graph.assign(problem);
    std::vector<std::int32_t> order = released[0];
    for (std::size_t i = 0; i < merged.size(); ++i) {
      order.push_back(graph.at(merged[i]));
      order.insert(order.end(), released[i + 1].begin(), released[i + 1].end());
    }
    problem.memory.held_bytes = rng.below(5);
    problem.memory.limit_bytes = peak_of(problem, order);
  }
  return problem;
}

SlotProblem random_slot(std::uint64_t seed, const SlotSizes& sizes) {
  Rng rng(seed);
  SlotProblem problem;
  const auto chain = [&](const char* name, std::int64_t size, std::int32_t first_stream) {
    Chain c{name, {}};
    for (std::int64_t i = 0; i < size; ++i) {
      const auto stream = to_int((first_stream + i) % 2);
      c.operators.push_back({stream, rng.between(100, 1000), 0, 0});
    }
    problem.chains.push_back(std::move(c));
  };
  chain("forward", sizes.forward, 0);
  chain("backward", sizes.backward, to_int(rng.below(2)));
  if (sizes.recompute > 0) {
    chain("recompute", sizes.recompute, 0);
    // Recomputed in the backward's order of layers: each third is needed by a later third.
    for (std::int64_t third = 1; third <= 3; ++third) {
      const std::int64_t r = third * sizes.recompute / 3 - 1;
      const std::int64_t b = third * sizes.backward / 4;
      if (r >= 0) problem.precedences.push_back({{2, to_int(r)}, {1, to_int(b)}});
    }
  }
  const auto floating = [&](std::int32_t stream, ChainPoint after, ChainPoint before) {
    problem.floating.push_back({{stream, rng.between(100, 1000), 0, 0}, after, before});
  };
  for (std::int64_t i = 0; i < sizes.weight_gradients; ++i) {
    floating(0, {1, to_int((i + 1) * sizes.backward / (sizes.weight_gradients + 1))}, {});
  }
  for (std::int64_t i = 0; i < sizes.offloads; ++i) {
    const std::int64_t after = i * sizes.forward / (sizes.offloads + 1);
    const std::int64_t before = (i + 2) * sizes.forward / (sizes.offloads + 1) - 1;
    floating(2, {0, to_int(after)}, {0, to_int(std::min(before, sizes.forward - 1))});
  }
  for (std::int64_t i = 0; i < sizes.reloads; ++i) {
    floating(3, {}, {1, to_int((i + 1) * sizes.backward / (sizes.reloads + 1))});
  }
  return problem;
}

SlotProblem random_slot_with_memory(std::uint64_t seed, const SlotSizes& sizes, double slack) {
  SlotProblem problem = random_slot(seed, sizes);
  Rng rng(seed ^ 0x6d656d6f7279ULL);
  for (SlotOperator& o : problem.chains[0].operators) {
    o.before_bytes = rng.between(0, 100);
    o.after_bytes = -rng.below(o.before_bytes / 2 + 1);
  }
  for (SlotOperator& o : problem.chains[1].operators) {
    o.before_bytes = rng.between(0, 60);
    o.after_bytes = -o.before_bytes - rng.between(0, 60);
  }
  if (problem.chains.size() > 2) {
    for (SlotOperator& o : problem.chains[2].operators) o.before_bytes = rng.between(0, 20);
  }
  for (FloatingOperator& f : problem.floating) {
    const std::int64_t bytes = rng.between(0, 80);
    if (f.work.stream == 0) f.work.after_bytes = -bytes / 4;
    if (f.work.stream == 2) {
      problem.chains[0].operators[static_cast<std::size_t>(f.before.position)].before_bytes -=
          bytes;
    }
    if (f.work.stream == 3) {
      f.work.before_bytes = bytes;
      problem.chains[1].operators[static_cast<std::size_t>(f.before.position)].after_bytes -= bytes;
    }
  }

  // Recompute, backward, its weight gradients and reloads first, then the forward; or reversed.
  SlotGraph graph;
  graph.assign(problem);
  const auto serial = [&](bool forward_first) {
    std::vector<std::int32_t> order;
    std::vector<bool> issued(static_cast<std::size_t>(graph.size()), false);
    std::vector<std::int32_t> chains =
        forward_first ? std::vector<std::int32_t>{0, 2, 1} : std::vector<std::int32_t>{2, 1, 0};
    std::erase_if(chains, [&](std::int32_t c) { return c >= std::ssize(problem.chains); });
    const auto issue = [&](std::int32_t op) {
      issued[static_cast<std::size_t>(op)] = true;
      order.push_back(op);
    };
    for (std::int32_t c : chains) {
      for (std::int32_t i = 0; i < size_of(problem.chains[static_cast<std::size_t>(c)]); ++i) {
        std::int32_t op = graph.chain_begin.back();
        for (const FloatingOperator& f : problem.floating) {
          if (f.before == ChainPoint{c, i} && !issued[static_cast<std::size_t>(op)]) issue(op);
          ++op;
        }
        issue(graph.at({c, i}));
        op = graph.chain_begin.back();
        for (const FloatingOperator& f : problem.floating) {
          if (f.after == ChainPoint{c, i} && !f.before.exists()) issue(op);
          ++op;
        }
      }
    }
    return peak_of(problem, order);
  };
  const std::int64_t low = serial(false);
  const std::int64_t high = serial(true);
  problem.memory.limit_bytes =
      std::min(low, high) +
      static_cast<std::int64_t>(slack *
                                static_cast<double>(std::max(low, high) - std::min(low, high)));
  return problem;
}

}  // namespace tidemark
