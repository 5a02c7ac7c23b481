#include "sim/simulation.h"

#include <algorithm>
#include <utility>

#include "models/flops.h"
#include "models/input_error.h"
#include "models/parameters.h"
#include "sim/caching_allocator.h"
#include "sim/parallel.h"
#include "sim/reserved_bound.h"

namespace tidemark {
namespace {

Bytes left_of(Bytes capacity, const std::vector<OutsideItem>& outside) {
  for (const OutsideItem& item : outside) capacity -= item.bytes;
  return capacity;
}

// Catches when the operator of each stage's peak starts, and passes everything on.
class PeakWatch : public Recorder {
 public:
  struct Moment {
    std::int32_t step = -1;
    std::int32_t op = -1;  // position in the slot's operators; data-parallel ones not counted
    std::int64_t lane = 0;
    std::int64_t time_ns = 0;
  };

  PeakWatch(std::vector<Moment> moments, Recorder* next)
      : moments_(std::move(moments)), next_(next) {}

  void on_operator(std::int32_t stage, std::int32_t step, std::int32_t op, const SlotProgram& slot,
                   std::span<const std::int64_t> start,
                   std::span<const std::int64_t> end) override {
    Moment& m = moments_[static_cast<std::size_t>(stage)];
    if (step == m.step) {
      if (op == 0) seen_ = 0;
      if (slot.ops[static_cast<std::size_t>(op)].operator_index >= 0 && seen_++ == m.op) {
        m.time_ns = start[static_cast<std::size_t>(m.lane)];
      }
    }
    if (next_ != nullptr) next_->on_operator(stage, step, op, slot, start, end);
  }
  void on_transfer(std::int32_t stage, std::int32_t step, std::span<const std::int64_t> start,
                   std::span<const std::int64_t> end) override {
    Moment& m = moments_[static_cast<std::size_t>(stage)];
    if (step == m.step) m.time_ns = start[static_cast<std::size_t>(m.lane)];
    if (next_ != nullptr) next_->on_transfer(stage, step, start, end);
  }

  const std::vector<Moment>& moments() const { return moments_; }

