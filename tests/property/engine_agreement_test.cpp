// The lane engine and the memory profile against the naive models of tests/support, on random jobs:
// every start and end of every operator of every card to the nanosecond, every peak to the byte. A
// failure prints its seed and job.

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "hw_profiles/hardware_profile.h"
#include "models/layer_operators.h"
#include "sim/check_schedule.h"
#include "sim/lane_engine.h"
#include "sim/lane_peaks.h"
#include "sim/memory_profile.h"
#include "sim/simulation.h"
#include "sim/slot_operators.h"
#include "tests/support/naive_engine.h"
#include "tests/support/naive_memory.h"
#include "tests/support/random_jobs.h"

namespace tidemark::engine_agreement_test {
namespace {

#ifdef __SANITIZE_ADDRESS__
constexpr std::uint64_t kJobs = 75;
#else
constexpr std::uint64_t kJobs = 300;
#endif

// One profile of measured tables, one of peaks and shares.
const HardwareProfile& profile_of(std::uint64_t seed) {
  static const HardwareProfile measured = load_hardware_profile("bw1000");
  static const HardwareProfile modelled = load_hardware_profile("h20");
  return seed % 2 == 0 ? measured : modelled;
}

class Recording : public Recorder {
 public:
  explicit Recording(const Program& program) {
    for (const auto& steps : program.schedule.stages) spans.emplace_back(steps.size());
  }
  void on_operator(std::int32_t stage, std::int32_t step, std::int32_t op, const SlotProgram&,
                   std::span<const std::int64_t> start,
                   std::span<const std::int64_t> end) override {
    add(stage, step, op, start, end);
  }
  void on_transfer(std::int32_t stage, std::int32_t step, std::span<const std::int64_t> start,
                   std::span<const std::int64_t> end) override {
    add(stage, step, 0, start, end);
  }

  std::vector<std::vector<std::vector<std::vector<Span>>>> spans;  // as NaiveRun's

