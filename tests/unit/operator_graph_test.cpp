#include "models/operator_graph.h"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "models/data_flow.h"
#include "tests/support/graphs.h"
#include "tests/support/jobs.h"

namespace tidemark::operator_graph_test {
namespace {

using testing::ElementsAre;

Operator op(const char* name, std::vector<StorageId> reads, std::vector<StorageId> writes) {
  Operator out;
  out.name = name;
  out.work = StreamingWork{};
  out.reads = std::move(reads);
  out.writes = std::move(writes);
  return out;
}

// norm: x -> ln; gemm: ln -> y; backward of gemm reads dy and ln, that of norm dln and x.
struct Example {
  StorageId x{0}, ln{1}, y{2}, dy{3}, dln{4}, dx{5};
  OperatorGraph graph;

  Example() {
    for (const char* name : {"x", "ln", "y", "dy", "dln", "dx"}) {
      graph.storages.push_back({name, {1, 0}, 0, StorageRole::kActivation});
    }
    graph.forward = {op("norm", {x}, {ln}), op("gemm", {ln}, {y})};
    graph.backward = {op("dgrad", {dy}, {dln}), op("wgrad", {dy, ln}, {}),
                      op("norm.backward", {dln, x}, {dx})};
    Chunk& chunk = close_chunk(graph);
    chunk.input = x;
    chunk.output = y;
    chunk.output_gradient = dy;
    chunk.input_gradient = dx;
  }
};

TEST(Lifetimes, RunFromTheFirstWriterToTheLastReference) {
  const Example e;
  const std::vector<Lifetime> lives = lifetimes(e.graph);
  EXPECT_EQ(lives[e.ln.index()].first, 0);
  EXPECT_EQ(lives[e.ln.index()].last, 3);  // wgrad
  EXPECT_EQ(lives[e.dln.index()].first, 2);
  EXPECT_EQ(lives[e.dln.index()].last, 4);
  EXPECT_EQ(lives[e.x.index()].first, -1);  // received
  EXPECT_EQ(lives[e.dy.index()].first, -1);
  EXPECT_EQ(lives[e.dy.index()].last, 3);
}

TEST(Lifetimes, AHoldExtendsThemAndAWriteDoesToo) {
  Example e;
  e.graph.backward[2].holds = {e.ln};
  e.graph.backward[2].writes.push_back(e.dy);  // in place
  const std::vector<Lifetime> lives = lifetimes(e.graph);
  EXPECT_EQ(lives[e.ln.index()].last, 4);
  EXPECT_EQ(lives[e.dy.index()].last, 4);
  EXPECT_EQ(lives[e.dy.index()].first, -1);
}

TEST(KeptStorages, AreWhatBackwardReadsOfForward) {
  const Example e;
  EXPECT_THAT(kept_storages(e.graph), ElementsAre(e.ln));  // the input is the schedule's
}

TEST(DataFlow, LeadsFromTheLastWriterToEachReader) {
  const Example e;
  const DataFlow flow = data_flow(e.graph);
  EXPECT_EQ(boost::num_vertices(flow), 5u);
  EXPECT_EQ(boost::num_edges(flow), 3u);
  EXPECT_TRUE(boost::edge(0, 1, flow).second);  // ln
  EXPECT_TRUE(boost::edge(0, 3, flow).second);  // ln, in backward
  EXPECT_TRUE(boost::edge(2, 4, flow).second);  // dln
}

TEST(CheckOperatorGraph, NamesAnOperatorThatReadsTooEarly) {
  Example e;
  std::swap(e.graph.forward[0], e.graph.forward[1]);
  try {
    check_operator_graph(e.graph);
    FAIL();
  } catch (const std::logic_error& error) {
    EXPECT_STREQ(error.what(), "operator gemm refers to ln before it is written");
  }
}

TEST(CheckOperatorGraph, RefusesAHoldOfWhatIsNotYetThere) {
  Example e;
  e.graph.forward[0].holds = {e.y};
  EXPECT_THROW(check_operator_graph(e.graph), std::logic_error);
}

TEST(OperatorFlops, CountTwoForEveryMultiply) {
  Operator product;
  product.work = GemmWork{{3, 5, 7}, Pass::kForward, false, false};
  EXPECT_EQ(flops(product, 0), 2 * 3 * 5 * 7);
  product.work = GroupedGemmWork{3, 7, 4, Pass::kForward, false};
  EXPECT_EQ(flops(product, 5), 2 * 3 * 5 * 7);
  // Half of 8 x 8 pairs, 2 heads: scores over 6 and values over 4 dimensions; backward computes the
  // scores again and four gradients.
  AttentionWork attention{{1, 8, 8, 2, 6, 4, true}, 1, Direction::kForward};
  product.work = attention;
  EXPECT_EQ(flops(product, 0), 2 * 2 * 32 * (6 + 4));
  attention.direction = Direction::kBackward;
  attention.context_ranks = 2;
  product.work = attention;
  EXPECT_EQ(flops(product, 0), 2 * 2 * 32 * (3 * 6 + 2 * 4) / 2);
}

// --- Real layers: what one of them keeps
// ----------------------------------------------------------

std::int64_t kept_bytes(const Job& job, std::int64_t stage, std::int64_t layer, std::int64_t rows) {
  const OperatorGraph graph = build_operator_graph(job, stage);
  std::int64_t sum = 0;
  for (StorageId s : kept_storages(graph)) {
    const Storage& storage = graph.storages[s.index()];
    if (storage.layer == layer) sum += storage.bytes.at(rows);
  }
  return sum;
}

TEST(StageOperators, Qwen3With32BKeeps489MiBALayer) {
  // Measured: 489.079 MiB a layer and microbatch. TP4, s = 8192, 2048 sharded tokens.
  const std::int64_t s = 8192;
  const std::int64_t x = 2 * s / 4 * 5120;
  const std::int64_t q = 64 * 128 / 4;
  const std::int64_t k = 8 * 128 / 4;
  const std::int64_t norms = 4 * x + 2 * 4 * s / 4;                         // inputs, outputs, rstd
  const std::int64_t attention = 2 * s * (2 * q + 2 * k) + 4 * s * 64 / 4;  // q, k, v, out; lse
  const std::int64_t head_norms = 2 * s * (q + k) + 4 * s * (64 + 8) / 4;
  const std::int64_t mlp = 2 * s * 3 * 25600 / 4;  // fc1 output and activation
  const std::int64_t kept = norms + attention + head_norms + mlp;
  EXPECT_NEAR(static_cast<double>(kept) / (1 << 20), 489.078, 0.001);
  EXPECT_EQ(kept_bytes(qwen3_32b(), 1, 20, 0), kept);
}

TEST(StageOperators, Llama2WithFluxKeeps364MiBALayer) {
  // Measured: 364.258 MiB. The gathered norm outputs are kept instead of the sharded ones.
  const std::int64_t s = 4096;
  const std::int64_t X = 2 * s * 8192;
  const std::int64_t q = 64 * 128 / 4;
  const std::int64_t k = 8 * 128 / 4;
  const std::int64_t kept = 2 * X / 4 + 2 * X + 2 * 4 * s / 4 +         //
                            2 * s * (2 * q + 2 * k) + 4 * s * 64 / 4 +  //
                            2 * s * 3 * 28672 / 4;
  EXPECT_NEAR(static_cast<double>(kept) / (1 << 20), 364.258, 0.001);
  EXPECT_EQ(kept_bytes(llama2_70b(), 1, 15, 0), kept);
}

TEST(StageOperators, RecomputingTheActivationFunctionKeepsOneTensorLessALayer) {
  Job job = qwen3_32b();
  const auto kept_bytes = [](const OperatorGraph& graph) {
    std::int64_t bytes = 0;
    for (StorageId s : kept_storages(graph)) bytes += graph.storages[s.index()].bytes.fixed;
    return bytes;
  };
  const std::int64_t before = kept_bytes(build_operator_graph(job, 1));
  job.options.recompute.activation_function = true;
  const OperatorGraph graph = build_operator_graph(job, 1);
  // [8192, 25600 / TP 4] in bf16, in 16 layers.
  EXPECT_EQ(before - kept_bytes(graph), std::int64_t{16} * 2 * 8192 * (25600 / 4));
  // It runs again before the gradient of the linear that reads it.
  const auto position = [&](const std::string& name) {
    return std::find_if(graph.backward.begin(), graph.backward.end(),
                        [&](const Operator& op) { return op.name == name; }) -
           graph.backward.begin();
  };
  EXPECT_LT(position("activation"), position("linear_fc2.dgrad"));
}

TEST(StageOperators, DeepSeekV3KeepsTheTableOfOneMoeLayer) {
  // The table of kept_tensors.md, row by row; 4096 tokens, 1024 sharded, 8192 rows.
  const std::int64_t t = 1024;
  const std::int64_t s = 4096;
  const std::int64_t rows = 8192;
  std::int64_t kept = 2 * (2 * t * 7168) + 2 * (2 * t * 7168);  // inputs of both norms, outputs
  kept += 2 * s * 1536 + 2 * t * 1536;                          // q_compressed, whole; its norm
  kept += 2 * (2 * t * 512);                                    // kv_compressed, its norm
  kept += 2 * (2 * s * 32 * 192) + 2 * s * 32 * 128;            // Q, K; V
  kept += 4 * (2 * s * 64);                                     // cos, sin
  kept += 2 * s * 4096 + 4 * 32 * s;                            // attention output, log-sum-exp
  kept += t * 256 * (4 + 2 + 1) + t * 8 * (8 + 2);              // router
  kept += 4 * t * 513;                                          // row_id_map
  kept += 2 * rows;                                             // permuted probabilities
  kept += 2 * rows * (7168 + 4096 + 2048);                      // fc1 in and out, activation
  kept += 2 * s * (7168 + 1024 + 512);                          // shared expert, gathered
  kept += 4 * 4 * t;                                            // rstd
  EXPECT_EQ(kept, 540'397'568);
  // memory_rules.md (K6) counts scores and probabilities in fp32, and two int32 maps that sort the
  // rows of four local experts.
  kept += t * 8 * 2 + 2 * rows + 2 * 4 * rows;
  EXPECT_EQ(kept_bytes(deepseek_v3_1024(), 1, 8, rows), kept);
  // Measured slope: 541,817,644.
  EXPECT_NEAR(static_cast<double>(kept), 541'817'644.0, 0.003 * 541'817'644.0);
}

TEST(StageOperators, DeepSeekV3KeepsAbout344MiBOfADenseLayer) {
  const std::int64_t t = 1024;
  const std::int64_t s = 4096;
  const std::int64_t attention = 2 * (2 * t * 7168) + 2 * s * 1536 + 2 * t * 1536 +
                                 2 * (2 * t * 512) + 2 * (2 * s * 32 * 192) + 2 * s * 32 * 128 +
                                 4 * (2 * s * 64) + 2 * s * 4096 + 4 * 32 * s + 3 * 4 * t;
  const std::int64_t mlp = 2 * (2 * t * 7168) + 4 * t + 2 * s * 3 * 18432 / 4;
  EXPECT_NEAR(static_cast<double>(attention + mlp) / (1 << 20), 343.5, 0.05);
  EXPECT_EQ(kept_bytes(deepseek_v3_1024(), 0, 1, 0), attention + mlp);
}

TEST(StageOperators, Core012KeepsTheExpertsOutputs) {
  Job job = deepseek_v3_1024();
  const std::int64_t before = kept_bytes(job, 1, 8, 8192);
  job.versions.megatron_core = {0, 12};
  EXPECT_EQ(kept_bytes(job, 1, 8, 8192) - before, 2 * 8192 * 7168);  // +117 MB
}

TEST(StageOperators, KeepNoLogitsButWhatTheLossSaves) {
  Job job = qwen3_8b();  // TP2: [4096, 75,840 + padding] logits on a card
  const std::int64_t logits = 4096 * job.model.padded_vocab_size(2) / 2;
  const std::int64_t rest =
      2 * 2048 * 4096 * 2 + 4 * 2048 + 4 * 4096;            // embedding, final norm; loss
  EXPECT_EQ(kept_bytes(job, 0, -1, 0), rest + 4 * logits);  // fp32 softmax
  job.options.cross_entropy = CrossEntropy::kNativeFused;
  EXPECT_EQ(kept_bytes(job, 0, -1, 0), rest + 4 * logits);
  job.options.cross_entropy = CrossEntropy::kTransformerEngine;
  EXPECT_EQ(kept_bytes(job, 0, -1, 0), rest + 2 * logits);  // gradient over the bf16 logits
}

const Operator& find(const std::vector<Operator>& list, const std::string& name) {
  return *std::find_if(list.begin(), list.end(), [&](const Operator& o) { return o.name == name; });
}

bool has(const std::vector<Operator>& list, const std::string& name) {
  return std::any_of(list.begin(), list.end(), [&](const Operator& o) { return o.name == name; });
}

TEST(StageOperators, OnlyDroplessDispatchWaitsForItsCounts) {
  EXPECT_TRUE(has(build_operator_graph(qwen3_30b_a3b(), 0).forward, "gate"));
  EXPECT_FALSE(has(build_operator_graph(deepseek_v3_1024(), 1).forward, "gate"));
}

// T4: permuted rows, dispatched rows before the sort (both only Python locals), un-sorted expert
// output, and what comes back.
TEST(StageOperators, FourCopiesOfTheRowsAreLiveAtTheCombine) {
  const std::int64_t rows = 8 * 4096;
  const OperatorGraph graph = build_operator_graph(qwen3_30b_a3b(), 0);
  const std::vector<Lifetime> lives = lifetimes(graph);
  std::int32_t combine = 0;
  while (graph.at(static_cast<std::size_t>(combine)).name != "combine.all_to_all") ++combine;
  std::int64_t copies = 0;
  for (std::size_t s = 0; s < lives.size(); ++s) {
    const Storage& storage = graph.storages[s];
    const bool temporary = lives[s].last < std::ssize(graph.forward);
    const bool live = lives[s].first <= combine && combine <= lives[s].last;
    if (live && temporary && storage.bytes.at(rows) == 2 * rows * 2048) ++copies;
  }
  EXPECT_EQ(copies, 4);
}

TEST(StageOperators, TheAttentionMaskLivesOnTheFirstAndLastStage) {
  const Job job = qwen3_32b();
  EXPECT_TRUE(has(build_operator_graph(job, 0).forward, "attention_mask"));
  EXPECT_FALSE(has(build_operator_graph(job, 1).forward, "attention_mask"));
  const OperatorGraph last = build_operator_graph(job, 3);
  const StorageId mask = find(last.forward, "attention_mask").writes[0];
  EXPECT_EQ(last.storages[mask.index()].bytes.fixed, 8192 * 8192);  // bool
  // Named by forward_step until the model's forward returns.
  EXPECT_EQ(lifetimes(last)[mask.index()].last, std::ssize(last.forward) - 1);
}

TEST(StageOperators, RoutedRowsOfTheExpertsTakeOneHiddenVectorEach) {
  const OperatorGraph graph = build_operator_graph(deepseek_v3_1024(), 1);
  const Operator& dispatch = find(graph.forward, "dispatch.all_to_all");
  const auto& work = std::get<CollectiveWork>(dispatch.work);
  // 8-bit values and a scale of 4 bytes for 128 of them; 8192 rows sent, those received routed.
  EXPECT_EQ(work.send, (Size{8192 * (7168 + 4 * 7168 / 128), 0}));
  EXPECT_EQ(work.receive, (Size{0, 7168 + 4 * 7168 / 128}));
}

}  // namespace
}  // namespace tidemark::operator_graph_test
