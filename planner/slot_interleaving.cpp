#include "planner/slot_interleaving.h"

#include <algorithm>
#include <map>
#include <utility>

#include "planner/order_cache.h"
#include "sim/fused_slot.h"
#include "sim/lane_engine.h"
#include "sim/simulation.h"
#include "sim/slot_operators.h"

namespace tidemark {
namespace {

// Partial orders looked at for one slot. They are found once for a job, not while it runs.
constexpr OrderLimit kWork{1 << 19};

constexpr std::int32_t kForwardChain = 0;
constexpr std::int32_t kBackwardChain = 1;
constexpr std::int32_t kWeightChain = 2;

class SpanRecorder : public Recorder {
 public:
  explicit SpanRecorder(std::size_t operators) { run.spans.resize(operators); }

  void on_operator(std::int32_t, std::int32_t, std::int32_t op, const SlotProgram&,
                   std::span<const std::int64_t> start,
                   std::span<const std::int64_t> end) override {
    run.spans[static_cast<std::size_t>(op)] = {start[0], end[0]};
    run.ns = std::max(run.ns, end[0]);
  }
  void on_transfer(std::int32_t, std::int32_t, std::span<const std::int64_t>,
                   std::span<const std::int64_t>) override {}

  SlotRun run;
};

// On streams that the host calls by themselves; a collective or a copy follows the operator that is
// issued before it.
bool leads(const ProgramOp& op) {
  return op.stream == Stream::kCompute || op.stream == Stream::kSharedExpert ||
         op.stream == Stream::kExpertComm;
}

class SlotReader {
 public:
  SlotReader(const OperatorGraph& graph, const SlotProgram& slot, const SlotRun& alone)
      : graph_(graph), slot_(slot), alone_(alone), point_(slot.ops.size()) {
    const bool delays = graph.combined->delay_wgrad_compute;
    out_.problem.chains = {{"forward", {}}, {"backward", {}}};
    if (delays) out_.problem.chains.push_back({"weight gradients", {}});
    chain_operators_.resize(out_.problem.chains.size());
    for (const bool beside : {false, true}) read_pass(beside, delays);
  }

  InterleavableSlot take() && {
    for (const std::vector<std::size_t>& chain : chain_operators_) {
      for (const std::size_t at : chain) add_operator(at);
    }
    for (std::size_t f = 0; f < floating_.size(); ++f) {
      add_operator(floating_[f]);
      out_.problem.floating[f].before = deadline(floating_[f]);
    }
    out_.followers.resize(out_.operators.size());
    SlotGraph numbers;
    numbers.assign(out_.problem);
    for (const auto& [at, leader] : follows_) {
      out_.followers[static_cast<std::size_t>(numbers.at(point_[leader]))].push_back(
          slot_.ops[at].operator_index);
    }
    return std::move(out_);
  }

 private:
  void add_operator(std::size_t at) { out_.operators.push_back(slot_.ops[at].operator_index); }

  SlotOperator work(std::size_t at) const {
    const SlotRun::Span& span = alone_.spans[at];
    return {static_cast<std::int32_t>(slot_.ops[at].stream), span.end_ns - span.start_ns};
  }

  const Operator& source(std::size_t at) const {
    return graph_.at(static_cast<std::size_t>(slot_.ops[at].operator_index));
  }

  bool waits_for(std::size_t at, std::size_t on) const {
    const ProgramOp& op = slot_.ops[at];
    const auto begin = slot_.deps.begin() + op.dep_begin;
    return op.stream == slot_.ops[on].stream ||
           std::find(begin, slot_.deps.begin() + op.dep_end, static_cast<std::int32_t>(on)) !=
               slot_.deps.begin() + op.dep_end;
  }

