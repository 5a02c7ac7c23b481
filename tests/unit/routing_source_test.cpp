#include "traces/routing_source.h"

#include <numeric>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "models/input_error.h"
#include "models/job_reader.h"
#include "tests/support/jobs.h"

namespace tidemark::routing_source_test {
namespace {

using testing::AllOf;
using testing::Each;
using testing::HasSubstr;
using testing::Le;

RoutingInput read(const std::string& text) {
  Job job;
  job.source = "folder/job.json";
  job.routing = text;
  return routing_input(job);
}

std::string refusal(const std::string& text) {
  try {
    read(text);
  } catch (const InputError& error) {
    return error.what();
  }
  return "";
}

TEST(RoutingInput, IsBalancedWithoutAnObject) {
  EXPECT_EQ(read("").workload.kind, WorkloadKind::kBalanced);
}

TEST(RoutingInput, ReadsAWorkloadAndItsParameters) {
  const Workload w =
      read(R"({"workload": "burst", "alpha": 40, "burst_layers": 2, "ratio_of": "card"})").workload;
  EXPECT_EQ(w.kind, WorkloadKind::kBurst);
  EXPECT_EQ(w.alpha, 40);
  EXPECT_EQ(w.burst_layers, 2);
  EXPECT_EQ(w.ratio_of, RatioOf::kCard);
}

TEST(RoutingInput, TakesAFileFromTheJobsFolder) {
  EXPECT_EQ(read(R"({"file": "run.trace"})").file, "folder/run.trace");
}

TEST(RoutingInput, RefusesWhatAWorkloadDoesNotHave) {
  EXPECT_THAT(refusal(R"({"workload": "multinomial", "alpha": 40})"),
              HasSubstr("folder/job.json: /routing/alpha: unknown key"));
  EXPECT_THAT(refusal(R"({"workload": "normal"})"), HasSubstr("/routing/workload: \"normal\""));
  EXPECT_THAT(refusal(R"({"workload": "dirichlet", "alpha": 0.5, "layer_correlation": 2})"),
              AllOf(HasSubstr("/routing/alpha: 0.5, expected a number from 1"),
                    HasSubstr("/routing/layer_correlation: 2")));
  EXPECT_THAT(refusal(R"({"workload": "burst", "burst_low": 3, "burst_high": 2})"),
              HasSubstr("/routing/burst_low"));
  EXPECT_THAT(refusal(R"({"file": "a", "workload": "dirichlet"})"),
              HasSubstr("/routing/workload: unknown key"));
  EXPECT_THAT(refusal(R"({})"), HasSubstr("/routing/workload: missing"));
}

TEST(RoutingInput, EveryWorkloadIsWrittenAndReadBack) {
  for (const std::string& name : workload_names()) {
    const Workload w = read("{\"workload\": \"" + name + "\"}").workload;
    EXPECT_EQ(name_of(w.kind), name);
    EXPECT_EQ(read(to_json(w).dump()).workload, w);
  }
}

TEST(Job, KeepsItsRoutingObject) {
  Job job = qwen3_30b_a3b();
  job.routing = R"({"workload":"dirichlet","alpha":40})";
  EXPECT_EQ(job_from_json(nlohmann::json::parse(to_json(job).dump()), "job.json").routing,
            nlohmann::json::parse(job.routing).dump());
}

TEST(MakeRouting, OfAJobHasItsShape) {
  // EP8 on 8 cards, 48 layers of 128 experts, top-8, 4,096 tokens a card.
  const Job job = qwen3_30b_a3b();
  Workload w;
  w.kind = WorkloadKind::kMultinomial;
  RoutingCounts counts;
  make_routing(job, w, 1)->counts(0, 0, counts);
  EXPECT_EQ(counts.moe_layers, 48);
  EXPECT_EQ(counts.experts, 128);
  EXPECT_EQ(counts.microbatches, job.batch.num_microbatches(job.layout));
  const auto row = counts.row(0, 47);
  EXPECT_EQ(std::accumulate(row.begin(), row.end(), std::int64_t{0}), 8 * 4096 * 8);
}

TEST(MakeRouting, BalancedIsWhatBalancedRoutingGives) {
  const Job job = qwen3_30b_a3b();
  RoutingCounts counts;
  make_routing(job, Workload{}, 1)->counts(3, 0, counts);
  EXPECT_EQ(counts.counts, balanced_routing(job).counts);
}

TEST(MakeRouting, PaddedExpertsComputeOnTheirCapacityWhateverIsRouted) {
  const Job job = deepseek_v3_1024();
  Workload w;
  w.kind = WorkloadKind::kBagualu2;
  RoutingCounts counts;
  make_routing(job, w, 1)->counts(0, 0, counts);
  EXPECT_EQ(counts.counts, balanced_routing(job).counts);
}

TEST(MakeRouting, WithoutPaddingACapacityCutsCounts) {
  Job job = deepseek_v3_1024();
  job.options.moe_pad_expert_input_to_capacity = false;
  Workload w;
  w.kind = WorkloadKind::kMultinomial;
  RoutingCounts counts;
  make_routing(job, w, 1)->counts(0, 0, counts);
  // 64 lanes send 1,024 tokens to 8 of 256 experts: a capacity of 32 each.
  EXPECT_THAT(counts.counts, Each(Le(64 * 32)));
  const auto row = counts.row(0, 0);
  EXPECT_LT(std::accumulate(row.begin(), row.end(), std::int64_t{0}), 64 * 1024 * 8);
}

TEST(MakeRouting, OfAModelWithoutExpertsIsEmpty) {
  RoutingCounts counts;
  make_routing(two_stage_job(), Workload{}, 1)->counts(0, 0, counts);
  EXPECT_TRUE(counts.counts.empty());
}

}  // namespace
}  // namespace tidemark::routing_source_test
