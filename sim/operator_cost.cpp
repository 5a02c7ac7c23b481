#include "sim/operator_cost.h"

#include <algorithm>
#include <cmath>

#include "models/layer_operators.h"
#include "models/overloaded.h"

namespace tidemark {
namespace {

Cost sum(Cost a, Cost b) { return {a.seconds + b.seconds, std::max(a.kind, b.kind)}; }

// A card's share of the host link, in bytes a second: all cards of the node copy at once.
double card_rate(const SourcedNumber& alone, const std::optional<SourcedNumber>& node,
                 const SourcedNumber& cards) {
  return 1e9 * (node ? std::min(alone.value, node->value / cards.value) : alone.value);
}

}  // namespace

// How far tables of grouped products reach, in balanced loads of an expert.
constexpr std::int64_t kTabulatedLoads = 16;

OperatorCosts::OperatorCosts(const Job& job, const HardwareProfile& profile)
    : job_(job),
      balanced_rows_(balanced_lane_rows(job)),
      local_experts_(job.model.moe ? job.model.moe->num_experts / job.layout.expert : 0),
      kernels_(profile),
      collectives_(profile),
      cards_per_node_(static_cast<std::int64_t>(profile.cards_per_node.value)),
      slowdown_(profile.compute_slowdown_under_collective.value),
      d2h_bytes_per_s_(card_rate(profile.host_link.d2h_gb_per_s,
                                 profile.host_link.node_d2h_gb_per_s, profile.cards_per_node)),
      h2d_bytes_per_s_(card_rate(profile.host_link.h2d_gb_per_s,
                                 profile.host_link.node_h2d_gb_per_s, profile.cards_per_node)) {}

GroupShape OperatorCosts::shape_of(Group group) const {
  const ParallelLayout& l = job_.layout;
  switch (group) {
    case Group::kTensor:
      return group_shape(l.tensor, 1, cards_per_node_);
    case Group::kContext:
      return group_shape(l.context, l.tensor, cards_per_node_);
    case Group::kExpert:
      return group_shape(l.expert, l.expert_tensor, cards_per_node_);
    case Group::kExpertTensor:
      return group_shape(l.expert_tensor, 1, cards_per_node_);
    case Group::kNone:
      break;
  }
  return {};
}

Cost OperatorCosts::evaluate(const Operator& op, std::int64_t rows) const {
  return std::visit(
      Overloaded{
          [&](const GemmWork& w) {
            const Cost product = w.vocabulary ? kernels_.logits_gemm(w.shape, w.pass)
                                              : kernels_.gemm(w.shape, w.pass);
            if (!w.accumulates_fp32) return product;
            return sum(product,
                       kernels_.gradient_accumulation(w.shape.out_features * w.shape.in_features));
          },
          [&](const GroupedGemmWork& w) {
            const Cost kind = kernels_.grouped_gemm(w.out_features, w.in_features, w.experts,
                                                    ceil_div(rows, w.experts), w.pass);
            const Cost product{0, kind.kind};
            if (!w.accumulates_fp32) return product;
            return sum(product,
                       kernels_.gradient_accumulation(w.experts * w.out_features * w.in_features));
          },
          [&](const AttentionWork& w) {
            Cost whole = kernels_.attention(w.shape, w.direction);
            whole.seconds /= static_cast<double>(w.context_ranks);
            return whole;
          },
          [&](const NormWork& w) { return kernels_.rms_norm(w.rows, w.width, w.direction); },
          [&](const RotaryWork& w) { return kernels_.rope(w.elements, w.direction); },
          [&](const StreamingWork& w) {
            const std::int64_t bytes = w.bytes.at(rows);
            return bytes == 0 ? Cost{0, CostKind::kRoofline}
                              : kernels_.streaming(static_cast<double>(bytes));
          },
          [&](const RouterWork& w) { return kernels_.router(w.direction); },
          [&](const CrossEntropyWork& w) {
            return kernels_.cross_entropy(w.path, w.logits, w.direction);
          },
          [&](const CollectiveWork& w) {
            const auto bytes = static_cast<double>(std::max(w.send.at(rows), w.receive.at(rows)));
            const GroupShape shape = shape_of(w.group);
            // A ring exchange is a message to the next rank of the group.
            if (w.op == Collective::kSendReceive) {
              return collectives_.time(
                  w.op, bytes,
                  {2, shape.ranks_per_node >= std::min<std::int64_t>(2, shape.ranks)
                          ? std::int64_t{2}
                          : std::int64_t{1}});
            }
            return collectives_.time(w.op, bytes, shape);
          },
          [&](const CopyWork& w) {
            const double rate = w.to_host ? d2h_bytes_per_s_ : h2d_bytes_per_s_;
            return Cost{static_cast<double>(w.bytes.at(rows)) / rate, CostKind::kRoofline};
          },
          [](const HostWaitWork& w) {
            return Cost{static_cast<double>(w.host_ns) * 1e-9, CostKind::kAssumed};
          }},
      op.work);
}

std::int32_t OperatorCosts::grouped_cost(const GroupedGemmWork& work) {
  const auto [it, is_new] =
      grouped_index_.try_emplace({work.out_features, work.in_features, work.pass},
                                 static_cast<std::int32_t>(grouped_costs_.size()));
  if (is_new) {
    const std::int64_t tokens = ceil_div(balanced_rows_, local_experts_);
    grouped_costs_.emplace_back(kernels_, work, kTabulatedLoads * tokens);
  }
  return it->second;
}

std::int64_t OperatorCosts::balanced_ns(const OpCost& cost) const {
  const std::int64_t ns = cost.at(balanced_rows_);
  if (cost.grouped < 0) return ns;
  const GroupedCost& expert = grouped_costs_[static_cast<std::size_t>(cost.grouped)];
  return ns + local_experts_ * expert.at(ceil_div(balanced_rows_, local_experts_));
}

OpCost OperatorCosts::cost(const Operator& op) {
  const auto ns = [](double seconds) { return round_up_ns(seconds).count(); };
  const Cost empty = evaluate(op, 0);
  OpCost out;
  out.kind = empty.kind;
  const auto* exchange = std::get_if<CollectiveWork>(&op.work);
  const std::int64_t parts = exchange != nullptr ? exchange->fused_parts : 1;
  const auto routed = [](Size s) { return s.per_row != 0; };
  const auto* streaming = std::get_if<StreamingWork>(&op.work);
  const auto* copy = std::get_if<CopyWork>(&op.work);
  if (const auto* grouped = std::get_if<GroupedGemmWork>(&op.work); grouped && balanced_rows_ > 0) {
    const Cost balanced = evaluate(op, balanced_rows_);
    out.kind = balanced.kind;
    out.fixed_ns = ns(balanced.seconds);
    out.grouped = grouped_cost(*grouped);
    return out;
  }
  const bool depends_on_rows =
      (streaming != nullptr && routed(streaming->bytes)) ||
      (copy != nullptr && routed(copy->bytes)) ||
      (exchange != nullptr && (routed(exchange->send) || routed(exchange->receive)));
  if (!depends_on_rows || balanced_rows_ == 0) {
    out.fixed_ns = ns(empty.seconds / static_cast<double>(parts));
    return out;
  }
  const Cost balanced = evaluate(op, balanced_rows_);
  out.kind = balanced.kind;
  if (exchange != nullptr) {
    // The larger of what is sent (fixed) and received (routed) decides.
    out.floor_ns = ns(empty.seconds);
    out.per_row_q20 = static_cast<std::int64_t>(balanced.seconds * 1e9 * (1 << 20) /
                                                static_cast<double>(balanced_rows_));
    return out;
  }
  out.fixed_ns = ns(empty.seconds);
  out.per_row_q20 = static_cast<std::int64_t>((balanced.seconds - empty.seconds) * 1e9 * (1 << 20) /
                                              static_cast<double>(balanced_rows_));
  return out;
}

std::int64_t OperatorCosts::data_collective_ns(Collective op, std::int64_t bytes,
                                               bool expert) const {
  const ParallelLayout& l = job_.layout;
  const GroupShape shape =
      expert ? group_shape(l.expert_data(), l.expert * l.expert_tensor, cards_per_node_)
             : group_shape(l.data() * l.context, l.tensor, cards_per_node_);
  return round_up_ns(collectives_.time(op, static_cast<double>(bytes), shape).seconds).count();
}

std::int64_t OperatorCosts::transfer_ns(std::int64_t bytes) const {
  const std::int64_t stage_cards = job_.layout.cards / job_.layout.pipeline;
  const GroupShape shape = group_shape(2, stage_cards, cards_per_node_);
  return round_up_ns(
             collectives_.time(Collective::kSendReceive, static_cast<double>(bytes), shape).seconds)
      .count();
}

std::int64_t OperatorCosts::streaming_ns(std::int64_t bytes) const {
  return round_up_ns(kernels_.streaming(static_cast<double>(bytes)).seconds).count();
}

std::int64_t OperatorCosts::host_issue_ns() const {
  return round_up_ns(kernels_.host_issue().seconds).count();
}

TimeClass time_class(const Operator& op) {
  switch (op.stream) {
    case Stream::kTensorComm:
      return TimeClass::kTensorComm;
    case Stream::kContextComm:
      return TimeClass::kContextComm;
    case Stream::kExpertComm:
      return TimeClass::kExpertComm;
    case Stream::kDataComm:
      return TimeClass::kDataComm;
    case Stream::kDeviceToHost:
    case Stream::kHostToDevice:
      return TimeClass::kHostCopy;
    case Stream::kCompute:
    case Stream::kSharedExpert:
      break;
  }
  if (std::holds_alternative<GemmWork>(op.work)) return TimeClass::kGemm;
  if (std::holds_alternative<GroupedGemmWork>(op.work)) return TimeClass::kGroupedGemm;
  if (std::holds_alternative<AttentionWork>(op.work)) return TimeClass::kAttention;
  if (std::holds_alternative<CrossEntropyWork>(op.work)) return TimeClass::kLoss;
  return TimeClass::kElementwise;
}

}  // namespace tidemark
