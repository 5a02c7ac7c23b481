#include "sim/training_run.h"

#include <algorithm>
#include <numeric>
#include <span>
#include <utility>

#include "sim/caching_allocator.h"
#include "sim/issue_clock.h"
#include "sim/parallel.h"
#include "sim/rescue_swap.h"
#include "sim/reserved_bound.h"
#include "sim/simulation.h"

namespace tidemark {
namespace {

// Iterations of a synthetic workload far beyond any run: where one that died is drawn anew.
constexpr std::int64_t kAttemptStride = 100'000'000;
// An iteration that dies this often in a row will not live.
constexpr std::int64_t kMostAttempts = 3;

}  // namespace

std::int64_t drawn_iteration(std::int64_t iteration, std::int64_t attempt) {
  return iteration + attempt * kAttemptStride;
}

double RunResult::tokens_per_second(const Job& job) const {
  return total_ns == 0 ? 0
                       : static_cast<double>(finished * job.tokens_per_iteration()) /
                             (static_cast<double>(total_ns) * 1e-9);
}

std::optional<std::int64_t> RunResult::highest_bound() const {
  if (!std::ranges::all_of(stages, [](const StageReserved& s) { return s.bound.has_value(); })) {
    return std::nullopt;
  }
  return std::ranges::max_element(stages, {}, &StageReserved::bound) - stages.begin();
}

bool cards_are_alike(const Job& job, const RoutingInput& routing) {
  const TrainingOptions& o = job.options;
  return job.model.num_moe_layers() == 0 || o.moe_pad_expert_input_to_capacity ||
         o.moe_router_force_load_balancing ||
         (routing.file.empty() && routing.workload.kind == WorkloadKind::kBalanced);
}

struct TrainingRun::Impl {
  Impl(const Job& given, const HardwareProfile& hardware, const RoutingSource& source,
       std::int64_t evaluated_units, Program runs, const Policy* decides, bool swaps = false)
      : job(on_platform(given, hardware)),
        profile(hardware),
        routing(source),
        program(std::move(runs)),
        policy(decides),
        units(static_cast<std::size_t>(evaluated_units)),
        lanes(static_cast<std::size_t>(program.lanes)),
        limit(segment_limit(job, profile)),
        records(records_streams(job, profile) || decides != nullptr),
        rescues(swaps) {
    stages.resize(program.stages.size());
    parallel_for(stages.size(), [&](std::size_t s) {
      Stage& stage = stages[s];
      const StageProgram& p = program.stages[s];
      stage.sequence =
          build_memory_sequence(p.graph, program.schedule, static_cast<std::int32_t>(s), p.offload);
      stage.compiled = std::make_unique<LanePeaks>(job, p.graph, stage.sequence);
      stage.resident = resident_items(job, profile, p, static_cast<std::int64_t>(s));
      stage.peaks.resize(units * lanes);
      stage.highest.assign(units * lanes, 0);
      stage.waits.assign(units * lanes, 0);
    });
    rows.assign(units, LaneRows(job));
    imbalance.resize(units);
    if (policy != nullptr) decisions.assign(units, UnitDecisions(stages.size()));
  }

  struct Stage {
    MemorySequence sequence;
    std::unique_ptr<LanePeaks> compiled;
    std::vector<ResidentItem> resident;
    std::vector<std::int64_t> peaks;  // [unit][lane], of this iteration, without resident memory
    std::int64_t alike = 0;           // what all its cards hold beside that
    // [unit][lane]: by a card; where the hottest swaps, the others do as soon.
    std::int64_t held(std::size_t c) const {
      return std::min(peaks[c] + alike, card.memory.peak.value);
    }
    std::vector<std::int64_t> highest;  // [unit][lane], of the run, with it
    std::vector<std::int64_t> waits;    // [unit][lane], added up
    CardId hottest;
    CardReplay card;       // of the hottest
    Bytes unused;          // by the hottest, as EmulatedLane has it
    Bytes reserved;        // of emulated cards, of the run
    Bytes reserved_bound;  // on all its cards, of the run
    std::optional<OutOfMemory> out_of_memory;
    std::int64_t out_of_memory_ns = 0;
  };

