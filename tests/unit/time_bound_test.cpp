#include "planner/time_bound.h"

#include <gtest/gtest.h>

#include "hw_profiles/hardware_profile.h"
#include "planner/action_program.h"
#include "planner/static_policies.h"
#include "tests/support/jobs.h"

namespace tidemark::time_bound_test {
namespace {

const HardwareProfile& profile() {
  static const HardwareProfile profile = [] {
    HardwareProfile out = load_hardware_profile("bw1000");
    out.capacity_gib.value = 1000;
    return out;
  }();
  return profile;
}

const Job& small_job() {
  static const Job job = small_moe_job(4, 6);
  return job;
}

Workload skew() {
  Workload w;
  w.kind = WorkloadKind::kDirichlet;
  w.alpha = 4;
  return w;
}

RunResult run_with(const Job& job, const RoutingSource& source, const ActionProgram* actions) {
  RunSpec spec;
  spec.iterations = 2;
  const auto go_on = [](const IterationRecord&) { return true; };
  if (actions == nullptr) return TrainingRun(job, profile(), source, false).run(spec, go_on);
  const ConstantPolicy everything(actions->everything());
  return TrainingRun(job, profile(), source, false, actions->program, everything).run(spec, go_on);
}

TEST(TimeBound, IsReachedWhereEverythingIsKept) {
  const auto source = make_routing(small_job(), skew(), 1);
  TimeBound bound(small_job(), profile(), *source, false);
  const RunResult run = run_with(small_job(), *source, nullptr);
  for (const IterationRecord& r : run.iterations) {
    EXPECT_EQ(bound.of_iteration(r.iteration, r.attempt), r.time_ns);
  }
  EXPECT_DOUBLE_EQ(bound.reached(run), 1);
}

TEST(TimeBound, NoWayToSaveMemoryIsFaster) {
  const auto source = make_routing(small_job(), skew(), 1);
  TimeBound bound(small_job(), profile(), *source, false);
  for (const char* policy :
       {"full-recompute", "block-recompute:1", "selective:core_attn", "selective:layernorm",
        "selective:moe", "selective:moe_act", "offload:attn_norm", "offload:qkv_linear",
        "offload:core_attn+attn_proj", "offload:mlp_norm", "offload:expert_fc1+moe_act"}) {
    const RunResult run = run_with(static_policy(small_job(), policy).job, *source, nullptr);
    EXPECT_LE(bound.reached(run), 1) << policy;
    EXPECT_GT(bound.reached(run), 0.5) << policy;
  }
  for (const ActionKind kind :
       {ActionKind::kRecompute, ActionKind::kOffload, ActionKind::kQuantize}) {
    const ActionProgram actions = build_action_program(small_job(), profile(), kind);
    EXPECT_LE(bound.reached(run_with(small_job(), *source, &actions)), 1);
  }
}

TEST(TimeBound, CountsWhatIsLostAndOnlyWhatFinished) {
  const auto source = make_routing(small_job(), skew(), 1);
  TimeBound bound(small_job(), profile(), *source, false);
  RunResult run = run_with(small_job(), *source, nullptr);
  const std::int64_t first = run.iterations[0].time_ns;
  run.iterations[1].out_of_memory = true;
  run.total_ns = 4 * first;
  EXPECT_DOUBLE_EQ(bound.reached(run), 0.25);
}

}  // namespace
}  // namespace tidemark::time_bound_test
