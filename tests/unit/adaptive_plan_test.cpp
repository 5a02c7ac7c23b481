// A plan that was written down does what the policy that wrote it did.
#include "planner/adaptive_plan.h"

#include <algorithm>
#include <fstream>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "hw_profiles/hardware_profile.h"
#include "models/input_error.h"
#include "models/layer_operators.h"
#include "planner/adaptive_policy.h"
#include "planner/plan_summary.h"
#include "tests/support/jobs.h"

namespace tidemark::adaptive_plan_test {
namespace {

using testing::HasSubstr;

// A card on which the job keeps everything in calm, and barely.
HardwareProfile tight_card(const Job& job) {
  HardwareProfile profile = load_hardware_profile("bw1000");
  profile.capacity_gib.value = 1000;
  const AdaptivePlan wide = adaptive_run(job, profile, 2.6).plan;
  const double unused =
      static_cast<double>(wide.least_headroom_bytes()) / static_cast<double>(kGiB.value);
  profile.capacity_gib.value = 1000 - unused + 0.5;
  return profile;
}

class PlanFile : public testing::Test {
 protected:
  std::string write(const nlohmann::ordered_json& policy) const {
    const std::string test = testing::UnitTest::GetInstance()->current_test_info()->name();
    const std::string path = testing::TempDir() + "plan_" + test + ".json";
    std::ofstream(path) << nlohmann::ordered_json{{"schema_version", 1}, {"policy", policy}};
    return path;
  }
  std::string refusal(const nlohmann::ordered_json& policy) const {
    try {
      planned_run(job_, card_, read_adaptive_plan(write(policy)));
    } catch (const InputError& error) {
      return error.what();
    }
    return "accepted";
  }

  const Job job_ = small_moe_job(8, 6);
  const HardwareProfile card_ = tight_card(job_);
  const AdaptiveRun made_ = adaptive_run(job_, card_, 2.6);
};

TEST_F(PlanFile, DecidesAsThePolicyThatWroteIt) {
  const AdaptiveRun read = planned_run(job_, card_, read_adaptive_plan(write(to_json(made_.plan))));
  EXPECT_EQ(read.plan.least_headroom_bytes(), made_.plan.least_headroom_bytes());
  std::int64_t taken = 0;
  for (const double ratio : {1.0, 1.7, 2.5}) {
    const LaneRows rows(job_, spiked_routing(job_, ratio));
    for (std::int32_t stage = 0; stage < 2; ++stage) {
      const StageDecisions decisions = made_.policy->decide(stage, rows);
      EXPECT_EQ(read.policy->decide(stage, rows).taken, decisions.taken);
      taken += std::count(decisions.taken.begin(), decisions.taken.end(), 1);
    }
  }
  EXPECT_GT(taken, 0) << "the card is tight";
}

TEST_F(PlanFile, RungsHoldLessAndExposeMore) {
  for (const AdaptivePlan::Stage& stage : made_.plan.stages) {
    EXPECT_TRUE(stage.rungs.front().actions.empty());
    EXPECT_EQ(stage.rungs.front().exposed_ns, 0);
    for (std::size_t r = 1; r < stage.rungs.size(); ++r) {
      EXPECT_LT(stage.rungs[r].held_bytes, stage.rungs[r - 1].held_bytes);
      EXPECT_GE(stage.rungs[r].exposed_ns, stage.rungs[r - 1].exposed_ns);
    }
  }
}

TEST_F(PlanFile, IsRefusedWithAnOperatorThatTheJobLacks) {
  nlohmann::ordered_json policy = to_json(made_.plan);
  nlohmann::ordered_json& action = policy["stages"][1]["rungs"].back()["actions"][0];
  const std::string name = action["operator"];
  action["operator"] = name + "s";
  EXPECT_THAT(refusal(policy),
              testing::AllOf(HasSubstr("/policy/stages/1/rungs/"), HasSubstr(name + "s of layer"),
                             HasSubstr("such as " + name)));
}

TEST_F(PlanFile, IsRefusedWithAnotherNumberOfStages) {
  nlohmann::ordered_json policy = to_json(made_.plan);
  policy["stages"].erase(1);
  EXPECT_THAT(refusal(policy), HasSubstr("1 stages"));
}

TEST_F(PlanFile, IsRefusedWithAnActionThatDoesNotExist) {
  nlohmann::ordered_json policy = to_json(made_.plan);
  policy["stages"][0]["rungs"].back()["actions"][0]["action"] = "forget";
  EXPECT_THAT(refusal(policy), HasSubstr("forget"));
}

// One microbatch that offloads one thing, with three in flight.
TEST_F(PlanFile, PinnedMemoryIsThatOfTheFullestMicrobatchForAllInFlight) {
  const AdaptiveRun::Stage& stage = made_.stages[0];
  const std::int64_t rows = 3 * balanced_lane_rows(job_);
  const auto bytes = [&](std::size_t a) {
    const OptionalAction& action = stage.actions[a];
    const CataloguedAction& taken = stage.catalogue.entries[static_cast<std::size_t>(action.entry)]
                                        .actions[static_cast<std::size_t>(action.action)];
    return taken.kind == ActionKind::kOffload ? taken.freed.at(rows) : 0;
  };
  std::size_t offload = 0;
  while (bytes(offload) == 0) ++offload;
  StageDecisions decisions(6, static_cast<std::int32_t>(stage.actions.size()));
  decisions.at(4, static_cast<std::int32_t>(offload)) = 1;
  EXPECT_EQ(pinned_host_bytes(stage, decisions, 6, 3, rows), 3 * bytes(offload));
}

TEST_F(PlanFile, SharesOfActionsAddUpToTheWhole) {
  const LaneRows rows(job_, spiked_routing(job_, 2.5));
  for (std::int32_t s = 0; s < 2; ++s) {
    const AdaptiveRun::Stage& stage = made_.stages[static_cast<std::size_t>(s)];
    const auto shares = action_shares(stage, made_.policy->decide(s, rows), 6);
    const std::vector<OperatorSummary> operators =
        summarize_operators(stage, balanced_lane_rows(job_));
    ASSERT_EQ(shares.size(), operators.size());
    std::size_t layers = 0;
    for (std::size_t o = 0; o < shares.size(); ++o) {
      for (const double share : shares[o]) EXPECT_GE(share, -1e-9);
      layers += static_cast<std::size_t>(operators[o].layers);
    }
    EXPECT_EQ(layers, stage.catalogue.entries.size());
  }
}

}  // namespace
}  // namespace tidemark::adaptive_plan_test