  void route(std::int64_t iteration) {
    parallel_for(units, [&](std::size_t u) {
      thread_local RoutingCounts counts;  // ten megabytes that every unit can share
      routing.counts(iteration, static_cast<std::int64_t>(u), counts);
      rows[u].assign(counts);
      imbalance[u] = rows[u].max_over_mean();
    });
  }

  void find_peaks() {
    parallel_for(units * stages.size(), [&](std::size_t i) {
      const std::size_t u = i / stages.size();
      Stage& stage = stages[i % stages.size()];
      std::vector<std::int64_t> own(lanes);
      const StageDecisions* taken = nullptr;
      if (policy != nullptr) {
        StageDecisions& mine = decisions[u][i % stages.size()];
        mine = policy->decide(static_cast<std::int32_t>(i % stages.size()), rows[u]);
        taken = &mine;
      }
      stage.compiled->evaluate(rows[u], taken != nullptr ? *taken : StageDecisions(), own,
                               std::span(stage.peaks).subspan(u * lanes, lanes));
    });
    for (std::size_t s = 0; s < stages.size(); ++s) {
      const auto most = std::ranges::max_element(stages[s].peaks) - stages[s].peaks.begin();
      const auto card = static_cast<std::size_t>(most);
      stages[s].hottest = {static_cast<std::int32_t>(card / lanes), static_cast<std::int32_t>(s),
                           static_cast<std::int32_t>(card % lanes)};
    }
  }

  // Clocks of the hottest cards only.
  IterationTimes run_engine() {
    clocks.clear();
    std::vector<Recorder*> recorders(units, nullptr);
    for (std::size_t u = 0; u < units; ++u) {
      std::vector<std::int64_t> watched;
      for (const Stage& stage : stages) {
        watched.push_back(stage.hottest.unit == static_cast<std::int32_t>(u) ? stage.hottest.lane
                                                                             : -1);
      }
      const bool any = std::ranges::any_of(watched, [](std::int64_t lane) { return lane >= 0; });
      clocks.push_back(any ? std::make_unique<ClockRecorder>(program, watched, nullptr) : nullptr);
      recorders[u] = clocks.back().get();
    }
    return run_units(program, rows, recorders, decisions);
  }

  void emulate() {
    parallel_for(stages.size(), [&](std::size_t s) {
      Stage& stage = stages[s];
      const auto unit = static_cast<std::size_t>(stage.hottest.unit);
      const StageClock& clock = clocks[unit]->clock(s);
      Card card{
          .job = job,
          .stage = static_cast<std::int64_t>(s),
          .graph = program.stages[s].graph,
          .steps = program.schedule.stages[s],
          .sequence = stage.sequence,
          .resident = stage.resident,
          .rows = rows[static_cast<std::size_t>(stage.hottest.unit)],
          .lane = stage.hottest.lane,
          .collectives_record_streams =
              profile.allocator_for(job.versions.dtk).collectives_record_streams,
          .clock = records ? &clock : nullptr,
          .capacity = profile.capacity(),
          .decisions = policy != nullptr ? &decisions[unit][s] : nullptr,
      };
      // Cards of a stage differ in their activations.
      const std::int64_t own =
          stage.peaks[unit * lanes + static_cast<std::size_t>(stage.hottest.lane)];
      stage.card = replay_card(card, CachingAllocator::kNoLimit);
      stage.alike = stage.card.memory.peak.value - own;
      stage.unused = stage.card.memory.reserved - stage.card.memory.peak;
      stage.out_of_memory.reset();
      if (stage.card.memory.reserved <= limit) return;
      card.rescues = rescues;
      const CardReplay limited = replay_card(card, limit);
      if (!limited.out_of_memory) {
        stage.card = limited;
        if (limited.swapped == Bytes()) stage.alike = limited.memory.peak.value - own;
        return;
      }
      stage.out_of_memory = limited.out_of_memory;
      stage.out_of_memory_ns = 0;
      if (limited.out_of_memory->event >= 0) {
        const MemoryEvent& e =
            stage.sequence.events[static_cast<std::size_t>(limited.out_of_memory->event)];
        stage.out_of_memory_ns =
            clock.steps[static_cast<std::size_t>(e.step)][static_cast<std::size_t>(e.op)].issued_ns;
      }
    });
  }