 private:
  void add(std::int32_t stage, std::int32_t step, std::int32_t op,
           std::span<const std::int64_t> start, std::span<const std::int64_t> end) {
    auto& operators = spans[static_cast<std::size_t>(stage)][static_cast<std::size_t>(step)];
    const auto position = static_cast<std::size_t>(op);
    if (operators.size() <= position) operators.resize(position + 1);
    std::vector<Span>& lanes = operators[position];
    ASSERT_TRUE(lanes.empty()) << "an operator is reported once";
    for (std::size_t l = 0; l < start.size(); ++l) lanes.push_back({start[l], end[l]});
  }
};

void expect_agreement(const Job& job, std::uint64_t seed) {
  const Program program = build_program(job, profile_of(seed));
  ASSERT_THAT(check_schedule(program.schedule), testing::IsEmpty()) << describe(job, seed);
  std::vector<LaneRows> rows;  // of one to three units
  for (std::uint64_t unit = 0; unit <= seed % 3; ++unit) {
    rows.emplace_back(job, random_routing(job, seed + 1000 * unit));
  }
  Recording recording(program);
  std::vector<Recorder*> recorders(rows.size(), nullptr);
  recorders[0] = &recording;
  const IterationTimes times = run_units(program, rows, recorders);
  const NaiveRun naive = run_naively(program, rows);
  ASSERT_EQ(times.iteration_ns, naive.iteration_ns) << describe(job, seed);
  for (std::size_t unit = 0; unit < rows.size(); ++unit) {
    for (std::size_t stage = 0; stage < program.stages.size(); ++stage) {
      ASSERT_EQ(times.units[unit].stages[stage].finish_ns, naive.units[unit].finish_ns[stage])
          << "unit " << unit << " stage " << stage << " " << describe(job, seed);
    }
  }
  const NaiveUnit& first = naive.units[0];
  for (std::size_t stage = 0; stage < first.spans.size(); ++stage) {
    for (std::size_t step = 0; step < first.spans[stage].size(); ++step) {
      ASSERT_EQ(recording.spans[stage][step], first.spans[stage][step])
          << "stage " << stage << " step " << step << " " << describe(job, seed);
    }
  }
}

TEST(EngineAgreement, EveryOperatorOfEveryCardStartsAndEndsAtTheSameNanosecond) {
  for (std::uint64_t seed = 1; seed <= kJobs; ++seed) {
    ASSERT_NO_FATAL_FAILURE(expect_agreement(random_job(seed), seed));
  }
}

TEST(EngineAgreement, HoldsForEverySchedule) {
  for (std::uint64_t seed = 1; seed <= kJobs; ++seed) {
    ASSERT_NO_FATAL_FAILURE(expect_agreement(random_scheduled_job(seed), seed));
  }
}

// Peaks of the lanes of every stage of a job, with what they were computed from.
struct StageCase {
  OperatorGraph graph;
  MemorySequence sequence;
  StageMemory memory;
};

StageCase stage_case(const Job& job, const Schedule& schedule, const LaneRows& rows,
                     std::int32_t stage) {
  StageCase out;
  out.graph = build_operator_graph(job, stage);
  out.sequence = build_memory_sequence(out.graph, schedule, stage);
  out.memory = profile_memory(job, out.graph, out.sequence, rows);
  return out;
}

void expect_peaks(const Job& job, std::uint64_t seed) {
  const LaneRows rows(job, random_routing(job, seed));
  const Schedule schedule = build_schedule(job);
  for (std::int32_t stage = 0; stage < job.layout.pipeline; ++stage) {
    const StageCase c = stage_case(job, schedule, rows, stage);
    for (std::int64_t lane = 0; lane < rows.lanes(); ++lane) {
      const NaiveMemory naive = replay(job, c.graph, c.sequence, rows, lane);
      const LanePeak& peak = c.memory.lanes[static_cast<std::size_t>(lane)];
      ASSERT_EQ(peak.bytes.value, naive.peak) << describe(job, seed);
      ASSERT_EQ(peak.event, naive.first_peak_event) << describe(job, seed);
      ASSERT_EQ(peak.first_iteration.value, naive.first_peak) << describe(job, seed);
      ASSERT_EQ(c.memory.carried_over.value, naive.left_behind) << describe(job, seed);
    }
  }
}

TEST(MemoryAgreement, EveryLanePeaksAtTheByteAndTheEventOfTheReplay) {
  for (std::uint64_t seed = 1; seed <= kJobs; ++seed) {
    ASSERT_NO_FATAL_FAILURE(expect_peaks(random_job(seed), seed));
    ASSERT_NO_FATAL_FAILURE(expect_peaks(random_scheduled_job(seed), seed));
  }
}

TEST(MemorySequence, OfSplitSchedulesEndsEmpty) {
  for (std::uint64_t seed = 1; seed <= kJobs; ++seed) {
    const Job job = random_scheduled_job(seed);
    const Schedule schedule = build_schedule(job);
    for (std::int32_t stage = 0; stage < job.layout.pipeline; ++stage) {
      const OperatorGraph graph = build_operator_graph(job, stage);
      const MemorySequence sequence = build_memory_sequence(graph, schedule, stage);
      ASSERT_TRUE(sequence.carried_over.empty()) << describe(job, seed);
      std::map<std::pair<std::int32_t, std::int32_t>, int> live;
      for (const MemoryEvent& e : sequence.events) {
        int& count = live[{e.storage, e.microbatch}];
        count += e.allocates ? 1 : -1;
        ASSERT_TRUE(count == 0 || count == 1) << describe(job, seed);
      }
      for (const auto& [key, count] : live) ASSERT_EQ(count, 0) << describe(job, seed);
    }
  }
}

// The most bytes a lane holds during each operator that allocates, [step][operator], from the
// memory sequence.
std::vector<std::map<std::int32_t, std::int64_t>> high_water(const Job& job, const StageCase& c,
                                                             const LaneRows& rows,
                                                             std::int64_t lane) {
  const auto microbatches = static_cast<std::int32_t>(job.batch.num_microbatches(job.layout));
  std::int64_t live = c.memory.carried_over.value;
  std::vector<std::map<std::int32_t, std::int64_t>> out;
  for (const MemoryEvent& e : c.sequence.events) {
    const Storage& storage = c.graph.storages[static_cast<std::size_t>(e.storage)];
    std::int64_t of_lane = 0;
    if (storage.bytes.per_row != 0) {
      std::int64_t moe_layer = 0;  // layers of multi-token prediction count too
      for (std::int64_t l = 0; l < storage.layer; ++l) moe_layer += job.model.is_moe(l) ? 1 : 0;
      of_lane = rows.at((e.microbatch + microbatches) % microbatches, moe_layer)[lane];
    }
    out.resize(static_cast<std::size_t>(e.step) + 1);
    live += (e.allocates ? 1 : -1) * round_up(storage.bytes.at(of_lane), 512);
    if (e.allocates) out.back()[e.op] = std::max(out.back()[e.op], live);
  }
  return out;
}

TEST(MemoryAgreement, TheSequenceHoldsWhatMegatronsScheduleHoldsDuringEveryOperator) {
  for (std::uint64_t seed = 1; seed <= kJobs; ++seed) {
    const Job job = random_job(seed);
    const LaneRows rows(job, random_routing(job, seed));
    const Schedule schedule = build_schedule(job);
    for (std::int32_t stage = 0; stage < job.layout.pipeline; ++stage) {
      const StageCase c = stage_case(job, schedule, rows, stage);
      for (const std::int64_t lane : {std::int64_t{0}, rows.lanes() - 1}) {
        const NaiveMemory python = run_schedule(job, c.graph, stage, rows, lane);
        const LanePeak& peak = c.memory.lanes[static_cast<std::size_t>(lane)];
        ASSERT_EQ(peak.bytes.value, python.peak) << describe(job, seed);
        ASSERT_EQ(peak.first_iteration.value, python.first_peak) << describe(job, seed);
        ASSERT_EQ(c.memory.carried_over.value, python.left_behind) << describe(job, seed);
        const auto high = high_water(job, c, rows, lane);
        for (std::size_t step = 0; step < high.size(); ++step) {
          for (const auto& [op, bytes] : high[step]) {
            ASSERT_EQ(bytes, python.high_water[step][static_cast<std::size_t>(op)])
                << "stage " << stage << " step " << step << " operator " << op << " lane " << lane
                << " " << describe(job, seed);
          }
        }
      }
    }
  }
}

TEST(MemorySequence, FreesWhatItAllocatesButForWhatIsCarriedOver) {
  for (std::uint64_t seed = 1; seed <= kJobs; ++seed) {
    const Job job = random_job(seed);
    const Schedule schedule = build_schedule(job);
    for (std::int32_t stage = 0; stage < job.layout.pipeline; ++stage) {
      const OperatorGraph graph = build_operator_graph(job, stage);
      const MemorySequence sequence = build_memory_sequence(graph, schedule, stage);
      std::map<std::pair<std::int32_t, std::int32_t>, int> live;  // storage, microbatch
      for (StorageId s : sequence.carried_over) live[{s.value, kPreviousIteration}] = 1;
      for (const MemoryEvent& e : sequence.events) {
        live[{e.storage, e.microbatch}] += e.allocates ? 1 : -1;
      }
      std::vector<std::int32_t> left;
      for (const auto& [key, count] : live) {
        ASSERT_TRUE(count == 0 || count == 1) << describe(job, seed);
        if (count == 0) continue;
        ASSERT_EQ(key.second, schedule.microbatches - 1) << describe(job, seed);
        left.push_back(key.first);
      }
      std::vector<std::int32_t> carried;
      for (StorageId s : sequence.carried_over) carried.push_back(s.value);
      std::sort(carried.begin(), carried.end());
      ASSERT_EQ(left, carried) << describe(job, seed);
    }
  }
}

TEST(LanePeaks, AreThoseOfTheMemoryProfile) {
  for (std::uint64_t seed = 1; seed <= kJobs; ++seed) {
    const Job job = random_job(seed);
    const LaneRows rows(job, random_routing(job, seed));
    const Schedule schedule = build_schedule(job);
    std::vector<std::int64_t> own(static_cast<std::size_t>(rows.lanes()));
    std::vector<std::int64_t> peaks(own.size());
    for (std::int32_t stage = 0; stage < job.layout.pipeline; ++stage) {
      const StageCase c = stage_case(job, schedule, rows, stage);
      LanePeaks(job, c.graph, c.sequence).evaluate(rows, {}, own, peaks);
      for (std::size_t lane = 0; lane < peaks.size(); ++lane) {
        ASSERT_EQ(peaks[lane], c.memory.lanes[lane].bytes.value)
            << "stage " << stage << " lane " << lane << " " << describe(job, seed);
      }
    }
  }
}

TEST(LiveStorages, AddUpToTheLanesPeak) {
  for (std::uint64_t seed = 1; seed <= kJobs; ++seed) {
    const Job job = random_job(seed);
    const LaneRows rows(job, random_routing(job, seed));
    const std::int32_t stage =
        static_cast<std::int32_t>(seed % static_cast<std::uint64_t>(job.layout.pipeline));
    const StageCase c = stage_case(job, build_schedule(job), rows, stage);
    for (std::int64_t lane = 0; lane < rows.lanes(); ++lane) {
      const LanePeak& peak = c.memory.lanes[static_cast<std::size_t>(lane)];
      Bytes sum;
      for (const LiveStorage& live :
           live_storages(job, c.graph, c.sequence, rows, lane, peak.event)) {
        sum += live.bytes;
      }
      ASSERT_EQ(sum, peak.bytes) << describe(job, seed);
    }
  }
}

TEST(LaneEngine, NoStreamIsBusyLongerThanTheIteration) {
  for (std::uint64_t seed = 1; seed <= kJobs; ++seed) {
    const Job job = random_job(seed);
    const Program program = build_program(job, profile_of(seed));
    const LaneRows rows(job, random_routing(job, seed));
    Recording recording(program);
    Recorder* const recorders[] = {&recording};
    const IterationTimes times = run_units(program, {&rows, 1}, recorders);
    for (std::size_t stage = 0; stage < program.stages.size(); ++stage) {
      const auto& steps = program.schedule.stages[stage];
      std::array<std::int64_t, kNumStreams> busy{};  // of lane 0
      for (std::size_t step = 0; step < steps.size(); ++step) {
        const Slot* slot = std::get_if<Slot>(&steps[step]);
        if (slot == nullptr) continue;
        const SlotProgram& p = program.slot_program(static_cast<std::int32_t>(stage), *slot);
        for (std::size_t op = 0; op < p.ops.size(); ++op) {
          const Span span = recording.spans[stage][step][op][0];
          busy[static_cast<std::size_t>(p.ops[op].stream)] += span.end - span.start;
        }
      }
      const std::int64_t finish = times.units[0].stages[stage].finish_ns[0];
      for (std::int64_t ns : busy) ASSERT_LE(ns, finish) << describe(job, seed);
      ASSERT_LE(finish, times.iteration_ns) << describe(job, seed);
    }
  }
}

// Durations that are whole ns for every number of rows, so that twice of them is exact.
void scale(Program& program, std::int64_t factor) {
  program.exchange_ns *= factor;
  program.host_issue_ns *= factor;
  for (StageProgram& stage : program.stages) {
    for_each_slot_program(stage, [&](SlotProgram& slot) {
      for (ProgramOp& op : slot.ops) {
        op.cost.fixed_ns *= factor;
        op.cost.floor_ns *= factor;
        if (op.cost.grouped >= 0) op.cost.per_row_q20 = 1 << 20;
        op.cost.grouped = -1;
        op.cost.per_row_q20 = ceil_div(op.cost.per_row_q20, 1 << 20) * (1 << 20) * factor;
      }
      prepare(slot, program.host_issue_ns);
    });
    stage.end.reduce_ns *= factor;
    stage.end.optimizer_ns *= factor;
    stage.end.gather_ns *= factor;
  }
}

TEST(LaneEngine, TwiceTheDurationsTakeTwiceTheTime) {
  for (std::uint64_t seed = 1; seed <= kJobs; ++seed) {
    const Job job = random_job(seed);
    const LaneRows rows(job, random_routing(job, seed));
    Program program = build_program(job, profile_of(seed));
    scale(program, 1);
    const std::int64_t once = run_units(program, {&rows, 1}).iteration_ns;
    scale(program, 2);
    ASSERT_EQ(run_units(program, {&rows, 1}).iteration_ns, 2 * once) << describe(job, seed);
  }
}

TEST(LaneEngine, ASlowerOperatorNeverShortensTheIteration) {
  for (std::uint64_t seed = 1; seed <= kJobs; ++seed) {
    const Job job = random_job(seed);
    const LaneRows rows(job, random_routing(job, seed));
    Program program = build_program(job, profile_of(seed));
    const std::int64_t before = run_units(program, {&rows, 1}).iteration_ns;
    Rng rng(seed);
    StageProgram& stage =
        program.stages[static_cast<std::size_t>(rng.below(std::ssize(program.stages)))];
    ChunkProgram& chunk =
        stage.chunks[static_cast<std::size_t>(rng.below(std::ssize(stage.chunks)))];
    SlotProgram& slot = rng.coin() ? chunk.forward : chunk.backward;
    slot.ops[static_cast<std::size_t>(rng.below(std::ssize(slot.ops)))].cost.fixed_ns += 1000;
    prepare(slot, program.host_issue_ns);
    ASSERT_GE(run_units(program, {&rows, 1}).iteration_ns, before) << describe(job, seed);
  }
}

TEST(LaneEngine, LanesAreAlikeUnderBalancedRouting) {
  int compared = 0;
  for (std::uint64_t seed = 1; seed <= kJobs; ++seed) {
    const Job job = random_job(seed);
    const RoutingCounts routing = balanced_routing(job);
    if (routing.moe_layers > 0 &&
        (rows_sent(job) * job.layout.lanes_per_stage()) % routing.experts != 0) {
      continue;  // some experts receive one row more
    }
    ++compared;
    const Simulation run = simulate(job, profile_of(seed), routing);
    const LaneRows one = LaneRows::alike(on_platform(job, profile_of(seed)));
    ASSERT_EQ(run_units(run.program, {&one, 1}).iteration_ns, run.result.iteration.time_ns)
        << describe(job, seed);
    for (const StageResult& stage : run.result.stages) {
      for (std::size_t lane = 1; lane < stage.memory.lanes.size(); ++lane) {
        ASSERT_EQ(stage.times.finish_ns[lane], stage.times.finish_ns[0]) << describe(job, seed);
        ASSERT_EQ(stage.memory.lanes[lane].bytes, stage.memory.lanes[0].bytes)
            << describe(job, seed);
      }
    }
  }
  EXPECT_GT(compared, static_cast<int>(kJobs) / 3);
}

TEST(Simulate, GivesTheSameResultTwice) {
  for (std::uint64_t seed = 1; seed <= kJobs; seed += 10) {
    const Job job = random_job(seed);
    const RoutingCounts routing = random_routing(job, seed);
    const Simulation a = simulate(job, profile_of(seed), routing);
    const Simulation b = simulate(job, profile_of(seed), routing);
    ASSERT_EQ(a.result.iteration.time_ns, b.result.iteration.time_ns) << describe(job, seed);
    for (std::size_t stage = 0; stage < a.result.stages.size(); ++stage) {
      ASSERT_EQ(a.result.stages[stage].times.finish_ns, b.result.stages[stage].times.finish_ns);
      ASSERT_EQ(a.result.stages[stage].peak_allocated(), b.result.stages[stage].peak_allocated());
    }
  }
}

TEST(Simulate, ReportsSharesBetweenNoneAndAll) {
  for (std::uint64_t seed = 1; seed <= kJobs; ++seed) {
    const Job job = random_job(seed);
    const Simulation run = simulate(job, profile_of(seed), random_routing(job, seed));
    const IterationResult& i = run.result.iteration;
    ASSERT_GE(i.bubble_fraction, 0) << describe(job, seed);
    ASSERT_LT(i.bubble_fraction, 1) << describe(job, seed);
    ASSERT_GT(i.mfu, 0) << describe(job, seed);
    ASSERT_LT(i.mfu, 1) << describe(job, seed);
  }
}

// The naive engine says when the operator of a stage's peak starts.
TEST(Simulate, ReachesThePeakWhenItsOperatorStarts) {
  for (std::uint64_t seed = 1; seed <= kJobs; ++seed) {
    const Job job = random_job(seed);
    const Simulation run = simulate(job, profile_of(seed), random_routing(job, seed));
    const NaiveRun naive = run_naively(run.program, {&run.rows, 1});
    for (std::size_t stage = 0; stage < run.result.stages.size(); ++stage) {
      const StageResult& s = run.result.stages[stage];
      const auto lane = static_cast<std::size_t>(s.hottest_lane);
      const std::int64_t event = s.memory.lanes[lane].event;
      if (event < 0) {
        ASSERT_EQ(s.peak_time_ns, 0) << describe(job, seed);
        continue;
      }
      const MemoryEvent& e = s.sequence.events[static_cast<std::size_t>(event)];
      const Step& step = run.program.schedule.stages[stage][static_cast<std::size_t>(e.step)];
      std::size_t position = 0;
      if (const Slot* slot = std::get_if<Slot>(&step)) {
        const OperatorGraph& graph = run.program.stages[stage].graph;
        const std::int32_t index =
            slot_operators(graph, *slot)[static_cast<std::size_t>(e.op)].index;
        const SlotProgram& ops = run.program.slot_program(static_cast<std::int32_t>(stage), *slot);
        while (ops.ops[position].operator_index != index) ++position;
      }
      ASSERT_EQ(s.peak_time_ns,
                naive.units[0].spans[stage][static_cast<std::size_t>(e.step)][position][lane].start)
          << describe(job, seed);
    }
  }
}

}  // namespace
}  // namespace tidemark::engine_agreement_test
