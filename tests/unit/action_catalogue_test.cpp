// DeepSeek-V3 of the log: TP 4, one sequence of 4,096 tokens, 8 of 256 experts, EP 64: 8,192 rows a
// lane under balanced routing. And a hand-made layer.
#include "planner/action_catalogue.h"

#include <algorithm>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "hw_profiles/hardware_profile.h"
#include "tests/support/apply_actions.h"
#include "tests/support/graphs.h"
#include "tests/support/jobs.h"

namespace tidemark::action_catalogue_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr std::int64_t kRows = 8192;
constexpr std::int32_t kLayer = 6;  // with experts, on stage 1

class CatalogueOfDeepSeek : public ::testing::Test {
 protected:
  const CatalogueEntry& entry(const std::string& name) const {
    return *std::find_if(
        catalogue_.entries.begin(), catalogue_.entries.end(),
        [&](const CatalogueEntry& e) { return e.name == name && e.layer == kLayer; });
  }
  const CataloguedAction& action(const std::string& name, ActionKind kind) const {
    const CatalogueEntry& e = entry(name);
    return *std::find_if(e.actions.begin(), e.actions.end(),
                         [&](const CataloguedAction& a) { return a.kind == kind; });
  }
  std::string refusal(const std::string& name, ActionKind kind) const {
    for (const Refusal& r : entry(name).refused) {
      if (r.kind == kind) return r.reason;
    }
    return "";
  }
  std::int64_t forward_ns(const std::string& name) const {
    for (const Operator& op : graph_.forward) {
      if (op.name == name && op.layer == kLayer) return costs_.balanced_ns(costs_.cost(op));
    }
    return -1;
  }
  std::vector<std::string> rerun(const std::string& name) const {
    std::vector<std::string> out;
    for (const Operator& op : action(name, ActionKind::kRecompute).realization.backward) {
      out.push_back(op.name);
    }
    return out;
  }

  Job job_ = deepseek_v3_1024();
  HardwareProfile profile_ = load_hardware_profile("bw1000");
  mutable OperatorCosts costs_{job_, profile_};  // tabulates as it is asked
  OperatorGraph graph_ = build_operator_graph(job_, 1);
  ActionCatalogue catalogue_ = build_action_catalogue(graph_, costs_, kRows);
};

TEST_F(CatalogueOfDeepSeek, ActivationsRunAgainFromTheirInput) {
  const CataloguedAction& a = action("experts.activation", ActionKind::kRecompute);
  EXPECT_THAT(rerun("experts.activation"), ElementsAre("recompute.experts.activation"));
  EXPECT_EQ(a.freed, (Size{0, 2 * 2048}));
  EXPECT_THAT(a.transient, ElementsAre(Size{}));
  EXPECT_THAT(a.collectives, IsEmpty());
  // As in the forward; prices per row are rounded up to a picosecond.
  EXPECT_NEAR(static_cast<double>(a.compute_ps.at(kRows)),
              1e3 * static_cast<double>(forward_ns("experts.activation")), kRows);
  EXPECT_EQ(a.host_bytes, Size{});
}

TEST_F(CatalogueOfDeepSeek, ExpertsInputCrossesTheAllToAll) {
  EXPECT_THAT(rerun("dispatch.sort"),
              ElementsAre("recompute.permute", "recompute.dispatch.all_to_all.quantize",
                          "recompute.dispatch.all_to_all",
                          "recompute.dispatch.all_to_all.dequantize", "recompute.dispatch.sort"));
  const CataloguedAction& a = action("dispatch.sort", ActionKind::kRecompute);
  EXPECT_THAT(a.collectives, ElementsAre(Group::kExpert));
  EXPECT_EQ(a.freed, (Size{0, 2 * 7168}));
  // To be prepared when the tokens are permuted, before the counts are known.
  const auto permute =
      std::find_if(graph_.forward.begin(), graph_.forward.end(),
                   [](const Operator& op) { return op.name == "permute" && op.layer == kLayer; });
  EXPECT_EQ(a.decide_before, permute - graph_.forward.begin());
  // At most: the rows sent, or received, in 16 and in 8 bits (one fp32 scale for 128).
  const std::int64_t row = 7168 * 2 + 7168 + 7168 / 128 * 4;
  EXPECT_THAT(a.transient, ::testing::Contains(Size{kRows * row, 0}));
  EXPECT_THAT(a.transient, ::testing::Contains(Size{0, row}));
}

TEST_F(CatalogueOfDeepSeek, CopiesTakeWhatTheLinkNeeds) {
  const CataloguedAction& a = action("experts.activation", ActionKind::kOffload);
  EXPECT_EQ(a.freed, (Size{0, 2 * 2048}));
  EXPECT_EQ(a.host_bytes, a.freed);
  const auto ps = [&](bool to_host) {
    Operator copy;
    copy.work = CopyWork{{0, 2 * 2048}, to_host};
    return 1e3 * static_cast<double>(costs_.balanced_ns(costs_.cost(copy)));
  };
  EXPECT_NEAR(static_cast<double>(a.out_ps.at(kRows)), ps(true), kRows);
  EXPECT_NEAR(static_cast<double>(a.in_ps.at(kRows)), ps(false), kRows);
  EXPECT_EQ(a.compute_ps, Size{});
}