  void bound_reserved() {
    std::vector<Bytes> bounds(units * stages.size(), CachingAllocator::kNoLimit);
    // Where a policy decides, a stage's sequences differ from unit to unit.
    parallel_for(policy == nullptr ? bounds.size() : 0, [&](std::size_t i) {
      const std::size_t u = i / stages.size();
      const std::size_t s = i % stages.size();
      const Stage& stage = stages[s];
      const EmulatedLane emulated{rows[static_cast<std::size_t>(stage.hottest.unit)],
                                  stage.hottest.lane, stage.unused, stage.card.memory.reserved};
      std::vector<Bytes> peaks;
      for (std::size_t l = 0; l < lanes; ++l) {
        peaks.push_back(Bytes(stage.peaks[u * lanes + l] + stage.alike));
      }
      bounds[i] =
          std::ranges::max(reserved_bounds(job, program.stages[s].graph, rows[u], peaks, emulated));
    });
    for (std::size_t i = 0; i < bounds.size(); ++i) {
      Bytes& bound = stages[i % stages.size()].reserved_bound;
      bound = std::max(bound, bounds[i]);
    }
  }

  IterationRecord iterate(std::int64_t iteration, std::int64_t attempt) {
    IterationRecord record = pass(iteration, attempt);
    ran_again = again != nullptr && !record.out_of_memory && run_again_if(rows);
    if (!ran_again) return record;
    const IterationRecord second = again->pass(iteration, attempt);
    record.run_again = true;
    record.time_ns += second.time_ns;
    record.out_of_memory = second.out_of_memory;
    record.peak_allocated = std::max(record.peak_allocated, second.peak_allocated);
    record.alloc_retries = std::max(record.alloc_retries, second.alloc_retries);
    if (second.peak_reserved > record.peak_reserved) {
      record.peak_reserved = second.peak_reserved;
      record.hottest = second.hottest;
    }
    return record;
  }

  // The step, once.
  IterationRecord pass(std::int64_t iteration, std::int64_t attempt) {
    route(drawn_iteration(iteration, attempt));
    find_peaks();
    const IterationTimes times = run_engine();
    emulate();

    IterationRecord record;
    record.iteration = iteration;
    record.attempt = attempt;
    record.time_ns = times.iteration_ns;
    record.imbalance = std::ranges::max(imbalance);
    for (std::size_t s = 0; s < stages.size(); ++s) {
      Stage& stage = stages[s];
      for (std::size_t c = 0; c < stage.peaks.size(); ++c) {
        stage.highest[c] = std::max(stage.highest[c], stage.held(c));
        stage.waits[c] += times.units[c / lanes].stages[s].group_wait_ns[c % lanes];
      }
      record.peak_allocated = std::max(record.peak_allocated, stage.card.memory.peak);
      record.alloc_retries = std::max(record.alloc_retries, stage.card.memory.alloc_retries);
      stage.reserved = std::max(stage.reserved, stage.card.memory.reserved);
      if (stage.card.memory.reserved > record.peak_reserved) {
        record.peak_reserved = stage.card.memory.reserved;
        record.hottest = stage.hottest;
      }
      if (stage.out_of_memory &&
          (!record.out_of_memory || stage.out_of_memory_ns < record.time_ns)) {
        record.out_of_memory = true;
        record.time_ns = stage.out_of_memory_ns;
        first_out = s;
      }
    }
    if (rescues && !record.out_of_memory) count_swaps(record);
    bound_reserved();
    return record;
  }

