#include "planner/greedy_ladder.h"

#include <algorithm>
#include <cstddef>
#include <utility>

namespace tidemark {
namespace {

struct Spent {
  std::int64_t fill_ps = 0;
  std::int64_t compute_ps = 0;  // beyond that
  std::int64_t out_ps = 0;
  std::int64_t in_ps = 0;
  std::int64_t host_bytes = 0;
};

Spent with(Spent sum, const CataloguedAction& action, const LadderOptions& options) {
  const std::int64_t rows = options.balanced_rows;
  const std::int64_t fill = exposed_in_fill(action.compute_ps, options).at(rows);
  sum.fill_ps += fill;
  sum.compute_ps += action.compute_ps.at(rows) - fill;
  sum.out_ps += action.out_ps.at(rows);
  sum.in_ps += action.in_ps.at(rows);
  sum.host_bytes += action.host_bytes.at(rows);
  return sum;
}

std::int64_t exposed_ps(const Spent& spent, const LadderOptions& options) {
  const std::int64_t period = options.period_ns * kPsPerNs;
  return spent.fill_ps +
         std::max<std::int64_t>(0, spent.compute_ps - slack_in_steady_state(options)) +
         std::max<std::int64_t>(0, spent.out_ps - period) +
         std::max<std::int64_t>(0, spent.in_ps - period);
}

struct Move {
  std::size_t entry = 0;
  std::int32_t action = 0;  // 0: there is none
  std::int64_t freed = 0;
  std::int64_t exposes_ps = 0;

  // By exposed time a byte, then by bytes.
  bool better_than(const Move& other) const {
    if (other.action == 0) return true;
    const auto own = static_cast<double>(exposes_ps) * static_cast<double>(other.freed);
    const auto theirs = static_cast<double>(other.exposes_ps) * static_cast<double>(freed);
    return own != theirs ? own < theirs : freed > other.freed;
  }
};

}  // namespace

std::vector<LadderRung> build_greedy_ladder(const ActionCatalogue& catalogue,
                                            const LadderOptions& options) {
  const std::int64_t rows = options.balanced_rows;
  LadderRung plan;
  plan.choice.assign(catalogue.entries.size(), 0);
  std::vector<LadderRung> way{plan};
  Spent spent;
  for (;;) {
    Move best;
    for (std::size_t e = 0; e < catalogue.entries.size(); ++e) {
      if (plan.choice[e] != 0) continue;
      const std::vector<CataloguedAction>& actions = catalogue.entries[e].actions;
      for (std::size_t a = 1; a < actions.size(); ++a) {
        const Spent then = with(spent, actions[a], options);
        const Move move{e, static_cast<std::int32_t>(a), actions[a].freed.at(rows),
                        exposed_ps(then, options) - exposed_ps(spent, options)};
        if (move.freed > 0 && then.host_bytes <= options.host_bytes && move.better_than(best)) {
          best = move;
        }
      }
    }
    if (best.action == 0) break;
    plan.choice[best.entry] = best.action;
    spent =
        with(spent, catalogue.entries[best.entry].actions[static_cast<std::size_t>(best.action)],
             options);
    plan.exposed_ns = ceil_div(exposed_ps(spent, options), kPsPerNs);
    way.push_back(plan);
  }
  const std::int64_t most = held_by(way.front(), catalogue, rows);
  const std::int64_t least = held_by(way.back(), catalogue, rows);
  std::vector<LadderRung> rungs{way.front()};
  auto next = way.begin();
  for (std::int64_t r = 1; r < options.rungs; ++r) {
    const std::int64_t target = most - (most - least) * r / (options.rungs - 1);
    const auto fits = std::find_if(next, way.end(), [&](const LadderRung& rung) {
      return held_by(rung, catalogue, rows) <= target;
    });
    if (fits != next) rungs.push_back(*fits);
    next = fits;
  }
  return rungs;
}

}  // namespace tidemark