TEST_F(CatalogueOfDeepSeek, EightBitsAndAScaleRemain) {
  // 4,096 values of a row, one fp32 scale for 128.
  const CataloguedAction& a = action("experts.linear_fc1", ActionKind::kQuantize);
  EXPECT_EQ(a.freed, (Size{0, 2 * 4096 - (4096 + 4096 / 128 * 4)}));
  EXPECT_THAT(refusal("core_attention", ActionKind::kQuantize), HasSubstr("full precision"));
  EXPECT_THAT(refusal("rotary_concat", ActionKind::kQuantize),
              HasSubstr("core_attention.backward needs full precision"));
}

TEST_F(CatalogueOfDeepSeek, ARerunRouterReplaysItsDecisions) {
  const CataloguedAction& a = action("router", ActionKind::kRecompute);
  for (StorageId s : a.realization.leaves) {
    const std::string& name = graph_.storages[s.index()].name;
    EXPECT_NE(name, "router.routing_map");
    EXPECT_NE(name, "router.topk_indices");
  }
  EXPECT_THAT(refusal("permute", ActionKind::kRecompute),
              HasSubstr("row_id_map is named by its module"));
}

TEST_F(CatalogueOfDeepSeek, MaximalMitigationLeavesWhatIsFixed) {
  // Everything is run again that may be: freed and remaining bytes add up to what is kept.
  std::vector<std::int32_t> choice;
  Size freed;
  for (const CatalogueEntry& e : catalogue_.entries) {
    const auto it = std::find_if(e.actions.begin(), e.actions.end(), [](const CataloguedAction& a) {
      return a.kind == ActionKind::kRecompute;
    });
    choice.push_back(it == e.actions.end() ? 0 : static_cast<std::int32_t>(it - e.actions.begin()));
    freed = freed + e.actions[static_cast<std::size_t>(choice.back())].freed;
  }
  const auto kept = [](const OperatorGraph& graph) {
    Size sum;
    for (StorageId s : kept_storages(graph)) sum = sum + graph.storages[s.index()].bytes;
    return sum;
  };
  EXPECT_EQ(kept(apply_actions(graph_, catalogue_, choice)) + freed, kept(graph_));
}

TEST_F(CatalogueOfDeepSeek, EqualLayersAreOneClass) {
  const CatalogueClasses classes = storage_classes(catalogue_, 3);
  // Eight layers with experts, three microbatches; the last layer's output is sent.
  const auto count = [&](const std::string& name) {
    std::int64_t sum = 0;
    for (const StorageClass& c : classes.classes) sum += c.name == name ? c.count : 0;
    return sum;
  };
  EXPECT_EQ(count("experts.activation"), 8 * 3);
  EXPECT_EQ(std::count_if(classes.classes.begin(), classes.classes.end(),
                          [](const StorageClass& c) { return c.name == "experts.activation"; }),
            1);
  EXPECT_EQ(classes.class_of.size(), catalogue_.entries.size());
}

TEST_F(CatalogueOfDeepSeek, TheFloorIsWhatExpertsNeedAtOnce) {
  // combine.unsort: sorted and unsorted outputs, 2 x 14,336 bytes a row, and their map; at 2.6
  // times the balanced load nothing is larger.
  const std::int64_t rows = kRows * 26 / 10;
  std::int64_t most = 0;
  for (Size need : running_needs(graph_)) most = std::max(most, need.at(rows));
  EXPECT_GE(most, 2 * 7168 * 2 * rows);
  EXPECT_LT(most, 2 * 7168 * 2 * rows + (64 << 20));
}

// norm -> a -> copy -> b -> product; the backward reads a and b.
OperatorGraph layer_with_a_copy(Size bytes) {
  OperatorGraph g;
  g.storages = {{"x", bytes, 0}, {"a", bytes, 0},  {"b", bytes, 0},
                {"y", bytes, 0}, {"dy", bytes, 0}, {"dx", bytes, 0}};
  const StorageId x(0), a(1), b(2), y(3), dy(4), dx(5);
  g.forward = {
      {"norm", NormWork{1024, 1024, Direction::kForward}, Stream::kCompute, 0, {x}, {a}, {}},
      {"copy", StreamingWork{2 * bytes}, Stream::kCompute, 0, {a}, {b}, {}},
      {"product", GemmWork{{1024, 1024, 1024}, Pass::kForward}, Stream::kCompute, 0, {b}, {y}, {}}};
  g.backward = {{"wgrad",
                 GemmWork{{1024, 1024, 1024}, Pass::kBackwardWeight},
                 Stream::kCompute,
                 0,
                 {dy, a, b},
                 {dx},
                 {}}};
  close_chunk(g);
  g.chunks[0].input = x;
  g.chunks[0].output = y;
  g.chunks[0].output_gradient = dy;
  g.chunks[0].input_gradient = dx;
  return g;
}

