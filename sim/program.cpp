#include "sim/program.h"

#include <algorithm>
#include <span>
#include <utility>

#include "models/layer_operators.h"
#include "sim/combined_1f1b.h"
#include "sim/dual_pipe.h"
#include "sim/fused_slot.h"
#include "sim/operator_cost.h"
#include "sim/v_schedules.h"
#include "sim/zero_bubble.h"
#include "traces/routing.h"

namespace tidemark {
namespace {

bool is_collective(const Operator& op) { return std::holds_alternative<CollectiveWork>(op.work); }

// The operators of one pass as a slot: costs, and the dependencies that cross streams.
class SlotCompiler {
 public:
  SlotCompiler(const Job& job, OperatorCosts& costs, const OperatorGraph& graph)
      : costs_(costs), graph_(graph), moe_index_(moe_layer_indices(job.model)) {}

  SlotProgram compile(bool forward, OperatorRange range) const {
    const std::vector<Operator>& all = forward ? graph_.forward : graph_.backward;
    const std::span<const Operator> list(all.begin() + range.begin, all.begin() + range.end);
    const auto offset =
        (forward ? 0 : static_cast<std::int32_t>(graph_.forward.size())) + range.begin;
    // One that always runs, and optional ones after it.
    std::vector<std::vector<std::int32_t>> writers(graph_.storages.size());
    std::vector<std::int32_t> last_compute;
    std::int32_t last_awaited = -1;  // that the next part of a layer waits for
    const auto note = [](std::vector<std::int32_t>& last, const ProgramOp& op, std::size_t at) {
      if (op.action < 0) last.clear();
      last.push_back(static_cast<std::int32_t>(at));
    };
    SlotProgram slot;
    for (std::size_t i = 0; i < list.size(); ++i) {
      const Operator& op = list[i];
      ProgramOp out;
      out.operator_index = offset + static_cast<std::int32_t>(i);
      out.action = op.action;
      out.stream = op.stream;
      out.time_class = time_class(op);
      out.host_waits = std::holds_alternative<HostWaitWork>(op.work);
      out.cost = costs_.cost(op);
      if (op.contends_with >= 0)
        slow_down(out.cost, all[static_cast<std::size_t>(op.contends_with)]);
      if (op.layer >= 0) {
        out.moe_layer = static_cast<std::int32_t>(moe_index_[static_cast<std::size_t>(op.layer)]);
      }
      if (is_collective(op)) out.group = std::get<CollectiveWork>(op.work).group;

      std::vector<std::int32_t> deps;
      bool from_side_stream = false;
      for (StorageId s : op.reads) {
        for (const std::int32_t from : writers[s.index()]) {
          const Stream source = list[static_cast<std::size_t>(from)].stream;
          from_side_stream |= source == Stream::kSharedExpert;
          if (source != op.stream) deps.push_back(from);
        }
      }
      // A communicator's stream, and one of copies, waits for what the calling stream has been
      // given so far.
      const bool follows =
          (is_collective(op) && !leads_its_stream(op)) || std::holds_alternative<CopyWork>(op.work);
      if (follows && !from_side_stream) {
        deps.insert(deps.end(), last_compute.begin(), last_compute.end());
      }
      if (last_awaited >= 0 && graph_.combined) {
        const Operator& before = list[static_cast<std::size_t>(last_awaited)];
        const bool begins_part = before.layer != op.layer || before.part != op.part;
        if (begins_part && before.stream != op.stream) deps.push_back(last_awaited);
      }
      std::sort(deps.begin(), deps.end());
      deps.erase(std::unique(deps.begin(), deps.end()), deps.end());
      out.dep_begin = static_cast<std::int32_t>(slot.deps.size());
      slot.deps.insert(slot.deps.end(), deps.begin(), deps.end());
      out.dep_end = static_cast<std::int32_t>(slot.deps.size());

      for (StorageId s : op.writes) note(writers[s.index()], out, i);
      if (op.stream == Stream::kCompute) note(last_compute, out, i);
      if (!op.deferrable && !op.added) last_awaited = static_cast<std::int32_t>(i);
      slot.ops.push_back(out);
    }
    return slot;
  }