  void read_pass(bool beside, bool delays) {
    std::vector<std::size_t> chained;  // without weight gradients that move
    std::vector<std::size_t> all;
    std::vector<std::vector<std::size_t>> optional;  // [chained]: behind it
    for (std::size_t at = 0; at < slot_.ops.size(); ++at) {
      if (slot_.ops[at].beside != beside) continue;
      all.push_back(at);
      if (slot_.ops[at].action >= 0 && !chained.empty()) {
        optional.back().push_back(at);
      } else if (!(beside && delays && source(at).deferrable)) {
        chained.push_back(at);
        optional.emplace_back();
      }
    }
    const std::int32_t chain = beside ? kBackwardChain : kForwardChain;
    std::size_t leader = slot_.ops.size();
    for (std::size_t i = 0; i < chained.size(); ++i) {
      const std::size_t at = chained[i];
      const bool follows = leader < slot_.ops.size() && !leads(slot_.ops[at]);
      if (follows) follows_.emplace_back(at, leader);
      if (follows && i + 1 < chained.size() && !waits_for(chained[i + 1], at)) {
        // For what comes after it in the order it stands where its leader does.
        point_[at] = point_[leader];
        floating_.push_back(at);
        out_.problem.floating.push_back({work(at), point_[leader], {}});
      } else {
        append(chain, at);
        if (!follows) leader = at;
      }
      for (const std::size_t behind : optional[i]) {
        point_[behind] = point_[leader];
        follows_.emplace_back(behind, leader);
      }
    }
    for (const std::size_t at : all) {
      if (beside && delays && source(at).deferrable) append(kWeightChain, at);
    }
    if (beside && delays) add_precedences(all);
  }

  void append(std::int32_t chain, std::size_t at) {
    auto& operators = out_.problem.chains[static_cast<std::size_t>(chain)].operators;
    point_[at] = {chain, static_cast<std::int32_t>(operators.size())};
    operators.push_back(work(at));
    chain_operators_[static_cast<std::size_t>(chain)].push_back(at);
  }

  // The first of its pass's chain that waits for a floating operator.
  ChainPoint deadline(std::size_t floating) const {
    for (std::size_t at = floating + 1; at < slot_.ops.size(); ++at) {
      const bool chained = slot_.ops[at].beside == slot_.ops[floating].beside &&
                           slot_.ops[at].action < 0 && point_[at].chain != kWeightChain &&
                           std::ranges::count(floating_, at) == 0;
      if (chained && waits_for(at, floating)) return point_[at];
    }
    return {};
  }

  // What weight gradients and the rest of the backward make for each other.
  void add_precedences(const std::vector<std::size_t>& all) {
    std::map<StorageId, ChainPoint> writer;
    std::map<StorageId, std::vector<ChainPoint>> readers;
    std::map<std::pair<std::int32_t, std::int32_t>, std::int32_t> covered;  // [chains] -> position
    for (const std::size_t at : all) {
      const Operator& op = source(at);
      const ChainPoint own = point_[at];
      std::vector<ChainPoint> before;
      for (const auto* list : {&op.reads, &op.writes}) {
        for (const StorageId s : *list) {
          if (const auto it = writer.find(s); it != writer.end()) before.push_back(it->second);
        }
      }
      for (const StorageId s : op.writes) {
        const std::vector<ChainPoint>& of = readers[s];
        before.insert(before.end(), of.begin(), of.end());
      }
      for (const ChainPoint& p : before) {
        if (p.chain == own.chain) continue;
        const auto [it, first] = covered.try_emplace({p.chain, own.chain}, p.position);
        if (!first && p.position <= it->second) continue;
        it->second = p.position;
        out_.problem.precedences.push_back({p, own});
      }
      for (const StorageId s : op.writes) {
        writer[s] = own;
        readers[s].clear();
      }
      for (const StorageId s : op.reads) readers[s].push_back(own);
    }
  }

