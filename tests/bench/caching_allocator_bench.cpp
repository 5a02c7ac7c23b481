// Allocations and frees a second of the emulated allocator, on the requests of an iteration: the
// first stage of DeepSeek-V3 on 1,024 cards (padded), and a stage of Qwen3-30B-A3B whose rows
// differ from microbatch to microbatch; each with the allocator's options by turns (0 default, 1
// max_split_size_mb:128, 2 expandable segments, 3 roundup_power2_divisions:8, 4
// garbage_collection_threshold:0.8 of what it reserves).
#include <cstdint>
#include <vector>

#include <benchmark/benchmark.h>

#include "models/parameters.h"
#include "sim/caching_allocator.h"
#include "sim/simulation.h"
#include "tests/support/jobs.h"

namespace tidemark::caching_allocator_bench {
namespace {

struct Request {
  std::int64_t bytes = 0;  // 0: a free
  std::int32_t block = 0;  // of the storage and microbatch
};

struct Trace {
  std::vector<Request> requests;
  std::int32_t blocks = 0;
};

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

// What the first iteration requests; what it carries over is freed at its end.
Trace trace_of(const Job& job, const Schedule& schedule) {
  const OperatorGraph graph = build_operator_graph(job, 0);
  const LaneRows rows(job, skewed_routing(job));
  const std::vector<std::int64_t> moe_index = moe_layer_indices(job.model);
  const auto storages = static_cast<std::int32_t>(graph.storages.size());
  Trace out;
  out.blocks = storages * schedule.microbatches;
  std::vector<bool> live(static_cast<std::size_t>(out.blocks), false);
  for (const MemoryEvent& e : build_memory_sequence(graph, schedule, 0).events) {
    if (e.microbatch == kPreviousIteration) continue;
    const Storage& s = graph.storages[static_cast<std::size_t>(e.storage)];
    std::int64_t bytes = s.bytes.fixed;
    if (s.bytes.per_row != 0) {
      const std::int64_t layer = moe_index[static_cast<std::size_t>(s.layer)];
      bytes = s.bytes.at(rows.at(e.microbatch, layer)[0]);
    }
    if (bytes == 0) continue;
    const std::int32_t block = e.microbatch * storages + e.storage;
    live[static_cast<std::size_t>(block)] = e.allocates;
    out.requests.push_back({e.allocates ? bytes : 0, block});
  }
  for (std::int32_t block = 0; block < out.blocks; ++block) {
    if (live[static_cast<std::size_t>(block)]) out.requests.push_back({0, block});
  }
  return out;
}

void replay(const Trace& trace, CachingAllocator& allocator,
            std::vector<CachingAllocator::Handle>& handles) {
  for (const Request& r : trace.requests) {
    CachingAllocator::Handle& handle = handles[static_cast<std::size_t>(r.block)];
    if (r.bytes > 0) {
      handle = allocator.allocate(r.bytes);
    } else {
      allocator.release(handle);
    }
  }
}

void run(benchmark::State& state, const Trace& trace) {
  std::vector<CachingAllocator::Handle> handles(static_cast<std::size_t>(trace.blocks));
  CachingAllocator plain;
  replay(trace, plain, handles);
  AllocatorOptions options;
  if (state.range(0) == 1) options.max_split_size_mb = 128;
  options.expandable_segments = state.range(0) == 2;
  if (state.range(0) == 3) options.roundup_power2_divisions = 8;
  if (state.range(0) == 4) options.garbage_collection_threshold = 0.8;
  // A limit, since with the first option blocks that no request may take would pile up for ever.
  CachingAllocator allocator(plain.peak_reserved() * 2, options, plain.peak_reserved());
  for (auto _ : state) replay(trace, allocator, handles);
  state.SetItemsProcessed(state.iterations() * std::ssize(trace.requests));
}

void BM_DeepSeekStage(benchmark::State& state) {
  static const Trace trace = trace_of(deepseek_v3_1024(), build_1f1b(8, 64));
  run(state, trace);
}
BENCHMARK(BM_DeepSeekStage)->DenseRange(0, 4)->Unit(benchmark::kMillisecond);

void BM_SkewedQwenStage(benchmark::State& state) {
  static const Job job = qwen3_30b_a3b();
  static const Trace trace = trace_of(
      job, build_1f1b(1, static_cast<std::int32_t>(job.batch.num_microbatches(job.layout))));
  run(state, trace);
}
BENCHMARK(BM_SkewedQwenStage)->DenseRange(0, 4)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace tidemark::caching_allocator_bench