  void count_swaps(IterationRecord& record) const {
    const HostLink& link = profile.host_link;
    for (const Stage& stage : stages) {
      record.swapped += stage.card.swapped;
      record.swap_ns =
          std::max(record.swap_ns, rescue_swap_ns(stage.card.swapped, link.d2h_gb_per_s.value * 1e9,
                                                  link.h2d_gb_per_s.value * 1e9));
    }
    record.time_ns += record.swap_ns;
  }

  RunOutOfMemory describe(const IterationRecord& record) const {
    if (ran_again) return again->describe(record);
    const Stage& stage = stages[first_out];
    RunOutOfMemory out;
    out.iteration = record.iteration;
    out.card = stage.hottest;
    out.time_ns = record.time_ns;
    out.requested = stage.out_of_memory->requested;
    out.short_by = stage.card.memory.reserved - limit;
    if (stage.out_of_memory->event < 0) return out;
    const MemoryEvent& e =
        stage.sequence.events[static_cast<std::size_t>(stage.out_of_memory->event)];
    const Storage& storage =
        program.stages[first_out].graph.storages[static_cast<std::size_t>(e.storage)];
    out.microbatch = e.microbatch;
    out.layer = storage.layer;
    out.storage = storage.name;
    return out;
  }

  std::vector<CardPeak> card_peaks() const {
    std::vector<CardPeak> out;
    for (std::size_t u = 0; u < units; ++u) {
      for (std::size_t s = 0; s < stages.size(); ++s) {
        for (std::size_t l = 0; l < lanes; ++l) {
          std::int64_t peak = stages[s].held(u * lanes + l);
          if (ran_again) peak = std::max(peak, again->stages[s].held(u * lanes + l));
          out.push_back({{static_cast<std::int32_t>(u), static_cast<std::int32_t>(s),
                          static_cast<std::int32_t>(l)},
                         Bytes(peak)});
        }
      }
    }
    return out;
  }

  std::vector<StageReserved> reserved() const {
    std::vector<StageReserved> out;
    for (std::size_t s = 0; s < stages.size(); ++s) {
      StageReserved& stage = out.emplace_back();
      stage.emulated = stages[s].reserved;
      if (again != nullptr) stage.emulated = std::max(stage.emulated, again->stages[s].reserved);
      if (stages[s].reserved_bound == CachingAllocator::kNoLimit) continue;
      stage.bound = stages[s].reserved_bound;
    }
    return out;
  }

  CardSummary summarize(std::int64_t iterations) const {
    CardSummary out;
    std::vector<CardPeak> all;
    std::int64_t wait_sum = 0;
    std::int64_t wait_max = 0;
    for (std::size_t s = 0; s < stages.size(); ++s) {
      for (std::size_t c = 0; c < stages[s].highest.size(); ++c) {
        std::int64_t highest = stages[s].highest[c];
        std::int64_t waits = stages[s].waits[c];
        if (again != nullptr) {
          highest = std::max(highest, again->stages[s].highest[c]);
          waits += again->stages[s].waits[c];
        }
        all.push_back({{static_cast<std::int32_t>(c / lanes), static_cast<std::int32_t>(s),
                        static_cast<std::int32_t>(c % lanes)},
                       Bytes(highest)});
        wait_sum += waits;
        wait_max = std::max(wait_max, waits);
      }
    }
    std::ranges::sort(all, [](const CardPeak& a, const CardPeak& b) {
      return a.peak != b.peak ? a.peak > b.peak : a.card < b.card;
    });
    Bytes sum;
    for (const CardPeak& card : all) sum += card.peak;
    const auto count = std::ssize(all);
    out.min = all.back().peak;
    out.max = all.front().peak;
    out.mean = Bytes(sum.value / count);
    out.p999 = all[static_cast<std::size_t>(count / 1000)].peak;
    out.hottest.assign(all.begin(), all.begin() + std::min<std::ptrdiff_t>(10, count));
    out.mean_wait_ns = wait_sum / (count * std::max<std::int64_t>(1, iterations));
    out.max_wait_ns = wait_max / std::max<std::int64_t>(1, iterations);
    return out;
  }

