#include "planner/rehearsal.h"

#include <algorithm>
#include <utility>

#include "sim/training_run.h"

namespace tidemark {
namespace {

// Drawn for rehearsals: none that a run reaches, nor those that the rows bound samples.
constexpr std::int64_t kFirstRehearsed = 60'000'000;

class Rehearsed : public RoutingSource {
 public:
  explicit Rehearsed(const RoutingSource& of) : of_(of) {}
  void counts(std::int64_t iteration, std::int64_t unit, RoutingCounts& out) const override {
    of_.counts(kFirstRehearsed + iteration, unit, out);
  }

 private:
  const RoutingSource& of_;
};

}  // namespace

Rehearsal rehearsed_adaptive_run(const Job& job, const HardwareProfile& profile, double rows_bound,
                                 const RoutingSource& routing, std::int64_t iterations) {
  const Rehearsed drawn(routing);
  RunSpec spec;
  spec.iterations = iterations;
  spec.checkpoint_interval = 1;
  HardwareProfile card = profile;
  Rehearsal out;
  for (int i = 0; i < kMostRehearsals; ++i) {
    out.run = adaptive_run(job, card, rows_bound);
    Program program = out.run.program;
    TrainingRun run(job, profile, drawn, true, std::move(program), *out.run.policy);
    const RunResult result = run.run(spec, [](const IterationRecord&) { return true; });
    Bytes short_by;
    out.deaths = 0;
    auto death = result.out_of_memory.begin();
    for (const IterationRecord& record : result.iterations) {
      if (!record.out_of_memory) continue;
      if (record.imbalance <= rows_bound) {
        ++out.deaths;
        short_by = std::max(short_by, death->short_by);
      }
      ++death;
    }
    if (out.deaths == 0 || i + 1 == kMostRehearsals) break;
    out.withheld_bytes += short_by.value;
    card.capacity_gib.value = profile.capacity_gib.value - static_cast<double>(out.withheld_bytes) /
                                                               static_cast<double>(kGiB.value);
  }
  return out;
}

}  // namespace tidemark