 private:
  std::vector<Moment> moments_;
  Recorder* next_;
  std::int32_t seen_ = 0;
};

// The most bytes that a lane has on the host at once: from the end of a forward that sends them to
// the end of the backward that takes them back.
Bytes peak_host_memory(const Job& job, const OperatorGraph& graph, const std::vector<Step>& steps,
                       const LaneRows& rows, std::int64_t lane) {
  const std::vector<std::int64_t> moe_index = moe_layer_indices(job.model);
  Bytes live;
  Bytes peak;
  for (const Step& step : steps) {
    const Slot* slot = std::get_if<Slot>(&step);
    if (slot == nullptr) continue;
    const auto sent = [&](ChunkTensor t) {
      Bytes bytes;
      if (!t.valid()) return bytes;
      const OperatorRange range = graph.chunks[static_cast<std::size_t>(t.chunk)].forward;
      for (std::int32_t i = range.begin; i < range.end; ++i) {
        const Operator& op = graph.forward[static_cast<std::size_t>(i)];
        const auto* copy = std::get_if<CopyWork>(&op.work);
        if (copy == nullptr) continue;
        const bool routed = copy->bytes.per_row != 0;
        const std::int64_t layer = routed ? moe_index[static_cast<std::size_t>(op.layer)] : 0;
        bytes += Bytes(copy->bytes.at(routed ? rows.at(t.microbatch, layer)[lane] : 0));
      }
      return bytes;
    };
    live += sent(slot->forward());
    peak = std::max(peak, live);
    live -= sent(slot->backward());
  }
  return peak;
}

StageResult stage_memory(const Job& job, const HardwareProfile& profile, const Program& program,
                         const LaneRows& rows, std::int32_t stage) {
  StageResult out;
  const StageProgram& stage_program = program.stages[static_cast<std::size_t>(stage)];
  const OperatorGraph& graph = stage_program.graph;
  out.parameters = count_parameters(stage_weights(job, stage)).total();
  out.in_flight_peak = peak_in_flight(program.schedule, stage);
  out.resident = resident_items(job, profile, stage_program, stage);
  for (const ResidentItem& item : out.resident) {
    out.resident_bytes += item.bytes;
    if (item.since == ResidentSince::kOptimizerStep) out.moment_bytes += item.bytes;
  }
  out.sequence = build_memory_sequence(graph, program.schedule, stage, stage_program.offload);
  out.memory = profile_memory(job, graph, out.sequence, rows);
  out.carried_over = out.memory.carried_over;
  const auto hottest =
      std::max_element(out.memory.lanes.begin(), out.memory.lanes.end(),
                       [](const LanePeak& a, const LanePeak& b) { return a.bytes < b.bytes; });
  out.hottest_lane = hottest - out.memory.lanes.begin();
  out.host_memory = peak_host_memory(
      job, graph, program.schedule.stages[static_cast<std::size_t>(stage)], rows, out.hottest_lane);
  return out;
}

void replay_hottest_card(const Job& job, const Program& program, const LaneRows& rows,
                         std::size_t stage, bool collectives_record, const StageClock* clock,
                         Bytes limit, Bytes capacity, StageResult& out) {
  const Card card{
      .job = job,
      .stage = static_cast<std::int64_t>(stage),
      .graph = program.stages[stage].graph,
      .steps = program.schedule.stages[stage],
      .sequence = out.sequence,
      .resident = out.resident,
      .rows = rows,
      .lane = out.hottest_lane,
      .collectives_record_streams = collectives_record,
      .clock = clock,
      .capacity = capacity,
  };
  out.card = replay_card(card, CachingAllocator::kNoLimit);
  std::vector<Bytes> peaks;
  for (std::int64_t lane = 0; lane < std::ssize(out.memory.lanes); ++lane) {
    peaks.push_back(out.lane_peak(lane));
  }
  const Bytes bound = std::ranges::max(
      reserved_bounds(job, program.stages[stage].graph, rows, peaks,
                      {rows, out.hottest_lane, out.card.memory.reserved - out.card.memory.peak,
                       out.card.memory.reserved}));
  if (bound != CachingAllocator::kNoLimit) out.reserved_bound = bound;
  if (out.card.memory.reserved <= limit) return;
  const CardReplay limited = replay_card(card, limit);
  out.out_of_memory = limited.out_of_memory;
  if (!limited.out_of_memory) {
    out.card = limited;
    out.gives_back = true;
  }
}

}  // namespace

std::vector<ResidentItem> resident_items(const Job& job, const HardwareProfile& profile,
                                         const StageProgram& program, std::int64_t stage,
                                         std::int64_t optimizer_rank) {
  std::vector<ResidentItem> items = resident_memory(job, profile, stage, optimizer_rank);
  if (const auto buffers = reload_buffers(program.offload); !buffers.empty()) {
    Bytes bytes;
    for (const std::int64_t request : buffers) bytes += fresh_block(request);
    items.push_back({"reload buffers", buffers, bytes, ResidentSince::kFirstUse,
                     "Megatron-Kwai core/pipeline_parallel/offload.py", false});
  }
  if (!program.stash.empty()) {
    Bytes bytes;
    for (const std::int64_t request : program.stash) bytes += fresh_block(request);
    items.push_back({"stash buffers", program.stash, bytes, ResidentSince::kFirstUse,
                     "Megatron core/transformer/moe/paged_stash.py", false});
  }
  return items;
}

Bytes segment_limit(const Job& job, const HardwareProfile& profile) {
  return left_of(profile.capacity(), outside_memory(job, profile));
}

bool records_streams(const Job& job, const HardwareProfile& profile) {
  return profile.allocator_for(job.versions.dtk).collectives_record_streams ||
         !job.options.offload.modules.empty();
}

Bytes StageResult::lane_peak(std::int64_t lane) const {
  return card.memory.peak - memory.lanes[static_cast<std::size_t>(hottest_lane)].bytes +
         memory.lanes[static_cast<std::size_t>(lane)].bytes;
}

Bytes SimulationResult::limit() const { return left_of(capacity, outside); }

std::size_t SimulationResult::tightest() const {
  const auto it = std::max_element(stages.begin(), stages.end(),
                                   [](const StageResult& a, const StageResult& b) {
                                     return a.card.memory.reserved < b.card.memory.reserved;
                                   });
  return static_cast<std::size_t>(it - stages.begin());
}

bool SimulationResult::fits() const {
  return std::none_of(stages.begin(), stages.end(),
                      [](const StageResult& s) { return s.out_of_memory.has_value(); });
}

bool SimulationResult::gives_back() const {
  return fits() && std::any_of(stages.begin(), stages.end(),
                               [](const StageResult& s) { return s.gives_back; });
}

Job on_platform(Job job, const HardwareProfile& profile) {
  if (job.options.allocator.expandable_segments && profile.rocm()) {
    throw InputError(job.source, "expandable_segments", "True",
                     "False on " + profile.name + ": PyTorch for ROCm has no expandable segments");
  }
  if (job.options.attention_backend == AttentionBackend::kAuto) {
    job.options.attention_backend = profile.auto_attention.backend;
  }
  return job;
}

RankPeak highest_peak(const Job& given, const HardwareProfile& profile,
                      const Simulation& simulation) {
  const Job job = on_platform(given, profile);
  const std::int64_t ranks = job.layout.data() * job.layout.context;
  const auto stages = static_cast<std::int64_t>(simulation.result.stages.size());
  std::vector<RankPeak> peaks(static_cast<std::size_t>(stages * ranks));
  parallel_for(peaks.size(), [&](std::size_t i) {
    RankPeak& out = peaks[i];
    out.stage = static_cast<std::int64_t>(i) / ranks;
    out.optimizer_rank = static_cast<std::int64_t>(i) % ranks;
    const auto stage = static_cast<std::size_t>(out.stage);
    const StageProgram& program = simulation.program.stages[stage];
    const StageResult& result = simulation.result.stages[stage];
    const std::vector<ResidentItem> resident =
        resident_items(job, profile, program, out.stage, out.optimizer_rank);
    const Card card{
        .job = job,
        .stage = out.stage,
        .graph = program.graph,
        .steps = simulation.program.schedule.stages[stage],
        .sequence = result.sequence,
        .resident = resident,
        .rows = simulation.rows,
        .lane = result.hottest_lane,
        .optimizer_rank = out.optimizer_rank,
    };
    out.peak = replay_card(card, CachingAllocator::kNoLimit).memory.peak;
  });
  return *std::ranges::max_element(peaks, {}, &RankPeak::peak);
}

Simulation simulate(const Job& job, const HardwareProfile& profile, const RoutingCounts& routing,
                    Recorder* recorder) {
  return simulate(job, profile, routing, build_program(on_platform(job, profile), profile),
                  recorder);
}

Simulation simulate(const Job& given, const HardwareProfile& profile, const RoutingCounts& routing,
                    Program program, Recorder* recorder) {
  const Job job = on_platform(given, profile);
  Simulation out{std::move(program), LaneRows(job, routing), {}};
  SimulationResult& r = out.result;
  r.capacity = profile.capacity();
  r.outside = outside_memory(job, profile);
  r.stages.resize(out.program.stages.size());
  parallel_for(r.stages.size(), [&](std::size_t stage) {
    r.stages[stage] =
        stage_memory(job, profile, out.program, out.rows, static_cast<std::int32_t>(stage));
  });
  std::vector<PeakWatch::Moment> moments;
  for (const StageResult& s : r.stages) {
    PeakWatch::Moment moment;
    moment.lane = s.hottest_lane;
    const std::int64_t event = s.memory.lanes[static_cast<std::size_t>(s.hottest_lane)].event;
    if (event >= 0) {
      const MemoryEvent& e = s.sequence.events[static_cast<std::size_t>(event)];
      moment.step = e.step;
      moment.op = e.op;
    }
    moments.push_back(moment);
  }
  std::vector<std::int64_t> hottest_lanes;
  for (const StageResult& s : r.stages) hottest_lanes.push_back(s.hottest_lane);
  const bool collectives = profile.allocator_for(job.versions.dtk).collectives_record_streams;
  const bool records = records_streams(job, profile);
  ClockRecorder clocks(out.program, std::move(hottest_lanes), recorder);
  PeakWatch watch(std::move(moments), records ? &clocks : recorder);
  Recorder* const recorders[] = {&watch};
  IterationTimes times = run_units(out.program, {&out.rows, 1}, recorders);
  parallel_for(r.stages.size(), [&](std::size_t stage) {
    replay_hottest_card(job, out.program, out.rows, stage, collectives,
                        records ? &clocks.clock(stage) : nullptr, r.limit(), r.capacity,
                        r.stages[stage]);
  });

  std::int64_t in_slots = 0;
  for (std::size_t stage = 0; stage < r.stages.size(); ++stage) {
    r.stages[stage].peak_time_ns = watch.moments()[stage].time_ns;
    StageTimes& stage_times = times.units[0].stages[stage];
    in_slots += stage_times.slots_ns;
    r.stages[stage].times = std::move(stage_times);
  }
  const double seconds = static_cast<double>(times.iteration_ns) * 1e-9;
  r.iteration.time_ns = times.iteration_ns;
  r.iteration.tokens = job.tokens_per_iteration();
  r.iteration.model_flops = model_flops_per_iteration(job);
  r.iteration.tflops_per_card = static_cast<double>(r.iteration.model_flops) / seconds /
                                static_cast<double>(job.layout.cards) * 1e-12;
  r.iteration.mfu = r.iteration.tflops_per_card / profile.peak_bf16_tflops.value;
  r.iteration.bubble_fraction =
      1.0 - static_cast<double>(in_slots) /
                (static_cast<double>(times.pipeline_ns) * static_cast<double>(r.stages.size()));
  return out;
}

}  // namespace tidemark