struct SmallCatalogue {
  Job job = qwen3_32b();
  HardwareProfile profile = load_hardware_profile("bw1000");
  OperatorCosts costs{job, profile};
  ActionCatalogue of(const OperatorGraph& graph,
                     const std::vector<ActionType>& types = action_types()) {
    return build_action_catalogue(graph, costs, 0, kLeastActionBytes, types);
  }
};

TEST(ActionCatalogue, OneOfTwoCopiesIsNotMoved) {
  SmallCatalogue small;
  const OperatorGraph graph = layer_with_a_copy({2 << 20, 0});
  const ActionCatalogue catalogue = small.of(graph);
  ASSERT_EQ(catalogue.entries.size(), 2U);
  EXPECT_EQ(catalogue.entries[0].name, "norm");
  EXPECT_EQ(catalogue.entries[0].actions.size(), 4U);
  ASSERT_EQ(catalogue.entries[1].name, "copy");
  EXPECT_EQ(catalogue.entries[1].actions.size(), 2U);  // save, recompute
  ASSERT_EQ(catalogue.entries[1].refused.size(), 2U);
  EXPECT_EQ(catalogue.entries[1].refused[0].reason, "a copy of a, which is kept");
}

TEST(ActionCatalogue, WhatHasLeftComesBackBeforeARerunNeedsIt) {
  SmallCatalogue small;
  const OperatorGraph graph = layer_with_a_copy({2 << 20, 0});
  const ActionCatalogue catalogue = small.of(graph);
  // Both run again: the norm first, once.
  const OperatorGraph after = apply_actions(graph, catalogue, std::vector<std::int32_t>{1, 1});
  std::vector<std::string> names;
  for (const Operator& op : after.backward) names.push_back(op.name);
  EXPECT_THAT(names, ElementsAre("recompute.norm", "recompute.copy", "wgrad"));
  EXPECT_THAT(kept_storages(after), IsEmpty());
}

TEST(ActionCatalogue, TooSmallIsSaved) {
  SmallCatalogue small;
  const ActionCatalogue catalogue = small.of(layer_with_a_copy({(1 << 20) - 1, 0}));
  for (const CatalogueEntry& entry : catalogue.entries) EXPECT_EQ(entry.actions.size(), 1U);
}

// A new operator in a graph and a new entry in the table are all that a new operator and a new
// action take.
TEST(ActionCatalogue, ExtendsByOneEntry) {
  SmallCatalogue small;
  const Size bytes{2 << 20, 0};
  OperatorGraph graph = layer_with_a_copy(bytes);
  // gate: between the norm and the copy, keeps its output.
  const StorageId gated(std::ssize(graph.storages));
  graph.storages.push_back({"gated", bytes, 0});
  graph.forward.insert(
      graph.forward.begin() + 1,
      {"gate", StreamingWork{3 * bytes}, Stream::kCompute, 0, {StorageId(1)}, {gated}, {}});
  graph.forward[2].reads = {gated};
  graph.backward[0].reads.push_back(gated);
  close_chunk(graph);

  // Keeps a quarter of the bytes.
  const auto sparsify = [](const StageView& stage, const KeptOutputs& kept) {
    Realization out;
    out.leaves = kept.storages;
    out.made.push_back({"packed", {kept.bytes.fixed / 4, 0}, 0});
    const StorageId packed(std::ssize(stage.graph.storages));
    Operator kernel{
        "sparsify", StreamingWork{kept.bytes}, Stream::kCompute, 0, out.leaves, {packed}, {}};
    out.forward.push_back(kernel);
    std::swap(kernel.reads, kernel.writes);
    kernel.name = "restore";
    out.backward.push_back(kernel);
    return out;
  };
  std::vector<ActionType> types = action_types();
  types.push_back({ActionKind::kQuantize, sparsify});

  const ActionCatalogue catalogue = small.of(graph, types);
  const auto gate = std::find_if(catalogue.entries.begin(), catalogue.entries.end(),
                                 [](const CatalogueEntry& e) { return e.name == "gate"; });
  ASSERT_NE(gate, catalogue.entries.end());
  const CataloguedAction& a = gate->actions.back();
  EXPECT_EQ(a.freed.fixed, (2 << 20) / 4 * 3);
  EXPECT_GT(a.compute_ps.fixed, 0);
  std::vector<std::int32_t> choice(catalogue.entries.size(), 0);
  choice[static_cast<std::size_t>(gate - catalogue.entries.begin())] =
      static_cast<std::int32_t>(gate->actions.size()) - 1;
  const OperatorGraph after = apply_actions(graph, catalogue, choice);
  EXPECT_EQ(after.forward[3].name, "sparsify");
  EXPECT_EQ(after.backward[0].name, "restore");
}

}  // namespace
}  // namespace tidemark::action_catalogue_test
