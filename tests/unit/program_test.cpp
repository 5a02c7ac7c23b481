#include "sim/program.h"

#include <algorithm>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "models/layer_operators.h"
#include "sim/operator_cost.h"
#include "tests/support/jobs.h"

namespace tidemark::program_test {
namespace {

using testing::ElementsAre;

const HardwareProfile& profile() {
  static const HardwareProfile profile = load_hardware_profile("bw1000");
  return profile;
}

const std::string& name_of(const StageProgram& stage, const ProgramOp& op) {
  static const std::string kData = "data";
  return op.operator_index < 0 ? kData
                               : stage.graph.at(static_cast<std::size_t>(op.operator_index)).name;
}

std::size_t position(const StageProgram& stage, const SlotProgram& slot, const std::string& name) {
  for (std::size_t i = 0; i < slot.ops.size(); ++i) {
    if (name_of(stage, slot.ops[i]) == name) return i;
  }
  ADD_FAILURE() << "no operator " << name;
  return 0;
}

std::vector<std::string> waits_for(const StageProgram& stage, const SlotProgram& slot,
                                   const std::string& name) {
  const ProgramOp& op = slot.ops[position(stage, slot, name)];
  std::vector<std::string> out;
  for (std::int32_t d = op.dep_begin; d < op.dep_end; ++d) {
    const auto from = static_cast<std::size_t>(slot.deps[static_cast<std::size_t>(d)]);
    out.push_back(name_of(stage, slot.ops[from]));
  }
  return out;
}

TEST(BuildProgram, GroupsLanesByTheirDigits) {
  Job job = deepseek_v3_1024();
  const Program p = build_program(job, profile());
  EXPECT_EQ(p.lanes, 64);
  const auto group = [&](Group g) { return p.groups[static_cast<int>(g)]; };
  EXPECT_EQ(group(Group::kTensor).size, 4);
  EXPECT_EQ(group(Group::kTensor).stride, 1);
  EXPECT_EQ(group(Group::kExpert).size, 64);
  EXPECT_EQ(group(Group::kExpert).stride, 1);
  EXPECT_EQ(group(Group::kContext).size, 1);
}

TEST(BuildProgram, TensorRanksAreNeighboursAndExpertTensorRanksToo) {
  Job job = qwen3_30b_a3b();
  job.layout.tensor = 2;
  job.layout.sequence_parallel = true;
  job.layout.context = 2;
  job.layout.expert = 4;
  job.layout.expert_tensor = 2;
  validate(job, "/");
  const Program p = build_program(job, profile());
  const auto is = [&](Group g, std::int64_t size, std::int64_t stride) {
    const LaneGroup group = p.groups[static_cast<int>(g)];
    return group.size == size && group.stride == stride;
  };
  EXPECT_EQ(p.lanes, 8);
  EXPECT_TRUE(is(Group::kTensor, 2, 1));
  EXPECT_TRUE(is(Group::kContext, 2, 2));
  EXPECT_TRUE(is(Group::kExpertTensor, 2, 1));
  EXPECT_TRUE(is(Group::kExpert, 4, 2));
}

TEST(BuildProgram, DependenciesCrossStreamsAndPointBackwards) {
  const Program p = build_program(deepseek_v3_1024(), profile());
  for (const StageProgram& stage : p.stages) {
    const ChunkProgram& chunk = stage.chunks[0];
    for (const SlotProgram* slot :
         {&chunk.forward, &chunk.backward, &chunk.first_forward, &chunk.last_backward}) {
      for (std::size_t i = 0; i < slot->ops.size(); ++i) {
        const ProgramOp& op = slot->ops[i];
        for (std::int32_t d = op.dep_begin; d < op.dep_end; ++d) {
          const auto from = static_cast<std::size_t>(slot->deps[static_cast<std::size_t>(d)]);
          ASSERT_LT(from, i) << name_of(stage, op);
          EXPECT_NE(slot->ops[from].stream, op.stream) << name_of(stage, op);
        }
        EXPECT_TRUE(!op.cost.routed() || op.moe_layer >= 0) << name_of(stage, op);
      }
    }
  }
}

TEST(BuildProgram, ACollectiveWaitsForWhatTheComputeStreamWasGiven) {
  const Program p = build_program(qwen3_32b(), profile());
  const StageProgram& stage = p.stages[1];
  EXPECT_THAT(waits_for(stage, stage.chunks[0].forward, "linear_qkv.all_gather"),
              ElementsAre("linear_qkv.layer_norm"));
  EXPECT_THAT(waits_for(stage, stage.chunks[0].forward, "linear_qkv"),
              ElementsAre("linear_qkv.all_gather"));
}

TEST(BuildProgram, CountsMoeLayersOverTheWholeModel) {
  const Program p = build_program(deepseek_v3_1024(), profile());
  // Stage 1 begins with layer 5: after layers 3 and 4 the third MoE layer.
  const StageProgram& stage = p.stages[1];
  EXPECT_EQ(stage.chunks[0]
                .forward.ops[position(stage, stage.chunks[0].forward, "experts.linear_fc1")]
                .moe_layer,
            2);
  const StageProgram& first = p.stages[0];
  EXPECT_EQ(
      first.chunks[0].forward.ops[position(first, first.chunks[0].forward, "linear_fc1")].moe_layer,
      -1);
}

TEST(BuildProgram, OnlyGatesAndTheCheckOfTheLossStopTheHost) {
  const Program p = build_program(qwen3_30b_a3b(), profile());
  const StageProgram& stage = p.stages[0];
  for (const ProgramOp& op : stage.chunks[0].forward.ops) {
    const std::string& name = name_of(stage, op);
    EXPECT_EQ(op.host_waits, name == "gate" || name == "loss_nan_check") << name;
  }
}

TEST(BuildProgram, WithoutOverlapBorderSlotsAreLikeTheOthers) {
  const Program p = build_program(two_stage_job(), profile());
  for (const StageProgram& stage : p.stages) {
    EXPECT_EQ(stage.chunks[0].first_forward.ops.size(), stage.chunks[0].forward.ops.size());
    EXPECT_EQ(stage.chunks[0].last_backward.ops.size(), stage.chunks[0].backward.ops.size());
  }
}

// One stage, two layers, DP 2, a bucket for about each layer.
Job overlapped() {
  Job job = two_stage_job();
  job.layout.pipeline = 1;
  job.options.overlap_grad_reduce = true;
  job.options.overlap_param_gather = true;
  job.options.ddp_bucket_size = 20000;
  return job;
}

TEST(BuildProgram, OverlappedReductionsStartWithTheirBucketsAndAreAllStarted) {
  const Job job = overlapped();
  const Program p = build_program(job, profile());
  const StageProgram& stage = p.stages[0];
  const std::size_t buckets = gradient_buffers(job, 0)[0].buckets.size();
  const auto is_data = [](const ProgramOp& op) { return op.stream == Stream::kDataComm; };
  const auto& ops = stage.chunks[0].last_backward.ops;
  EXPECT_EQ(std::count_if(ops.begin(), ops.end(), is_data),
            std::ssize(gradient_buffers(job, 0)[0].buckets));
  EXPECT_GT(buckets, 2u);
  EXPECT_FALSE(is_data(ops.front()));
  EXPECT_TRUE(is_data(ops.back()));  // the embedding's
  EXPECT_EQ(stage.end.reduce_ns, 0);
  EXPECT_EQ(stage.end.gather_ns, 0);
}

TEST(BuildProgram, OverlappedGathersAreIssuedFirstAndAwaitedWhereTheyAreNeeded) {
  const Job job = overlapped();
  const Program p = build_program(job, profile());
  const StageProgram& stage = p.stages[0];
  const auto buckets = gradient_buffers(job, 0)[0].buckets;
  for (std::size_t i = 0; i < buckets.size(); ++i) {
    EXPECT_EQ(stage.chunks[0].first_forward.ops[i].stream, Stream::kDataComm);
  }
  // The embedding's bucket is the last of the buffer, so it is gathered first.
  const auto embedding = waits_for(stage, stage.chunks[0].first_forward, "embedding");
  EXPECT_EQ(embedding.size(), 1u);
}

TEST(BuildProgram, MakingTheAttentionMaskWaitsForNoParameters) {
  Job job = overlapped();
  job.options.create_attention_mask_in_dataloader = true;
  const Program p = build_program(job, profile());
  const StageProgram& stage = p.stages[0];
  EXPECT_THAT(waits_for(stage, stage.chunks[0].first_forward, "attention_mask"),
              testing::IsEmpty());
  EXPECT_EQ(waits_for(stage, stage.chunks[0].first_forward, "embedding").size(), 1u);
}

TEST(OpCost, OfAGroupedProductAddsUpItsExperts) {
  const Job job = qwen3_30b_a3b();
  OperatorCosts costs(job, profile());
  const KernelCosts kernels(profile());
  Operator op;
  op.work = GroupedGemmWork{1536, 2048, 16, Pass::kForward, false};
  op.layer = 0;
  const OpCost cost = costs.cost(op);
  EXPECT_TRUE(cost.routed());
  EXPECT_EQ(cost.at(0), 0);  // experts without tokens
  const std::int64_t share = rows_sent(job) / 16;
  const std::int64_t exact =
      round_up_ns(kernels.grouped_gemm(1536, 2048, 1, share, Pass::kForward).seconds).count();
  EXPECT_NEAR(static_cast<double>(costs.balanced_ns(cost)), 16.0 * static_cast<double>(exact), 16);
}

TEST(GroupedCost, IsExactAtTheStepsOfTheTilesAndBetweenThem) {
  const KernelCosts kernels(profile());
  for (const Pass pass : {Pass::kForward, Pass::kBackwardInput, Pass::kBackwardWeight}) {
    const GroupedCost cost(kernels, {4096, 7168, 4, pass, false}, 4096);
    EXPECT_EQ(cost.at(0), 0);
    for (const std::int64_t tokens : {1, 255, 256, 257, 300, 512, 1111, 4096}) {
      const double seconds = kernels.grouped_gemm(4096, 7168, 1, tokens, pass).seconds;
      const double tolerance = tokens % GroupedCost::kStep == 0 ? 1 : 0.02 * seconds * 1e9;
      EXPECT_NEAR(static_cast<double>(cost.at(tokens)), seconds * 1e9, tolerance) << tokens;
    }
    EXPECT_EQ(cost.at(2 * 4096 + 100), 2 * cost.at(4096) + cost.at(100));
  }
}

TEST(OpCost, OfAnExchangeIsTheLargerOfSentAndReceived) {
  const Job job = qwen3_30b_a3b();
  OperatorCosts costs(job, profile());
  Operator op;
  const std::int64_t rows = rows_sent(job);
  op.work = CollectiveWork{Collective::kAllToAll, Group::kExpert, {rows * 4096, 0}, {0, 4096}, 1};
  op.stream = Stream::kExpertComm;
  const OpCost cost = costs.cost(op);
  EXPECT_EQ(cost.at(0), cost.at(rows / 2));  // it sends as much as ever
  EXPECT_NEAR(static_cast<double>(cost.at(rows)), static_cast<double>(cost.at(0)), 1);
  EXPECT_NEAR(static_cast<double>(cost.at(2 * rows)), 2.0 * static_cast<double>(cost.at(rows)),
              0.001 * static_cast<double>(cost.at(2 * rows)));
}

}  // namespace
}  // namespace tidemark::program_test
