#include "planner/static_policies.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "models/input_error.h"
#include "tests/support/jobs.h"

namespace tidemark::static_policies_test {
namespace {

using testing::HasSubstr;

std::string error_of(const Job& job, const std::string& policy) {
  try {
    static_policy(job, policy);
  } catch (const InputError& error) {
    return error.what();
  }
  return "";
}

TEST(StaticPolicy, ReplacesWhatTheJobDoesAboutMemory) {
  Job job = qwen3_30b_a3b();
  job.options.recompute.moe_act = true;
  EXPECT_TRUE(static_policy(job, "as-given").job.options.recompute.moe_act);
  EXPECT_FALSE(static_policy(job, "keep-everything").job.options.recompute.moe_act);
  const Job full = static_policy(job, "full-recompute").job;
  ASSERT_TRUE(full.options.full_recompute.has_value());
  EXPECT_EQ(full.options.full_recompute->num_layers, 1);
  EXPECT_FALSE(full.options.recompute.moe_act);
}

TEST(StaticPolicy, TakesModulesAndFactors) {
  const Job job = qwen3_30b_a3b();
  const Job selective = static_policy(job, "selective:core_attn+moe_act").job;
  EXPECT_TRUE(selective.options.recompute.core_attn);
  EXPECT_TRUE(selective.options.recompute.moe_act);
  EXPECT_FALSE(selective.options.recompute.layernorm);
  EXPECT_TRUE(static_policy(job, "offload:expert_fc1")
                  .job.options.offload.offloads(OffloadModule::kExpertFc1));
  const Job capacity = static_policy(job, "capacity:1.25").job;
  EXPECT_EQ(capacity.options.moe_expert_capacity_factor, 1.25);
  EXPECT_TRUE(capacity.options.moe_pad_expert_input_to_capacity);
}

TEST(StaticPolicy, RefusesWhatDoesNotExistOrDoesNotSuitTheModel) {
  const Job dense = two_stage_job();
  EXPECT_THAT(error_of(dense, "magic"), HasSubstr("full-recompute"));
  EXPECT_THAT(error_of(dense, "full-recompute:2"), HasSubstr("full-recompute:2"));
  EXPECT_THAT(error_of(dense, "selective"), HasSubstr("selective:MODULES"));
  EXPECT_THAT(error_of(dense, "selective:moe_act"), HasSubstr("no such module without experts"));
  EXPECT_THAT(error_of(dense, "selective:nonsense"), HasSubstr("nonsense"));
}

}  // namespace
}  // namespace tidemark::static_policies_test