 private:
  // In combined slots dispatch and combine are called on the expert stream: they wait for the part
  // of the layer before them, not for what the compute stream does for the other microbatch.
  bool leads_its_stream(const Operator& op) const {
    return graph_.combined && (op.part == LayerPart::kDispatch || op.part == LayerPart::kCombine);
  }

  // Compute units that a collective's kernel holds are missing in the operator beside it.
  void slow_down(OpCost& cost, const Operator& collective) const {
    const std::int64_t exposed = costs_.balanced_ns(costs_.cost(collective));
    const std::int64_t parts = std::get<CollectiveWork>(collective.work).fused_parts;
    const std::int64_t beside = parts > 1 ? exposed * (parts - 1) : exposed;
    const std::int64_t overlap = std::min(beside, costs_.balanced_ns(cost));
    cost.fixed_ns +=
        round_up_ns(costs_.slowdown_under_collective() * static_cast<double>(overlap) * 1e-9)
            .count();
  }

  OperatorCosts& costs_;
  const OperatorGraph& graph_;
  std::vector<std::int64_t> moe_index_;  // [layer]
};

constexpr std::int64_t kParameterBytes = 2;  // bf16

ProgramOp data_op(std::int64_t ns) {
  ProgramOp op;
  op.stream = Stream::kDataComm;
  op.time_class = TimeClass::kDataComm;
  op.cost.fixed_ns = ns;
  return op;
}

// Layer of an operator as gradient buckets count them: the embedding before the stage's first,
// final norm and output after its last. What has no weights comes before all.
std::int64_t bucket_layer(const Operator& op, const ParallelLayout::LayerRange& layers) {
  if (op.layer >= 0) return op.layer;
  if (op.name == "attention_mask") return layers.begin - 2;
  return op.name.starts_with("embedding") ? layers.begin - 1 : layers.end;
}

// What a chunk's first forward does about parameters whose gather is overlapped.
struct ParameterGather {
  const std::vector<GradientBuffer>& buffers;  // of the chunk
  // Gathered while the chunk before runs; a chunk waits for all of it.
  bool prefetched = false;
  const std::vector<GradientBuffer>* next = nullptr;  // of the chunk whose gather starts here
};

// Gathers of all buckets are queued when the first forward begins; each layer waits for its own.
SlotProgram with_parameter_gather(const SlotProgram& slot, const OperatorGraph& graph,
                                  const ParameterGather& gather,
                                  const ParallelLayout::LayerRange& layers,
                                  const OperatorCosts& costs) {
  SlotProgram out;
  std::vector<std::pair<std::int64_t, std::int32_t>> needs;  // first layer that needs it, position
  const auto queue = [&](const GradientBuffer& buffer, const GradientBucket& bucket) {
    out.ops.push_back(data_op(costs.data_collective_ns(
        Collective::kAllGather, kParameterBytes * bucket.parameters, buffer.expert)));
    return static_cast<std::int32_t>(out.ops.size()) - 1;
  };
  if (gather.prefetched) {
    out.ops.push_back(data_op(0));  // after the gather, on its stream
    needs.emplace_back(layers.begin - 1, 0);
  } else {
    for (const GradientBuffer& buffer : gather.buffers) {
      if (buffer.shards == 1) continue;
      for (auto b = buffer.buckets.rbegin(); b != buffer.buckets.rend(); ++b) {
        needs.emplace_back(b->first_layer, queue(buffer, *b));
      }
    }
  }
  if (gather.next != nullptr) {
    for (const GradientBuffer& buffer : *gather.next) {
      if (buffer.shards == 1) continue;
      for (const GradientBucket& bucket : buffer.buckets) queue(buffer, bucket);
    }
  }
  const auto shift = static_cast<std::int32_t>(out.ops.size());
  std::vector<bool> awaited(needs.size(), false);
  for (const ProgramOp& op : slot.ops) {
    ProgramOp moved = op;
    moved.dep_begin = static_cast<std::int32_t>(out.deps.size());
    for (std::int32_t d = op.dep_begin; d < op.dep_end; ++d) {
      out.deps.push_back(slot.deps[static_cast<std::size_t>(d)] + shift);
    }
    const Operator& source = graph.at(static_cast<std::size_t>(op.operator_index));
    const bool waits = op.stream == Stream::kCompute && op.action < 0;
    for (std::size_t n = 0; n < needs.size() && waits; ++n) {
      if (awaited[n] || bucket_layer(source, layers) < needs[n].first) continue;
      awaited[n] = true;
      out.deps.push_back(needs[n].second);
    }
    moved.dep_end = static_cast<std::int32_t>(out.deps.size());
    out.ops.push_back(moved);
  }
  return out;
}

// Copies, and what optional actions bring back, are issued ahead of the layer they belong to.
bool passes_through_layer(const ProgramOp& op) {
  return op.action < 0 && op.stream != Stream::kHostToDevice && op.stream != Stream::kDeviceToHost;
}

// A bucket's reduction starts when the backward of its first layer is done.
SlotProgram with_gradient_reduction(const SlotProgram& slot, const OperatorGraph& graph,
                                    const std::vector<GradientBuffer>& buffers,
                                    const ParallelLayout::LayerRange& layers,
                                    const OperatorCosts& costs, std::int64_t gradient_bytes,
                                    Collective reduction) {
  SlotProgram out;
  std::vector<std::int32_t> moved_to(slot.ops.size());
  std::vector<std::vector<bool>> started;
  for (const GradientBuffer& buffer : buffers) started.emplace_back(buffer.buckets.size(), false);
  std::int32_t last_compute = -1;
  std::int64_t layer = layers.end;
  for (std::size_t i = 0; i <= slot.ops.size(); ++i) {
    const bool at_end = i == slot.ops.size();
    if (at_end) {
      layer = layers.begin - 2;
    } else if (passes_through_layer(slot.ops[i])) {
      layer = bucket_layer(graph.at(static_cast<std::size_t>(slot.ops[i].operator_index)), layers);
    }
    for (std::size_t f = 0; f < buffers.size(); ++f) {
      for (std::size_t b = 0; b < buffers[f].buckets.size(); ++b) {
        const GradientBucket& bucket = buffers[f].buckets[b];
        if (started[f][b] || layer >= bucket.first_layer) continue;
        started[f][b] = true;
        ProgramOp reduce = data_op(costs.data_collective_ns(
            reduction, gradient_bytes * bucket.parameters, buffers[f].expert));
        reduce.reduces = buffers[f].expert ? DataGroup::kExpert : DataGroup::kDense;
        reduce.dep_begin = static_cast<std::int32_t>(out.deps.size());
        if (last_compute >= 0) out.deps.push_back(last_compute);
        reduce.dep_end = static_cast<std::int32_t>(out.deps.size());
        out.ops.push_back(reduce);
      }
    }
    if (at_end) break;
    ProgramOp op = slot.ops[i];
    const std::int32_t begin = op.dep_begin;
    const std::int32_t end = op.dep_end;
    op.dep_begin = static_cast<std::int32_t>(out.deps.size());
    for (std::int32_t d = begin; d < end; ++d) {
      out.deps.push_back(
          moved_to[static_cast<std::size_t>(slot.deps[static_cast<std::size_t>(d)])]);
    }
    op.dep_end = static_cast<std::int32_t>(out.deps.size());
    moved_to[i] = static_cast<std::int32_t>(out.ops.size());
    if (op.stream == Stream::kCompute && op.action < 0) last_compute = moved_to[i];
    out.ops.push_back(op);
  }
  return out;
}

// Not of the last virtual stage, whose backward follows its forward.
std::vector<ChunkOffload> plan_offload(const Job& job, std::int64_t stage, OperatorGraph& graph) {
  std::vector<ChunkOffload> plans(graph.chunks.size());
  for (std::size_t c = 0; c < plans.size(); ++c) {
    const std::int64_t virtual_stage =
        job.layout.virtual_stage(stage, static_cast<std::int64_t>(c));
    if (virtual_stage == job.layout.virtual_stages() - 1) continue;
    plans[c] = plan_ratio_offload(graph, c, job.options.offload_ratio);
  }
  return plans;
}

SlotOrders slot_orders(const Job& job, std::int32_t stages, std::int32_t microbatches) {
  switch (job.layout.schedule) {
    case PipelineSchedule::kCombined1F1B:
      return build_combined_1f1b(stages, microbatches, job.options.delay_wgrad_compute);
    case PipelineSchedule::kZbH1:
      return build_zb_h1(stages, microbatches);
    case PipelineSchedule::kZbH2:
      return build_zb_h2(stages, microbatches);
    case PipelineSchedule::kZbV:
      return build_zb_v(stages, microbatches);
    case PipelineSchedule::kVHalf:
      return build_v_half(stages, microbatches);
    case PipelineSchedule::kVMin:
      return build_v_min(stages, microbatches);
    case PipelineSchedule::kDualPipe:
      return build_dual_pipe(stages, microbatches);
    default:
      return build_dual_pipe_v(stages, microbatches);
  }
}

// The fused slots of a stage, each kind once.
void fuse(StageProgram& stage, const Schedule& schedule, std::int64_t index) {
  SlotOperators operators(stage.graph);
  for (const Step& step : schedule.stages[static_cast<std::size_t>(index)]) {
    const Slot* slot = std::get_if<Slot>(&step);
    if (slot == nullptr || slot->kind != SlotKind::kForwardBackward) continue;
    const ChunkTensor b = slot->beside;
    const FusedKey key{slot->chunk, slot->microbatch == schedule.first_microbatch(slot->chunk),
                       b.chunk, b.microbatch == schedule.end_microbatch(b.chunk) - 1};
    if (stage.fused.contains(key)) continue;
    const ChunkProgram& forward = stage.chunks[static_cast<std::size_t>(slot->chunk)];
    const ChunkProgram& backward = stage.chunks[static_cast<std::size_t>(b.chunk)];
    // Reductions wait for weight gradients, which may follow in a slot of their own.
    const bool whole = stage.graph.chunks[static_cast<std::size_t>(b.chunk)].weight.size() == 0;
    stage.fused.emplace(
        key, fuse_slots(key.first ? forward.first_forward : forward.forward,
                        key.last && whole ? backward.last_backward : backward.backward_input,
                        operators.of(*slot)));
  }
}

}  // namespace

namespace {

// Whether `next` can be of the same run as `op`, which is before it.
bool continues(const ProgramOp& op, const ProgramOp& next) {
  const bool plain = next.action < 0 && next.group == Group::kNone &&
                     next.reduces == DataGroup::kNone && !next.cost.routed() &&
                     next.dep_begin == next.dep_end;
  return plain && next.stream == op.stream && op.awaited_as < 0 && !op.host_waits;
}

bool begins_run(const ProgramOp& op) {
  return op.action < 0 && op.group == Group::kNone && op.reduces == DataGroup::kNone &&
         !op.cost.routed();
}

}  // namespace

void prepare(SlotProgram& slot, std::int64_t host_issue_ns) {
  slot.awaited = 0;
  for (ProgramOp& op : slot.ops) op.awaited_as = -1;
  for (const std::int32_t d : slot.deps) {
    std::int32_t& number = slot.ops[static_cast<std::size_t>(d)].awaited_as;
    if (number < 0) number = slot.awaited++;
  }
  for (std::size_t i = 0; i < slot.ops.size();) {
    ProgramOp& first = slot.ops[i];
    first.run = 1;
    while (i + static_cast<std::size_t>(first.run) < slot.ops.size() && begins_run(first) &&
           continues(slot.ops[i + static_cast<std::size_t>(first.run) - 1],
                     slot.ops[i + static_cast<std::size_t>(first.run)])) {
      ++first.run;
    }
    // The j-th operator (from 1) cannot start before j issues; then come it and those after it.
    first.run_ns = 0;
    first.run_from_host_ns = 0;
    for (std::int64_t j = first.run; j >= 1; --j) {
      first.run_ns += slot.ops[i + static_cast<std::size_t>(j) - 1].cost.at(0);
      first.run_from_host_ns = std::max(first.run_from_host_ns, j * host_issue_ns + first.run_ns);
    }
    i += static_cast<std::size_t>(first.run);
  }
}

Schedule build_schedule(const Job& job) {
  const ParallelLayout& l = job.layout;
  const auto stages = static_cast<std::int32_t>(l.pipeline);
  const auto microbatches = static_cast<std::int32_t>(job.batch.num_microbatches(l));
  if (!l.is_megatrons()) {
    return with_transfers(slot_orders(job, stages, microbatches), microbatches,
                          static_cast<std::int32_t>(l.virtual_pipeline), l.placement());
  }
  if (l.virtual_pipeline == 1) return build_1f1b(stages, microbatches);
  Schedule schedule = build_interleaved_1f1b(
      stages, microbatches,
      {static_cast<std::int32_t>(l.virtual_pipeline),
       static_cast<std::int32_t>(l.microbatches_in_a_row()), job.options.overlap_p2p_comm,
       job.options.overlap_moe_expert_parallel_comm, job.options.delay_wgrad_compute});
  schedule.lists_stand_ins = job.versions.fork == Fork::kKwai;
  return schedule;
}

const SlotProgram& Program::slot_program(std::int32_t stage, const Slot& slot) const {
  const StageProgram& at = stages[static_cast<std::size_t>(stage)];
  const ChunkProgram& chunk = at.chunks[static_cast<std::size_t>(slot.chunk)];
  const auto is_first = [&](ChunkTensor t) {
    return t.microbatch == schedule.first_microbatch(t.chunk);
  };
  const auto is_last = [&](ChunkTensor t) {
    return t.microbatch == schedule.end_microbatch(t.chunk) - 1;
  };
  const ChunkTensor own{slot.chunk, slot.microbatch};
  switch (slot.kind) {
    case SlotKind::kForward:
      return is_first(own) ? chunk.first_forward : chunk.forward;
    case SlotKind::kBackward:
      return is_last(own) ? chunk.last_backward : chunk.backward;
    case SlotKind::kBackwardInput:
      return chunk.backward_input;
    case SlotKind::kBackwardWeight:
      return is_last(own) ? chunk.last_backward_weight : chunk.backward_weight;
    default:
      return at.fused.at({slot.chunk, is_first(own), slot.beside.chunk, is_last(slot.beside)});
  }
}

Program build_program(const Job& job, const HardwareProfile& profile) {
  std::vector<OperatorGraph> graphs;
  for (std::int64_t stage = 0; stage < job.layout.pipeline; ++stage) {
    graphs.push_back(build_operator_graph(job, stage));
  }
  return build_program(job, profile, std::move(graphs));
}

Program build_program(const Job& job, const HardwareProfile& profile,
                      std::vector<OperatorGraph> graphs) {
  const ParallelLayout& l = job.layout;
  const TrainingOptions& options = job.options;
  OperatorCosts costs(job, profile);
  Program program;
  program.lanes = l.lanes_per_stage();
  program.groups[static_cast<int>(Group::kTensor)] = {l.tensor, 1};
  program.groups[static_cast<int>(Group::kContext)] = {l.context, l.tensor};
  program.groups[static_cast<int>(Group::kExpert)] = {l.expert, l.expert_tensor};
  program.groups[static_cast<int>(Group::kExpertTensor)] = {l.expert_tensor, 1};
  program.schedule = build_schedule(job);
  program.exchange_ns = costs.transfer_ns(2 * job.sharded_tokens() * job.model.hidden_size);
  program.host_issue_ns = costs.host_issue_ns();

  for (std::int64_t stage = 0; stage < l.pipeline; ++stage) {
    StageProgram out;
    out.graph = std::move(graphs[static_cast<std::size_t>(stage)]);
    if (options.offload_ratio > 0) out.offload = plan_offload(job, stage, out.graph);
    const SlotCompiler compiler(job, costs, out.graph);
    const std::int64_t gradient_bytes = options.optimizer.main_grad_bytes;
    const Collective reduction =
        options.optimizer.distributed ? Collective::kReduceScatter : Collective::kAllReduce;
    std::vector<std::vector<GradientBuffer>> all_buffers;  // [chunk]
    for (std::int64_t c = 0; c < l.virtual_pipeline; ++c) {
      all_buffers.push_back(gradient_buffers(job, l.virtual_stage(stage, c)));
    }
    std::int64_t parameters = 0;
    std::int64_t owned = 0;
    for (std::int64_t c = 0; c < l.virtual_pipeline; ++c) {
      const Chunk& operators = out.graph.chunks[static_cast<std::size_t>(c)];
      ChunkProgram chunk;
      chunk.forward = compiler.compile(true, operators.forward);
      chunk.backward = compiler.compile(
          false,
          {operators.backward.begin, std::max(operators.backward.end, operators.weight.end)});
      chunk.backward_input = compiler.compile(false, operators.backward);
      chunk.backward_weight = compiler.compile(false, operators.weight);
      chunk.last_backward_weight = chunk.backward_weight;
      chunk.first_forward = chunk.forward;
      chunk.last_backward = chunk.backward;

      const auto layers = l.chunk_layers(l.virtual_stage(stage, c), job.model.num_layers);
      const std::vector<GradientBuffer>& buffers = all_buffers[static_cast<std::size_t>(c)];
      if (options.overlap_grad_reduce) {
        chunk.last_backward = with_gradient_reduction(chunk.backward, out.graph, buffers, layers,
                                                      costs, gradient_bytes, reduction);
        chunk.last_backward_weight = with_gradient_reduction(
            chunk.backward_weight, out.graph, buffers, layers, costs, gradient_bytes, reduction);
      }
      if (options.overlap_param_gather) {
        const bool last = c == l.virtual_pipeline - 1;
        const auto* next = last ? nullptr : &all_buffers[static_cast<std::size_t>(c) + 1];
        chunk.first_forward =
            with_parameter_gather(chunk.forward, out.graph, {buffers, c > 0, next}, layers, costs);
      }
      for (const GradientBuffer& buffer : buffers) {
        parameters += buffer.parameters;
        owned += buffer.parameters / buffer.shards;
        if (!options.overlap_grad_reduce) {
          out.end.reduce_ns += costs.data_collective_ns(
              reduction, gradient_bytes * buffer.parameters, buffer.expert);
        }
        if (options.optimizer.distributed && !options.overlap_param_gather) {
          out.end.gather_ns += costs.data_collective_ns(
              Collective::kAllGather, kParameterBytes * buffer.parameters, buffer.expert);
        }
      }
      out.chunks.push_back(std::move(chunk));
    }
    // Clear the gradients, check them for NaN, and their norm; then Adam: reads the gradient, reads
    // and writes the main parameter and both moments, writes the bf16 parameter.
    const OptimizerOptions& o = options.optimizer;
    const std::int64_t passes = options.check_for_nan_in_loss_and_grad ? 2 : 1;
    const std::int64_t step = o.main_grad_bytes + kParameterBytes +
                              2 * (o.main_param_bytes + o.exp_avg_bytes + o.exp_avg_sq_bytes);
    const std::int64_t norm = o.main_grad_bytes;
    fuse(out, program.schedule, stage);
    for_each_slot_program(out, [&](SlotProgram& slot) { prepare(slot, program.host_issue_ns); });
    out.end.optimizer_ns = costs.streaming_ns(passes * gradient_bytes * parameters) +
                           costs.streaming_ns((step + norm) * owned);
    program.stages.push_back(std::move(out));
  }
  program.grouped_costs = costs.take_grouped_costs();
  return program;
}

}  // namespace tidemark
