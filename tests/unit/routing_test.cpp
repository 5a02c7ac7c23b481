#include <numeric>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "models/layer_operators.h"
#include "tests/support/jobs.h"
#include "traces/lane_rows.h"

namespace tidemark::routing_test {
namespace {

using testing::Each;
using testing::ElementsAre;

// Two layers, the second with experts, on the lanes of one stage; one microbatch.
Job moe_job(std::int64_t tensor, std::int64_t context, std::int64_t expert,
            std::int64_t expert_tensor, std::int64_t experts) {
  Job job = two_stage_job();
  job.layout.pipeline = 1;
  job.layout.tensor = tensor;
  job.layout.sequence_parallel = tensor > 1;
  job.layout.context = context;
  job.layout.expert = expert;
  job.layout.expert_tensor = expert_tensor;
  job.layout.cards = job.layout.lanes_per_stage();
  job.batch.global_batch_size = job.layout.data();
  MoeSpec moe;
  moe.num_experts = experts;
  moe.topk = 2;
  moe.ffn_hidden_size = 32;
  job.model.moe = moe;
  job.model.moe_layer = {false, true};
  validate(job, "/");
  return job;
}

std::vector<std::int64_t> lane_rows(const Job& job, const RoutingCounts& counts) {
  const LaneRows rows(job, counts);
  const std::int64_t* const first = rows.at(0, 0);
  return {first, first + rows.lanes()};
}

RoutingCounts counts_of(std::vector<std::int64_t> counts) {
  RoutingCounts out;
  out.microbatches = 1;
  out.moe_layers = 1;
  out.experts = std::ssize(counts);
  out.counts.assign(counts.begin(), counts.end());
  return out;
}

TEST(BalancedRouting, GivesEveryExpertTheSame) {
  // 4 lanes of 16 tokens to 2 experts each: 128 rows over 8 experts.
  const RoutingCounts r = balanced_routing(moe_job(1, 1, 4, 1, 8));
  EXPECT_EQ(r.microbatches, 1);
  EXPECT_EQ(r.moe_layers, 1);
  EXPECT_THAT(r.counts, Each(16));
  EXPECT_EQ(r.counts.size(), 8u);
}

TEST(BalancedRouting, GivesTheRemainderToTheFirstExperts) {
  // 1 lane: 32 rows over 5 experts.
  EXPECT_THAT(balanced_routing(moe_job(1, 1, 1, 1, 5)).counts, ElementsAre(7, 7, 6, 6, 6));
}

TEST(BalancedRouting, IsEmptyWithoutExperts) {
  EXPECT_EQ(balanced_routing(two_stage_job()).moe_layers, 0);
}

TEST(BalancedRouting, CountsPaddedRows) {
  Job job = moe_job(1, 1, 4, 1, 5 * 4);
  job.options.moe_expert_capacity_factor = 1.0;
  job.options.moe_pad_expert_input_to_capacity = true;
  // 32 assignments over 20 experts: a capacity of ceil(1.6) = 2 rows from each of 4 lanes.
  EXPECT_EQ(rows_sent(job), 40);
  EXPECT_THAT(balanced_routing(job).counts, Each(8));
}

TEST(LaneRows, AddTheExpertsOfALane) {
  EXPECT_THAT(lane_rows(moe_job(1, 1, 2, 1, 4), counts_of({1, 2, 10, 20})), ElementsAre(3, 30));
}

TEST(LaneRows, OfCardsThatSplitAnExpertAreTheSame) {
  // Lanes of one expert are neighbours: {0, 1} and {2, 3}.
  EXPECT_THAT(lane_rows(moe_job(1, 1, 2, 2, 2), counts_of({7, 9})), ElementsAre(7, 7, 9, 9));
}

TEST(LaneRows, OfSeveralExpertGroupsOfAUnitShareAlike) {
  // TP2 * CP2 = 4 lanes, EP2: two expert groups {0, 1} and {2, 3}, each with half of the rows.
  EXPECT_THAT(lane_rows(moe_job(2, 2, 2, 1, 2), counts_of({6, 10})), ElementsAre(3, 5, 3, 5));
}

TEST(LaneRows, LoseNoRowWhereGroupsShareAnOddNumber) {
  const std::vector<std::int64_t> rows = lane_rows(moe_job(2, 2, 2, 1, 2), counts_of({7, 9}));
  EXPECT_EQ(std::accumulate(rows.begin(), rows.end(), std::int64_t{0}), 7 + 9);
}

TEST(LaneRows, AreFoundByMicrobatchAndLayer) {
  Job job = moe_job(1, 1, 2, 1, 2);
  job.model.moe_layer = {true, true};
  job.batch.global_batch_size *= 2;
  RoutingCounts counts = counts_of({0, 1, 2, 3, 4, 5, 6, 7});
  counts.experts = 2;
  counts.moe_layers = 2;
  counts.microbatches = 2;
  const LaneRows rows(job, counts);
  EXPECT_EQ(rows.at(0, 1)[0], 2);
  EXPECT_EQ(rows.at(1, 0)[1], 5);
}

// Of lane 0, which has the remainders of experts and of groups.
TEST(LaneRows, OfOneLaneInPlaceOfAllAreThoseOfTheFirst) {
  for (const Job& job : {moe_job(1, 1, 4, 1, 8), moe_job(1, 1, 1, 1, 5), moe_job(2, 2, 2, 1, 6)}) {
    for (const double load : {1.0, 1.3}) {
      const LaneRows all(job, scaled(balanced_routing(job), load));
      const LaneRows one = LaneRows::alike(job, load);
      ASSERT_EQ(one.lanes(), 1);
      ASSERT_EQ(one.local_experts(), all.local_experts());
      EXPECT_EQ(one.at(0, 0)[0], all.at(0, 0)[0]);
      for (std::int64_t e = 0; e < all.local_experts(); ++e) {
        EXPECT_EQ(one.expert_at(0, 0, e)[0], all.expert_at(0, 0, e)[0]);
      }
    }
  }
}

TEST(LaneRows, OfOneLaneDifferByMicrobatchAndLayerAsAsked) {
  Job job = moe_job(1, 1, 4, 1, 8);  // 32 rows a lane
  job.model.moe_layer = {true, true};
  job.batch.global_batch_size *= 2;
  const LaneRows rows = LaneRows::alike(job, [](std::int64_t microbatch, std::int64_t layer) {
    return 1.0 + static_cast<double>(microbatch) + 0.5 * static_cast<double>(layer);
  });
  EXPECT_EQ(rows.at(0, 0)[0], 32);
  EXPECT_EQ(rows.at(0, 1)[0], 48);
  EXPECT_EQ(rows.at(1, 0)[0], 64);
}

}  // namespace
}  // namespace tidemark::routing_test
