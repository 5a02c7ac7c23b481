// Cases, all on DeepSeek-V3 over 8 stages and 64 microbatches (EP = lanes of a stage, four experts
// each): run_unit by lanes, with skewed rows (items = lane-operators); run_unit with a recorder;
// build_program; the memory sequence of a stage; the memory profile of a stage by lanes (items =
// lane-events); and one whole simulate.
#include <cstdint>
#include <vector>

#include <benchmark/benchmark.h>

#include "sim/lane_engine.h"
#include "sim/memory_profile.h"
#include "sim/simulation.h"
#include "tests/support/jobs.h"

namespace tidemark::lane_engine_bench {
namespace {

const HardwareProfile& profile() {
  static const HardwareProfile profile = load_hardware_profile("bw1000");
  return profile;
}

Job job_with_lanes(std::int64_t lanes) {
  Job job = deepseek_v3_1024();
  job.layout.expert = lanes;
  job.model.moe->num_experts = 4 * lanes;
  job.layout.cards = 8 * lanes;
  job.batch.global_batch_size = 64 * job.layout.data();
  validate(job, "/");
  return job;
}

RoutingCounts skewed_routing(const Job& job) {
  RoutingCounts counts = balanced_routing(job);
  std::uint64_t state = 1;
  for (std::int64_t& count : counts.counts) {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    count = count / 2 +
            static_cast<std::int64_t>((state >> 33) % static_cast<std::uint64_t>(count + 1));
  }
  return counts;
}

std::int64_t operators(const Program& program) {
  std::int64_t sum = 0;
  const auto microbatches = static_cast<std::int64_t>(program.schedule.microbatches);
  for (const StageProgram& stage : program.stages) {
    sum += (microbatches - 1) * std::ssize(stage.chunks[0].forward.ops) +
           std::ssize(stage.chunks[0].first_forward.ops);
    sum += (microbatches - 1) * std::ssize(stage.chunks[0].backward.ops) +
           std::ssize(stage.chunks[0].last_backward.ops);
  }
  return sum;
}

class CountingRecorder : public Recorder {
 public:
  void on_operator(std::int32_t, std::int32_t, std::int32_t, const SlotProgram&,
                   std::span<const std::int64_t>, std::span<const std::int64_t> end) override {
    last = end[0];
  }
  void on_transfer(std::int32_t, std::int32_t, std::span<const std::int64_t>,
                   std::span<const std::int64_t>) override {}
  std::int64_t last = 0;
};

void run(benchmark::State& state, Recorder* recorder) {
  const Job job = job_with_lanes(state.range(0));
  const Program program = build_program(job, profile());
  const LaneRows rows(job, skewed_routing(job));
  for (auto _ : state)
    benchmark::DoNotOptimize(run_units(program, {&rows, 1}, {&recorder, 1}).iteration_ns);
  state.SetItemsProcessed(state.iterations() * operators(program) * program.lanes);
}

void BM_RunUnit(benchmark::State& state) { run(state, nullptr); }
BENCHMARK(BM_RunUnit)->Arg(8)->Arg(64)->Arg(512)->Arg(2048)->Unit(benchmark::kMillisecond);

void BM_RunUnitRecorded(benchmark::State& state) {
  CountingRecorder recorder;
  run(state, &recorder);
}
BENCHMARK(BM_RunUnitRecorded)->Arg(64)->Unit(benchmark::kMillisecond);

void BM_BuildProgram(benchmark::State& state) {
  const Job job = deepseek_v3_1024();
  for (auto _ : state) benchmark::DoNotOptimize(build_program(job, profile()));
}
BENCHMARK(BM_BuildProgram)->Unit(benchmark::kMillisecond);

void BM_MemorySequence(benchmark::State& state) {
  const Job job = deepseek_v3_1024();
  const OperatorGraph graph = build_operator_graph(job, 0);
  const Schedule schedule = build_1f1b(8, 64);
  std::int64_t events = 0;
  for (auto _ : state) {
    const MemorySequence sequence = build_memory_sequence(graph, schedule, 0);
    events += std::ssize(sequence.events);
    benchmark::DoNotOptimize(sequence.events.data());
  }
  state.SetItemsProcessed(events);
}
BENCHMARK(BM_MemorySequence)->Unit(benchmark::kMillisecond);

void BM_MemoryProfile(benchmark::State& state) {
  const Job job = job_with_lanes(state.range(0));
  const OperatorGraph graph = build_operator_graph(job, 0);
  const MemorySequence sequence = build_memory_sequence(graph, build_1f1b(8, 64), 0);
  const LaneRows rows(job, skewed_routing(job));
  for (auto _ : state) {
    benchmark::DoNotOptimize(profile_memory(job, graph, sequence, rows).lanes.data());
  }
  state.SetItemsProcessed(state.iterations() * std::ssize(sequence.events) * rows.lanes());
}
BENCHMARK(BM_MemoryProfile)->Arg(8)->Arg(64)->Arg(512)->Arg(2048)->Unit(benchmark::kMillisecond);

void BM_Simulate(benchmark::State& state) {
  const Job job = deepseek_v3_1024();
  const RoutingCounts routing = skewed_routing(job);
  for (auto _ : state) {
    benchmark::DoNotOptimize(simulate(job, profile(), routing).result.iteration.time_ns);
  }
}
BENCHMARK(BM_Simulate)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace tidemark::lane_engine_bench
