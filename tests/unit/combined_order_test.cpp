#include "models/combined_order.h"

#include <algorithm>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "models/weight_gradients.h"
#include "sim/slot_operators.h"
#include "tests/support/jobs.h"

namespace tidemark::combined_order_test {
namespace {

using testing::ElementsAre;

// DeepSeek-V3, two chunks a stage, stage 1: four layers with experts in each chunk.
Job combined_job(bool delays, bool early) {
  Job job = deepseek_v3_1024();
  job.layout.virtual_pipeline = 2;
  job.layout.first_stage_layers = job.layout.last_stage_layers = 0;
  job.model.num_layers = 64;
  job.model.moe_layer.assign(64, true);
  job.options.overlap_moe_expert_parallel_comm = true;
  job.options.moe_shared_expert_overlap = false;
  job.options.delay_wgrad_compute = delays;
  job.options.ep_overlap_early_attn_memory_release = early;
  validate(job, "/");
  return job;
}

// Chunk 0 forward beside chunk 1 backward.
constexpr Slot kCombined{SlotKind::kForwardBackward, 5, 0, {1, 3}};

std::string node(const Operator& op, bool beside, bool delays) {
  const char* const parts[] = {"attn", "dispatch", "mlp", "combine"};
  std::string out = beside ? "B " : "F ";
  out += parts[static_cast<int>(op.part)];
  if (delays && op.deferrable && beside) out += " dw";
  return out;
}

// The nodes of the second pair of layers, in order.
std::vector<std::string> second_pair(bool delays, bool early) {
  const OperatorGraph graph = build_operator_graph(combined_job(delays, early), 1);
  const std::int32_t forward_layer = 4 + 1;        // of layers 4 to 7
  const std::int32_t backward_layer = 32 + 4 + 2;  // of layers 36 to 39, the last but one
  std::vector<std::string> nodes;
  for (const IssuedOperator& at : slot_operators(graph, kCombined)) {
    const Operator& op = graph.at(static_cast<std::size_t>(at.index));
    if (op.layer != (at.beside ? backward_layer : forward_layer)) continue;
    const std::string name = node(op, at.beside, delays);
    if (nodes.empty() || nodes.back() != name) nodes.push_back(name);
  }
  return nodes;
}

// TransformerLayerSchedulePlan.run, line by line.
TEST(CombinedOrder, IsMegatrons) {
  EXPECT_THAT(second_pair(false, false), ElementsAre("B combine", "F attn", "B mlp", "F dispatch",
                                                     "B dispatch", "F mlp", "F combine", "B attn"));
  EXPECT_THAT(second_pair(true, false),
              ElementsAre("B combine", "F attn", "B mlp", "F dispatch", "B mlp dw", "B dispatch",
                          "F mlp", "F combine", "B attn", "B attn dw"));
  EXPECT_THAT(second_pair(true, true),
              ElementsAre("B combine", "F attn", "B mlp", "F dispatch", "B mlp dw", "B dispatch",
                          "B attn", "F mlp", "F combine", "B attn dw"));
}

TEST(CombinedOrder, PairsTheFirstLayerForwardWithTheLastBackward) {
  const OperatorGraph graph = build_operator_graph(combined_job(false, false), 1);
  std::vector<std::int32_t> forward;
  std::vector<std::int32_t> backward;
  for (const IssuedOperator& at : slot_operators(graph, kCombined)) {
    const std::int32_t layer = graph.at(static_cast<std::size_t>(at.index)).layer;
    std::vector<std::int32_t>& seen = at.beside ? backward : forward;
    if (layer < 0 || (!seen.empty() && seen.back() == layer)) continue;
    seen.push_back(layer);
    EXPECT_LE(forward.size() - std::min(forward.size(), backward.size()), 1U);
    EXPECT_LE(backward.size() - std::min(forward.size(), backward.size()), 1U);
  }
  EXPECT_THAT(forward, ElementsAre(4, 5, 6, 7));
  EXPECT_THAT(backward, ElementsAre(39, 38, 37, 36));
}

TEST(CombinedOrder, LeavesTheLastLayersAttentionForAfterTheTransfers) {
  const OperatorGraph graph = build_operator_graph(combined_job(true, false), 1);
  for (const IssuedOperator& at : slot_operators(graph, {SlotKind::kBackwardWeight, 3, 1})) {
    const Operator& op = graph.at(static_cast<std::size_t>(at.index));
    EXPECT_TRUE(op.deferrable) << op.name;
    EXPECT_EQ(op.layer, 36);
    EXPECT_EQ(op.part, LayerPart::kAttention);
  }
  EXPECT_GT(graph.chunks[1].weight.size(), 0);
}

TEST(CombinedOrder, DispatchAndCombineRunOnTheExpertStream) {
  const OperatorGraph graph = build_operator_graph(combined_job(false, false), 1);
  for (std::size_t i = 0; i < graph.size(); ++i) {
    const Operator& op = graph.at(i);
    if (op.part == LayerPart::kDispatch || op.part == LayerPart::kCombine) {
      EXPECT_EQ(op.stream, Stream::kExpertComm) << op.name;
    } else {
      EXPECT_NE(op.stream, Stream::kExpertComm) << op.name;
    }
  }
}

// A product over dy and its weight gradient read the same values, however far apart.
void expect_same_operand(const OperatorGraph& graph) {
  int pairs = 0;
  for (std::size_t d = 0; d < graph.backward.size(); ++d) {
    const Operator& wgrad = graph.backward[d];
    if (!wgrad.deferrable) continue;
    const std::string dgrad = wgrad.name.substr(0, wgrad.name.size() - 5) + "dgrad";
    for (std::size_t i = d; i-- > 0;) {
      const Operator& op = graph.backward[i];
      EXPECT_EQ(std::ranges::count(op.writes, wgrad.reads[0]), 0)
          << op.name << " changes what " << wgrad.name << " reads";
      if (op.name == dgrad && op.layer == wgrad.layer) {
        EXPECT_EQ(op.reads[0], wgrad.reads[0]) << wgrad.name;
        ++pairs;
        break;
      }
    }
  }
  EXPECT_GT(pairs, 8);
}

TEST(WeightGradients, ReadWhatTheyWouldHaveReadInPlace) {
  expect_same_operand(build_operator_graph(combined_job(true, false), 1));
  expect_same_operand(split_weight_gradients(build_operator_graph(qwen3_32b(), 1)));
  expect_same_operand(split_weight_gradients(build_operator_graph(qwen3_30b_a3b(), 0)));
}

TEST(WeightGradients, KeepTheirOperandsUntilTheyRun) {
  const OperatorGraph whole = build_operator_graph(qwen3_32b(), 1);
  const OperatorGraph split = split_weight_gradients(whole);
  const Chunk& chunk = split.chunks[0];
  EXPECT_EQ(chunk.backward.end, chunk.weight.begin);
  EXPECT_EQ(chunk.weight.end, static_cast<std::int32_t>(split.backward.size()));
  const std::vector<Lifetime> lives = lifetimes(split);
  const auto weights = static_cast<std::int32_t>(split.forward.size()) + chunk.weight.begin;
  for (std::int32_t i = chunk.weight.begin; i < chunk.weight.end; ++i) {
    const Operator& op = split.backward[static_cast<std::size_t>(i)];
    EXPECT_TRUE(op.deferrable);
    for (const StorageId s : op.reads) EXPECT_GE(lives[s.index()].last, weights) << op.name;
  }
  // Four linears a layer, 16 layers.
  EXPECT_EQ(chunk.weight.size(), 4 * 16);
}

}  // namespace
}  // namespace tidemark::combined_order_test