  const OperatorGraph& graph_;
  const SlotProgram& slot_;
  const SlotRun& alone_;
  InterleavableSlot out_;
  std::vector<ChainPoint> point_;                          // [operator of the slot]
  std::vector<std::vector<std::size_t>> chain_operators_;  // [chain]
  std::vector<std::size_t> floating_;
  std::vector<std::pair<std::size_t, std::size_t>> follows_;  // an operator, and what it follows
};

// Every microbatch takes the same.
StageDecisions repeated(const std::vector<std::uint8_t>& taken, std::int32_t microbatches) {
  StageDecisions out(microbatches, static_cast<std::int32_t>(taken.size()));
  for (std::int32_t mb = 0; mb < microbatches; ++mb) {
    for (std::size_t a = 0; a < taken.size(); ++a) {
      out.at(mb, static_cast<std::int32_t>(a)) = taken[a];
    }
  }
  return out;
}

}  // namespace

SlotRun run_alone(const Program& program, const SlotProgram& slot, const LaneRows& rows,
                  const StageDecisions& taken) {
  Program alone;
  alone.grouped_costs = program.grouped_costs;
  alone.host_issue_ns = program.host_issue_ns;
  alone.schedule.microbatches = 3;  // neither is the first or the last
  alone.schedule.stages = {{Slot{SlotKind::kForwardBackward, 1, 0, {0, 0}}}};
  alone.stages.resize(1);
  alone.stages[0].chunks.resize(1);
  alone.stages[0].fused[{0, false, 0, false}] = slot;
  SpanRecorder recorder(slot.ops.size());
  Recorder* const recorders[] = {&recorder};
  const UnitDecisions decisions{taken};
  run_units(alone, {&rows, 1}, recorders, {&decisions, 1});
  return std::move(recorder.run);
}

InterleavableSlot interleavable_slot(const OperatorGraph& graph, const SlotProgram& slot,
                                     const SlotRun& alone) {
  return SlotReader(graph, slot, alone).take();
}

std::vector<std::int32_t> issue_order(const InterleavableSlot& slot,
                                      std::span<const std::int32_t> order) {
  std::vector<bool> follows(slot.operators.size(), false);
  std::map<std::int32_t, std::size_t> number;  // by position in the graph's lists
  for (std::size_t o = 0; o < slot.operators.size(); ++o) number[slot.operators[o]] = o;
  for (const std::vector<std::int32_t>& of : slot.followers) {
    for (const std::int32_t op : of) {
      if (const auto it = number.find(op); it != number.end()) follows[it->second] = true;
    }
  }
  std::vector<std::int32_t> out;
  for (const std::int32_t o : order) {
    const auto at = static_cast<std::size_t>(o);
    if (follows[at]) continue;
    out.push_back(slot.operators[at]);
    out.insert(out.end(), slot.followers[at].begin(), slot.followers[at].end());
  }
  return out;
}

bool seeks_orders(const Job& job) {
  return job.combines_slots() && job.options.combined_slot_order != SlotOrder::kMegatron;
}

Program ordered_program(const Job& given, const HardwareProfile& profile) {
  const Job job = on_platform(given, profile);
  Program megatron = build_program(job, profile);
  const std::vector<std::vector<std::uint8_t>> none(megatron.stages.size());
  return ordered_program(job, profile, std::move(megatron), none);
}

Program ordered_program(const Job& job, const HardwareProfile& profile, Program megatron,
                        const std::vector<std::vector<std::uint8_t>>& taken) {
  if (!seeks_orders(job)) return megatron;
  const LaneRows rows = LaneRows::alike(job);
  OrderCache cache(kWork, {.duration_bits = 63});
  std::vector<OperatorGraph> graphs;
  UnitDecisions decisions;
  for (std::size_t s = 0; s < megatron.stages.size(); ++s) {
    const StageProgram& stage = megatron.stages[s];
    const StageDecisions both = repeated(taken[s], 3);
    decisions.push_back(repeated(taken[s], megatron.schedule.microbatches));
    OperatorGraph& graph = graphs.emplace_back(stage.graph);
    for (const auto& [key, fused] : stage.fused) {
      const std::pair chunks{key.forward_chunk, key.backward_chunk};
      if (graph.slot_orders.contains(chunks)) continue;
      const ChunkProgram& forward = stage.chunks[static_cast<std::size_t>(key.forward_chunk)];
      const ChunkProgram& backward = stage.chunks[static_cast<std::size_t>(key.backward_chunk)];
      const Slot slot{SlotKind::kForwardBackward, 1, key.forward_chunk, {key.backward_chunk, 0}};
      const auto fused_in = [&](const OperatorGraph& order) {
        SlotProgram out =
            fuse_slots(forward.forward, backward.backward_input, slot_operators(order, slot));
        prepare(out, megatron.host_issue_ns);
        return out;
      };
      const SlotProgram theirs = fused_in(stage.graph);
      const SlotRun alone = run_alone(megatron, theirs, rows, both);
      const InterleavableSlot problem = interleavable_slot(graph, theirs, alone);
      const StreamOrder& order = cache.order(problem.problem);
      graph.slot_orders[chunks] = issue_order(problem, order.order);
      if (run_alone(megatron, fused_in(graph), rows, both).ns >= alone.ns) {
        graph.slot_orders.erase(chunks);
      }
    }
  }
  Program shortest = build_program(job, profile, std::move(graphs));
  const auto time = [&](const Program& p) {
    return run_units(p, {&rows, 1}, {}, {&decisions, 1}).iteration_ns;
  };
  return time(shortest) < time(megatron) ? std::move(shortest) : std::move(megatron);
}

}  // namespace tidemark