  const Job job;
  const HardwareProfile& profile;
  const RoutingSource& routing;
  const Program program;
  const Policy* const policy;  // null: nothing is optional
  const std::size_t units;
  const std::size_t lanes;
  const Bytes limit;
  const bool records;
  const bool rescues;
  std::vector<Stage> stages;
  std::vector<LaneRows> rows;                          // [unit]
  std::vector<double> imbalance;                       // [unit]: most rows of a lane over the mean
  std::vector<UnitDecisions> decisions;                // [unit]; none without a policy
  std::vector<std::unique_ptr<ClockRecorder>> clocks;  // [unit], null where nothing is watched
  std::size_t first_out = 0;                           // the stage that ran out of memory first

  std::unique_ptr<Impl> again;  // what a step is run again with; null: it never is
  std::function<bool(const std::vector<LaneRows>&)> run_again_if;
  bool ran_again = false;  // the last one
};

TrainingRun::TrainingRun(const Job& job, const HardwareProfile& profile,
                         const RoutingSource& routing, bool alike)
    : impl_(std::make_unique<Impl>(job, profile, routing, alike ? 1 : job.layout.units(),
                                   build_program(on_platform(job, profile), profile), nullptr)) {}
TrainingRun::TrainingRun(const Job& job, const HardwareProfile& profile,
                         const RoutingSource& routing, bool alike, Program program,
                         const Policy& policy, std::optional<Rerun> rerun, bool rescues)
    : impl_(std::make_unique<Impl>(job, profile, routing, alike ? 1 : job.layout.units(),
                                   std::move(program), &policy, rescues)) {
  if (!rerun) return;
  impl_->again =
      std::make_unique<Impl>(job, profile, routing, static_cast<std::int64_t>(impl_->units),
                             std::move(rerun->program), nullptr);
  impl_->run_again_if = std::move(rerun->needed);
}
TrainingRun::TrainingRun(const Job& job, const HardwareProfile& profile,
                         const RoutingSource& routing, bool alike, Program program)
    : impl_(std::make_unique<Impl>(job, profile, routing, alike ? 1 : job.layout.units(),
                                   std::move(program), nullptr)) {}
TrainingRun::~TrainingRun() = default;

std::vector<CardPeak> TrainingRun::card_peaks() const { return impl_->card_peaks(); }
const std::vector<UnitDecisions>& TrainingRun::decisions() const { return impl_->decisions; }

RunResult TrainingRun::run(const RunSpec& spec,
                           const std::function<bool(const IterationRecord&)>& on_iteration) {
  RunResult out;
  out.units = static_cast<std::int64_t>(impl_->units);
  out.limit = impl_->limit;
  const auto restart_ns = static_cast<std::int64_t>(spec.restart_seconds * 1e9);
  std::vector<std::int64_t> taken;  // [iteration]
  std::int64_t checkpoint = 0;      // iteration at which the last one was written
  std::int64_t attempt = 0;
  while (out.finished < spec.iterations) {
    const IterationRecord record = impl_->iterate(out.finished, attempt);
    out.iterations.push_back(record);
    out.total_ns += record.time_ns;
    if (record.out_of_memory) {
      out.out_of_memory.push_back(impl_->describe(record));
      out.lost_ns += record.time_ns;
      if (!spec.checkpoint_interval || spec.repeats_routing || attempt + 1 == kMostAttempts) {
        out.stuck = true;
      } else {
        const std::int64_t again =
            std::accumulate(taken.begin() + checkpoint, taken.end(), std::int64_t{0});
        out.total_ns += restart_ns + again;
        out.lost_ns += restart_ns + again;
        ++attempt;
      }
    } else {
      attempt = 0;
      ++out.finished;
      taken.push_back(record.time_ns);
      if (spec.checkpoint_interval && out.finished % *spec.checkpoint_interval == 0) {
        checkpoint = out.finished;
      }
    }
    out.interrupted = !on_iteration(record);
    if (out.stuck || out.interrupted) break;
  }
  out.cards = impl_->summarize(std::ssize(out.iterations));
  out.stages = impl_->reserved();
  return out;
}

}  // namespace tidemark
