// Qwen3-32B of the logs: TP 4, PP 4, 16 layers a stage, sequences of 8,192 tokens.
#include "models/activation_offload.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "sim/simulation.h"
#include "tests/support/jobs.h"
#include "traces/routing.h"

namespace tidemark::activation_offload_test {
namespace {

constexpr std::int64_t kTokens = 8192;
constexpr std::int64_t kHeads = 64 / 4;  // of a card, 128 wide; 8 / 4 key-value heads
constexpr std::int64_t kQuery = 2 * kTokens * kHeads * 128;
constexpr std::int64_t kKey = 2 * kTokens * 2 * 128;
constexpr std::int64_t kLayers = 16;

Job offloading(std::vector<OffloadModule> modules) {
  Job job = qwen3_32b();
  job.options.offload.modules = std::move(modules);
  validate(job, "");
  return job;
}

std::int64_t sent(const OperatorGraph& graph) {
  std::int64_t bytes = 0;
  for (const Operator& op : graph.forward) {
    const auto* copy = std::get_if<CopyWork>(&op.work);
    if (copy != nullptr) bytes += copy->bytes.fixed;
  }
  return bytes;
}

std::int64_t kept(const OperatorGraph& graph) {
  std::int64_t bytes = 0;
  for (StorageId s : kept_storages(graph)) bytes += graph.storages[s.index()].bytes.fixed;
  return bytes;
}

TEST(OffloadActivations, OfCoreAttentionSendsQueriesKeysValuesAndOutput) {
  const OperatorGraph before = build_operator_graph(qwen3_32b(), 1);
  const OperatorGraph after = build_operator_graph(offloading({OffloadModule::kCoreAttn}), 1);
  // The log-sum-exp is below a mebi-element.
  EXPECT_EQ(sent(after), kLayers * (2 * kQuery + 2 * kKey));
  // The output stays for the projection's weight gradient.
  EXPECT_EQ(kept(before) - kept(after), kLayers * (kQuery + 2 * kKey));
}

TEST(OffloadActivations, OfTheProjectionTooSendsTheOutputTwiceAndKeepsItNoMore) {
  const OperatorGraph before = build_operator_graph(qwen3_32b(), 1);
  const OperatorGraph after =
      build_operator_graph(offloading({OffloadModule::kCoreAttn, OffloadModule::kAttnProj}), 1);
  EXPECT_EQ(sent(after), kLayers * (3 * kQuery + 2 * kKey));
  EXPECT_EQ(kept(before) - kept(after), kLayers * (2 * kQuery + 2 * kKey));
}

TEST(OffloadActivations, OfTheLastStageLeavesTheLastLayer) {
  const OperatorGraph after = build_operator_graph(offloading({OffloadModule::kCoreAttn}), 3);
  EXPECT_EQ(sent(after), (kLayers - 1) * (2 * kQuery + 2 * kKey));
}

TEST(OffloadActivations, OfAFractionTakesTheEarlierGroups) {
  Job job = offloading({OffloadModule::kCoreAttn});
  job.options.offload.fraction = 0.7;  // int(16 * 0.3) = 4 groups stay
  const OperatorGraph graph = build_operator_graph(job, 1);
  std::vector<std::int32_t> layers;
  for (const Operator& op : graph.forward) {
    if (op.name == "offload.core_attn") layers.push_back(op.layer);
  }
  EXPECT_EQ(layers, (std::vector<std::int32_t>{16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27}));
}

TEST(OffloadActivations, BringsEachGroupBackOneGroupEarly) {
  const OperatorGraph graph = build_operator_graph(offloading({OffloadModule::kCoreAttn}), 1);
  std::vector<std::string> order;
  for (const Operator& op : graph.backward) {
    if (op.name == "reload.core_attn" || op.name == "core_attention.backward") {
      order.push_back((op.name[0] == 'r' ? "R" : "B") + std::to_string(op.layer));
    }
  }
  ASSERT_EQ(std::ssize(order), 2 * kLayers);
  EXPECT_EQ(order[0], "R31");
  EXPECT_EQ(order[1], "B31");
  EXPECT_EQ(order[2], "R30");
  EXPECT_EQ(order.back(), "B16");
}

// Layers whose copies compute waits for, by the layer after whose copy it does.
std::vector<std::pair<std::int32_t, std::int32_t>> waits(std::int64_t max_inflight) {
  Job job = offloading({OffloadModule::kCoreAttn});
  job.options.offload.max_inflight = max_inflight;
  const OperatorGraph graph = build_operator_graph(job, 1);
  std::vector<std::pair<std::int32_t, std::int32_t>> found;
  for (std::size_t i = 0; i < graph.forward.size(); ++i) {
    const Operator& op = graph.forward[i];
    if (op.name != "offload_wait.core_attn") continue;
    EXPECT_EQ(graph.forward[i - 1].name, "offload.core_attn");
    found.emplace_back(graph.forward[i - 1].layer, graph.storages[op.reads.at(0).index()].layer);
  }
  return found;
}

TEST(OffloadActivations, ComputeIsAheadOfAtMostSoManyCopies) {
  const auto at_once = waits(0);
  ASSERT_EQ(std::ssize(at_once), kLayers);
  for (const auto& [after, copy] : at_once) EXPECT_EQ(copy, after);
  const auto two_later = waits(2);
  ASSERT_EQ(std::ssize(two_later), kLayers - 2);
  for (const auto& [after, copy] : two_later) EXPECT_EQ(copy, after - 2);
  EXPECT_TRUE(waits(kLayers).empty());
}

TEST(OffloadActivations, WaitingForEachCopyTakesAsLongAsTheCopiesAndFreesNothing) {
  const HardwareProfile profile = load_hardware_profile("bw1000");
  const auto run = [&](std::optional<std::int64_t> max_inflight) {
    Job job = offloading({OffloadModule::kCoreAttn});
    job.options.offload.max_inflight = max_inflight;
    return simulate(job, profile, balanced_routing(job)).result;
  };
  const SimulationResult ahead = run(std::nullopt);
  const SimulationResult waiting = run(0);
  EXPECT_GT(waiting.iteration.time_ns, ahead.iteration.time_ns);
  EXPECT_EQ(waiting.stages[1].memory.lanes[0].bytes, ahead.stages[1].memory.lanes[0].bytes);
}

TEST(OffloadActivations, NeedsHostMemoryForAllMicrobatchesInFlight) {
  const Job job = offloading({OffloadModule::kCoreAttn});
  const HardwareProfile profile = load_hardware_profile("bw1000");
  const SimulationResult result = simulate(job, profile, balanced_routing(job)).result;
  EXPECT_EQ(result.stages[1].host_memory.value, 3 * kLayers * (2 * kQuery + 2 * kKey));  // p - r
}

TEST(ValidateJob, RefusesToOffloadWhatIsRecomputed) {
  Job job = qwen3_32b();
  job.options.recompute.core_attn = true;
  job.options.offload.modules = {OffloadModule::kCoreAttn, OffloadModule::kAttnProj};
  EXPECT_THROW(validate(job, ""), InputError);
  job.options.recompute.core_attn = false;
  job.options.offload.modules = {OffloadModule::kAttnProj};
  EXPECT_THROW(validate(job, ""), InputError);
}

}  // namespace
}  // namespace tidemark::activation_offload_test
