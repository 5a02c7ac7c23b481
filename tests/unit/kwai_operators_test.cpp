// Llama-65B of Kwai's sweep: TP2, CP2, sequences of 8,192. x = [2048, 8192] in bf16.
#include "models/kwai_operators.h"

#include <gtest/gtest.h>

#include "models/job_reader.h"

namespace tidemark::kwai_operators_test {
namespace {

constexpr std::int64_t kRankTokens = 8192 / 2;
constexpr std::int64_t kX = 2 * kRankTokens / 2 * 8192;
constexpr std::int64_t kHeads = 2 * kRankTokens * 64 * 128 / 2;
constexpr std::int64_t kFfn = 2 * kRankTokens * 22016 / 2;
constexpr std::int64_t kLogSumExp = 4 * kRankTokens * 64 / 2;
constexpr std::int64_t kRstd = 4 * kRankTokens / 2;

Job llama_65b() {
  return read_job(std::string(TIDEMARK_SOURCE_DIR) + "/validation/kwai_atc24/job.json");
}

// Of the first layer of chunk 1 of stage 3; a layer's output counts as its own.
std::int64_t kept_bytes(const Job& job) {
  const OperatorGraph graph = build_operator_graph(job, 3);
  const std::int64_t layer = job.layout.chunk_layers(job.layout.virtual_stage(3, 1), 80).begin;
  std::int64_t sum = 0;
  for (StorageId s : kept_storages(graph)) {
    if (graph.storages[s.index()].layer == layer) sum += graph.storages[s.index()].bytes.fixed;
  }
  return sum;
}

TEST(KwaiLayer, KeepsNormsInputsAndOutputsHeadsAndSwiglu) {
  // Norms' inputs and outputs; q and the attention's output; the rank's shard of K and V; fc1's
  // output, silu, and their product.
  EXPECT_EQ(kept_bytes(llama_65b()),
            4 * kX + 2 * kRstd + 2 * kHeads + kLogSumExp + 2 * kHeads + (2 + 1 + 1) * kFfn);
}

TEST(KwaiLayer, KeepsNeitherNormsNorSwigluThatItRepeats) {
  Job job = llama_65b();
  job.options.recompute.layernorm = true;
  job.options.recompute.mlp_act = true;
  EXPECT_EQ(kept_bytes(job), 2 * kX + 2 * kHeads + kLogSumExp + 2 * kHeads + 2 * kFfn);
}

// Without context parallelism, of half the sequence: what a card has is as much.
Job without_context_parallelism() {
  Job job = llama_65b();
  job.layout.context = 1;
  job.batch.seq_length /= 2;
  return job;
}

TEST(KwaiLayer, KeepsQueriesKeysAndACopyOfValuesWithoutContextParallelism) {
  EXPECT_EQ(kept_bytes(without_context_parallelism()),
            4 * kX + 2 * kRstd + 4 * kHeads + kLogSumExp + (2 + 1 + 1) * kFfn);
}

TEST(KwaiLayer, KeepsKeysAndValuesOfGroupsOnly) {
  Job job = without_context_parallelism();
  job.model.attention.num_query_groups = 8;  // of 64 heads
  EXPECT_EQ(kept_bytes(job),
            4 * kX + 2 * kRstd + 2 * kHeads + 2 * kHeads / 8 + kLogSumExp + (2 + 1 + 1) * kFfn);
}

// Nothing is gathered or scattered: x and what a norm keeps are of all tokens.
TEST(KwaiLayer, KeepsWholeInputsWithoutTensorParallelism) {
  Job job = without_context_parallelism();
  job.layout.tensor = 1;
  job.layout.sequence_parallel = false;
  EXPECT_EQ(kept_bytes(job), 8 * kX + 4 * kRstd + 8 * kHeads + 2 * kLogSumExp + 8 * kFfn);
  for (const Operator& op : build_operator_graph(job, 3).forward) {
    EXPECT_NE(op.stream, Stream::kTensorComm) << op.name;
  }
}

// The product's output goes when the attention module returns, after the projection.
TEST(KwaiLayer, HoldsTheProductOfQKVUntilTheAttentionReturns) {
  const OperatorGraph graph = build_operator_graph(without_context_parallelism(), 3);
  const std::vector<Lifetime> lives = lifetimes(graph);
  int products = 0;
  for (std::size_t s = 0; s < lives.size(); ++s) {
    if (graph.storages[s].name != "linear_qkv.output") continue;
    EXPECT_EQ(graph.at(static_cast<std::size_t>(lives[s].last)).name, "linear_proj.reduce_scatter");
    ++products;
  }
  EXPECT_GT(products, 0);
}

// Everything of fc2's backward lives until it returns: fc1's output, what is repeated of SwiGLU,
// and the gradients of the product, silu's output and both halves.
TEST(KwaiLayer, HoldsTheLocalsOfTheRepeatedSwiglu) {
  Job job = llama_65b();
  job.options.recompute.mlp_act = true;
  const OperatorGraph graph = build_operator_graph(job, 3);
  const std::vector<Lifetime> lives = lifetimes(graph);
  std::int32_t at = static_cast<std::int32_t>(graph.forward.size());
  while (graph.at(static_cast<std::size_t>(at)).name != "concatenate_gate_up") ++at;
  const std::int32_t layer = graph.at(static_cast<std::size_t>(at)).layer;
  std::int64_t ffn_bytes = 0;
  for (std::size_t s = 0; s < lives.size(); ++s) {
    const Storage& storage = graph.storages[s];
    const bool of_ffn = storage.bytes.fixed == kFfn || storage.bytes.fixed == 2 * kFfn;
    if (of_ffn && storage.layer == layer && lives[s].first <= at && lives[s].last >= at) {
      ffn_bytes += storage.bytes.fixed;
    }
  }
  // fc1 output 2, product 1, its gradient 1, both halves' gradients 2, concatenated 2.
  EXPECT_EQ(ffn_bytes, 8 * kFfn);
}

TEST(KwaiLayer, IsOnlyForWhatTheForkIsModelledWith) {
  Job job = llama_65b();
  job.layout.virtual_pipeline = 1;
  EXPECT_THROW(validate(job, ""), InputError);
  job = llama_65b();
  job.model.attention.num_query_groups = 8;
  EXPECT_THROW(validate(job, ""), InputError) << "grouped queries with context parallelism";
  job = llama_65b();
  job.versions.fork = Fork::kNone;
  job.options.offload_ratio = 0.5;
  EXPECT_THROW(validate(job, ""), InputError);
}

}  // namespace
}  // namespace tidemark::kwai_operators_test
