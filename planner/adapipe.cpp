#include "planner/adapipe.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "planner/provision.h"

namespace tidemark {
namespace {

// Work for one stage's knapsack; equal units are one class, so that few are left to decide.
constexpr WorkLimit kKnapsackLimit{200'000};

std::int64_t total_ns(const AdaPipeProblem& p, std::int64_t stage, std::int64_t warm_up,
                      std::int64_t ending, std::int64_t steady) {
  return warm_up + ending + (p.microbatches - p.stages + stage) * steady;
}

}  // namespace

AdaPipeStage adapipe_stage(const AdaPipeProblem& problem, std::int64_t stage, std::int64_t first,
                           std::int64_t end) {
  const std::int64_t in_flight = problem.stages - stage;
  AdaPipeStage out{first, end, {}, 0, 0};
  ProvisionProblem knapsack;
  knapsack.floor = {{}};
  knapsack.lanes = {{0, {problem.capacity_bytes}, 0}};
  std::map<std::pair<std::int64_t, std::int64_t>, std::size_t> class_of;  // (time, bytes)
  for (std::int64_t layer = first; layer < end; ++layer) {
    const AdaPipeLayer& l = problem.layers[static_cast<std::size_t>(layer)];
    knapsack.lanes[0].budget[0] -= l.static_bytes;
    out.saved.emplace_back(l.units.size(), true);
    for (const AdaPipeUnit& unit : l.units) {
      out.forward_ns += unit.forward_ns;
      out.backward_ns += unit.backward_ns;
      if (unit.always_saved) {
        knapsack.lanes[0].budget[0] -= in_flight * unit.bytes;
        continue;
      }
      const auto [it, fresh] =
          class_of.try_emplace({unit.forward_ns, unit.bytes}, knapsack.classes.size());
      if (!fresh) {
        ++knapsack.classes[it->second].count;
        continue;
      }
      StorageAction save;
      save.held[0] = {in_flight * unit.bytes, 0};
      StorageAction recompute;
      recompute.kind = ActionKind::kRecompute;
      recompute.compute_ps = {1000 * unit.forward_ns, 0};
      knapsack.classes.push_back({"", 1, {save, recompute}});
    }
  }
  ProvisionWorkspace workspace;
  const SolveResult solved = provision(knapsack, kKnapsackLimit, workspace);
  if (!solved.has_plan()) return {first, first, {}, 0, 0};
  out.backward_ns += solved.objective_ns;
  std::vector<std::int64_t> to_save;
  for (std::size_t c = 0; c < knapsack.classes.size(); ++c) to_save.push_back(solved.counts[2 * c]);
  for (std::int64_t layer = first; layer < end; ++layer) {
    const AdaPipeLayer& l = problem.layers[static_cast<std::size_t>(layer)];
    for (std::size_t u = 0; u < l.units.size(); ++u) {
      const AdaPipeUnit& unit = l.units[u];
      if (unit.always_saved) continue;
      const std::size_t c = class_of.at({unit.forward_ns, unit.bytes});
      out.saved[static_cast<std::size_t>(layer - first)][u] = to_save[c]-- > 0;
    }
  }
  return out;
}

AdaPipePlan solve_adapipe(const AdaPipeProblem& problem) {
  // The stages from `stage` on, with the layers from some layer on.
  struct Tail {
    bool fits = false;
    std::int64_t warm_up = 0, ending = 0, steady = 0;
    std::int64_t total = 0;
    AdaPipeStage first;
  };
  const std::int64_t p = problem.stages;
  const auto layers = static_cast<std::int64_t>(problem.layers.size());
  std::vector<std::vector<Tail>> tails(
      static_cast<std::size_t>(p),
      std::vector<Tail>(static_cast<std::size_t>(layers)));  // [stage][first layer]
  for (std::int64_t s = p - 1; s >= 0; --s) {
    for (std::int64_t first = s == 0 ? 0 : layers - (p - s); first >= s; --first) {
      Tail& best = tails[static_cast<std::size_t>(s)][static_cast<std::size_t>(first)];
      const std::int64_t last = s == p - 1 ? layers : layers - (p - s - 1);
      for (std::int64_t end = s == p - 1 ? layers : first + 1; end <= last; ++end) {
        AdaPipeStage own = adapipe_stage(problem, s, first, end);
        if (own.end_layer == own.first_layer) continue;
        Tail here{true, own.forward_ns, own.backward_ns, own.forward_ns + own.backward_ns, 0, {}};
        if (s < p - 1) {
          const Tail& next = tails[static_cast<std::size_t>(s) + 1][static_cast<std::size_t>(end)];
          if (!next.fits) continue;
          const std::int64_t later = p - s - 1;
          here.warm_up += std::max(next.warm_up + next.first.backward_ns, later * own.forward_ns);
          here.ending += std::max(next.ending + next.first.forward_ns, later * own.backward_ns);
          here.steady = std::max(here.steady, next.steady);
        }
        here.total = total_ns(problem, s, here.warm_up, here.ending, here.steady);
        if (best.fits && best.total <= here.total) continue;
        here.first = std::move(own);
        best = std::move(here);
      }
    }
  }
  AdaPipePlan plan;
  if (!tails[0][0].fits) return plan;
  plan.iteration_ns = tails[0][0].total;
  std::int64_t first = 0;
  for (std::int64_t s = 0; s < p; ++s) {
    plan.stages.push_back(
        tails[static_cast<std::size_t>(s)][static_cast<std::size_t>(first)].first);
    first = plan.stages.back().end_layer;
  }
  return plan;
}

}  // namespace tidemark
