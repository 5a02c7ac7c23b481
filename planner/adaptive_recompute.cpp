#include "planner/adaptive_recompute.h"

#include <algorithm>
#include <cassert>
#include <limits>
#include <numeric>
#include <utility>

#include "planner/provision.h"

namespace tidemark {
namespace {

constexpr WorkLimit kLayersLimit{1'000'000};

struct Option {
  std::int64_t bytes = 0;
  std::int64_t cost_ns = 0;
  LayerRecompute what;
};

std::vector<Option> options_of(const AdaptiveRecomputeProblem& p) {
  std::vector<Option> out{{p.layer_bytes, 0, {}}};
  std::vector<std::int32_t> worthwhile;
  for (std::size_t m = 0; m < p.modules.size(); ++m) {
    if (p.modules[m].bytes >= p.modules[m].input_bytes) {
      worthwhile.push_back(static_cast<std::int32_t>(m));
    }
  }
  for (std::uint32_t mask = 1; mask < 1U << worthwhile.size(); ++mask) {
    Option option{p.layer_bytes, 0, {}};
    bool nested = false;
    for (std::size_t i = 0; i < worthwhile.size(); ++i) {
      if ((mask >> i & 1U) == 0) continue;
      const RecomputeModule& module = p.modules[static_cast<std::size_t>(worthwhile[i])];
      const auto& chosen = option.what.modules;
      option.bytes -= module.bytes - module.input_bytes;
      option.cost_ns += module.forward_ns;
      // Parents may come before or after their children.
      for (std::int32_t other : chosen) {
        nested |= other == module.parent ||
                  p.modules[static_cast<std::size_t>(other)].parent == worthwhile[i];
      }
      option.what.modules.push_back(worthwhile[i]);
    }
    if (!nested) out.push_back(std::move(option));
  }
  Option full{p.layer_input_bytes, p.layer_ns, {}};
  full.what.full = true;
  out.push_back(std::move(full));
  return out;
}

// Without those that another option beats or equals in bytes and time: of the thousands of sets of
// modules, hundreds are left.
std::vector<Option> best_options(std::vector<Option> options) {
  std::vector<std::size_t> order(options.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(
      order, {}, [&](std::size_t i) { return std::pair(options[i].cost_ns, options[i].bytes); });
  std::int64_t least = std::numeric_limits<std::int64_t>::max();
  std::erase_if(order, [&](std::size_t i) {
    const bool beaten = options[i].bytes >= least;
    least = std::min(least, options[i].bytes);
    return beaten;
  });
  std::ranges::sort(order);
  std::vector<Option> out;
  for (const std::size_t i : order) out.push_back(std::move(options[i]));
  return out;
}

}  // namespace

AdaptiveRecomputePlan solve_adaptive_recompute(const AdaptiveRecomputeProblem& problem) {
  assert(problem.modules.size() <= 16);
  std::vector<Option> options = best_options(options_of(problem));
  ProvisionProblem knapsack;
  knapsack.floor = {{}};
  knapsack.lanes = {
      {0,
       {std::max<std::int64_t>(problem.device_bytes - problem.static_bytes, 0) / problem.stages},
       0}};
  StorageClass layers{"layer", problem.layers, {}};
  for (const Option& option : options) {
    StorageAction action;
    action.held[0] = {option.bytes, 0};
    action.compute_ps = {1000 * option.cost_ns, 0};
    layers.actions.push_back(action);
  }
  knapsack.classes.push_back(std::move(layers));
  ProvisionWorkspace workspace;
  const SolveResult solved = provision(knapsack, kLayersLimit, workspace);
  AdaptiveRecomputePlan plan;
  plan.fits = solved.has_plan();
  if (!plan.fits) {
    plan.cost_ns = problem.layers * problem.layer_ns;
    plan.bytes = problem.layers * problem.layer_input_bytes;
    plan.options = {{problem.layers, true, {}}};
    return plan;
  }
  for (std::size_t i = 0; i < options.size(); ++i) {
    const std::int64_t n = solved.counts[i];
    if (n == 0) continue;
    options[i].what.layers = n;
    plan.cost_ns += n * options[i].cost_ns;
    plan.bytes += n * options[i].bytes;
    plan.options.push_back(std::move(options[i].what));
  }
  return plan;
}

}  // namespace tidemark
