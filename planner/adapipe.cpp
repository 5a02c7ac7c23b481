#include "planner/adapipe.h"

#include <algorithm>
#include <map>
#include <utility>

#include "planner/provision.h"

namespace tidemark {
namespace {

// Work for one stage's knapsack; equal units are one class, so that few are left to decide.
constexpr WorkLimit kKnapsackLimit{200'000};

// Slots of one stage.
struct SlotPair {
  std::int64_t forward_ns = 0;
  std::int64_t backward_ns = 0;
};

// Knapsacks of a problem's stages, each solved once for layers that are alike.
class Knapsacks {
 public:
  explicit Knapsacks(const AdaPipeProblem& problem) : problem_(problem) {
    std::map<AdaPipeLayer, std::size_t> kinds;
    for (const AdaPipeLayer& layer : problem.layers) {
      kind_of_.push_back(kinds.try_emplace(layer, kinds.size()).first->second);
    }
    num_kinds_ = kinds.size();
  }

  // Forward times of what stage `stage` runs again of layers [first, end); empty: too much.
  std::optional<std::int64_t> recompute_ns(std::int64_t stage, std::int64_t first,
                                           std::int64_t end) {
    std::vector<std::int64_t> key(num_kinds_ + 1, 0);  // layers of each kind, stage
    for (std::int64_t l = first; l < end; ++l) ++key[kind_of_[static_cast<std::size_t>(l)]];
    key.back() = stage;
    const auto [it, fresh] = solved_.try_emplace(std::move(key), std::nullopt);
    if (!fresh) return it->second;
    const auto solved = adapipe_saves(
        std::span(problem_.layers)
            .subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(end - first)),
        std::ssize(problem_.capacity_bytes) - stage,
        problem_.capacity_bytes[static_cast<std::size_t>(stage)]);
    if (solved) it->second = solved->recompute_ns;
    return it->second;
  }

 private:
  const AdaPipeProblem& problem_;
  std::vector<std::size_t> kind_of_;  // [layer]
  std::size_t num_kinds_ = 0;
  std::map<std::vector<std::int64_t>, std::optional<std::int64_t>> solved_;
};

// The stages from `stage` on, with the layers from some layer on.
struct Tail {
  std::int64_t end_layer = -1;  // of its first stage; -1: no split fits
  SlotPair first;
  std::int64_t warm_up = 0;
  std::int64_t ending = 0;
  std::int64_t steady = 0;

  bool fits() const { return end_layer >= 0; }
};

// `next`: null behind the last stage.
Tail extended(const Tail* next, std::int64_t later_stages, std::int64_t end, SlotPair own) {
  Tail out{end, own, own.forward_ns, own.backward_ns, own.forward_ns + own.backward_ns};
  if (next == nullptr) return out;
  out.warm_up += std::max(next->warm_up + next->first.backward_ns, later_stages * own.forward_ns);
  out.ending += std::max(next->ending + next->first.forward_ns, later_stages * own.backward_ns);
  out.steady = std::max(out.steady, next->steady);
  return out;
}

}  // namespace

std::optional<AdaPipeSaves> adapipe_saves(std::span<const AdaPipeLayer> layers,
                                          std::int64_t in_flight, std::int64_t capacity_bytes) {
  ProvisionProblem knapsack;
  knapsack.floor = {{}};
  knapsack.lanes = {{0, {capacity_bytes}, 0}};
  std::map<AdaPipeUnit, std::size_t> class_of;
  for (const AdaPipeLayer& layer : layers) {
    knapsack.lanes[0].budget[0] -= layer.static_bytes + in_flight * layer.kept_bytes;
    for (const AdaPipeUnit& unit : layer.units) {
      const auto [it, fresh] = class_of.try_emplace(unit, knapsack.classes.size());
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
  if (knapsack.lanes[0].budget[0] < 0) return std::nullopt;
  ProvisionWorkspace workspace;
  const SolveResult solved = provision(knapsack, kKnapsackLimit, workspace);
  if (!solved.has_plan()) return std::nullopt;
  AdaPipeSaves out{{}, solved.objective_ns};
  std::vector<std::int64_t> to_save;
  for (std::size_t c = 0; c < knapsack.classes.size(); ++c) to_save.push_back(solved.counts[2 * c]);
  for (const AdaPipeLayer& layer : layers) {
    std::vector<bool>& saved = out.saved.emplace_back();
    for (const AdaPipeUnit& unit : layer.units) {
      saved.push_back(to_save[class_of.at(unit)]-- > 0);
    }
  }
  return out;
}

AdaPipePlan solve_adapipe(const AdaPipeProblem& problem) {
  const std::int64_t p = std::ssize(problem.capacity_bytes);
  const std::int64_t layers = std::ssize(problem.layers);
  Knapsacks knapsacks(problem);
  const auto total_ns = [&](std::int64_t stage, const Tail& tail) {
    return tail.warm_up + tail.ending + (problem.microbatches - p + stage) * tail.steady;
  };
  // [stage][first layer]
  std::vector<std::vector<Tail>> tails(static_cast<std::size_t>(p),
                                       std::vector<Tail>(static_cast<std::size_t>(layers)));
  for (std::int64_t s = p - 1; s >= 0; --s) {
    const std::int64_t later = p - s - 1;  // stages, with a layer each
    for (std::int64_t first = s == 0 ? 0 : layers - later - 1; first >= s; --first) {
      Tail& best = tails[static_cast<std::size_t>(s)][static_cast<std::size_t>(first)];
      SlotPair own;
      for (std::int64_t end = first + 1; end <= layers - later; ++end) {
        const AdaPipeLayer& last = problem.layers[static_cast<std::size_t>(end - 1)];
        own.forward_ns += last.forward_ns;
        own.backward_ns += last.backward_ns;
        if (later == 0 && end < layers) continue;  // the last stage takes all that is left
        const Tail* const next =
            later == 0 ? nullptr
                       : &tails[static_cast<std::size_t>(s + 1)][static_cast<std::size_t>(end)];
        if (next != nullptr && !next->fits()) continue;
        const auto no_better = [&](const Tail& here) {
          return best.fits() && total_ns(s, best) <= total_ns(s, here);
        };
        if (no_better(extended(next, later, end, own))) continue;  // even if it ran nothing again
        const auto again = knapsacks.recompute_ns(s, first, end);
        if (!again) break;  // more layers need more
        const Tail here = extended(next, later, end, {own.forward_ns, own.backward_ns + *again});
        if (!no_better(here)) best = here;
      }
    }
  }
  AdaPipePlan plan;
  if (!tails[0][0].fits()) return plan;
  plan.iteration_ns = total_ns(0, tails[0][0]);
  std::int64_t first = 0;
  for (const std::vector<Tail>& of_stage : tails) {
    const std::int64_t end = of_stage[static_cast<std::size_t>(first)].end_layer;
    plan.layers.push_back(end - first);
    first = end;
  }
  return plan;
}

}  // namespace tidemark
