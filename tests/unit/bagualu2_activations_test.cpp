#include "models/bagualu2_activations.h"

#include <algorithm>

#include <gtest/gtest.h>

#include "tests/support/jobs.h"

namespace tidemark::bagualu2_activations_test {
namespace {

// The layer of BaGuaLu-2's own tests: 2 sequences of 128 tokens, top-2 of 8 experts, TP 2.
constexpr std::int64_t kTokens = 2 * 128;
constexpr std::int64_t kRows = kTokens * 2;
constexpr std::int64_t kTp = 2;
constexpr std::int64_t kHidden = 256;
constexpr std::int64_t kHeads = 8;
constexpr std::int64_t kGroups = 4;
constexpr std::int64_t kDim = 16;
constexpr std::int64_t kExperts = 8;
constexpr std::int64_t kTopk = 2;
constexpr std::int64_t kFfn = 512;
constexpr std::int64_t kActivation = kTokens * kHidden / kTp;  // elements

class BaGuaLu2Layer : public testing::Test {
 protected:
  BaGuaLu2Layer() {
    job_ = two_stage_job();
    job_.layout.tensor = kTp;
    job_.batch = {2, 2, 128};
    job_.model.hidden_size = kHidden;
    job_.model.attention.num_heads = kHeads;
    job_.model.attention.num_query_groups = kGroups;
    job_.model.attention.head_dim = kDim;
    job_.model.moe_layer.assign(2, true);
    MoeSpec& moe = job_.model.moe.emplace();
    moe.num_experts = kExperts;
    moe.topk = kTopk;
    moe.ffn_hidden_size = kFfn;
    job_.options.moe_permute_fusion = true;
  }

  void use_mla(std::int64_t q_lora_rank) {
    AttentionSpec& a = job_.model.attention;
    a.kind = AttentionKind::kMultiLatent;
    a.q_lora_rank = q_lora_rank;
    a.kv_lora_rank = 16;
    a.qk_head_dim = 12;
    a.qk_pos_emb_head_dim = 4;
    a.v_head_dim = 10;
  }

  BaGuaLu2Activations layer() const { return bagualu2_activations(job_, options_); }
  std::int64_t total() const { return layer().total().value; }
  std::vector<double> shape_of(const std::string& name, int id) const {
    for (const BaGuaLu2Tensor& t : layer().tensors) {
      if (t.name == name && t.id == id) return t.shape;
    }
    return {};
  }

  Job job_;
  BaGuaLu2Options options_;
};

using Shape = std::vector<double>;

TEST_F(BaGuaLu2Layer, AddUpAsTheListSays) {
  const std::int64_t heads_per_card = kTokens * kHeads * kDim / kTp;
  const std::int64_t groups_per_card = kTokens * kGroups * kDim / kTp;
  const std::int64_t bf16 = 4 * kActivation                         // norms and residual sums
                            + kActivation                           // projection
                            + heads_per_card + 2 * groups_per_card  // qkv
                            + heads_per_card + groups_per_card      // rotated q and k
                            + 2 * heads_per_card                    // attention, "buffer"
                            + kTokens * kTopk + kTokens * kExperts  // router scores
                            + kRows * kHidden / kTp                 // fc1 input
                            + kRows * 3 * kFfn / kTp;               // fc1 output and activation
  const std::int64_t lse = 4 * kTokens * kHeads / kTp;
  const std::int64_t indices = 8 * kTokens * kTopk + 4 * kTokens * kExperts;
  EXPECT_EQ(total(), 2 * bf16 + lse + indices);
  EXPECT_EQ(total(), 1'446'912);  // their code's result
}

TEST_F(BaGuaLu2Layer, ShapesAreThoseTheirTestsAssert) {
  EXPECT_EQ(shape_of("linear_qkv", 2), (Shape{2, 128, (8 + 2 * 4) * 16 / 2.0}));
  EXPECT_EQ(shape_of("moe_fc1", 10), (Shape{256, 1024}));
  job_.model.activation = Activation::kGelu;
  EXPECT_EQ(shape_of("moe_fc1", 10), (Shape{256, 512}));
  job_.model.attention.num_query_groups = kHeads;
  EXPECT_EQ(shape_of("linear_qkv", 2), (Shape{2, 128, (8 + 2 * 8) * 16 / 2.0}));
}

TEST_F(BaGuaLu2Layer, OfMlaHaveFourProjections) {
  use_mla(32);
  EXPECT_EQ(shape_of("mla_q_down_proj", 2), (Shape{2, 128, 32 / 2.0}));
  EXPECT_EQ(shape_of("mla_kv_down_proj", 2), (Shape{2, 128, (16 + 4) / 2.0}));
  EXPECT_EQ(shape_of("mla_q_up_proj", 2), (Shape{2, 128, 8 * (12 + 4) / 2.0}));
  EXPECT_EQ(shape_of("mla_kv_up_proj", 2), (Shape{2, 128, 8 * (12 + 10) / 2.0}));
  EXPECT_EQ(shape_of("linear_qkv", 2), Shape{});
}

TEST_F(BaGuaLu2Layer, OfMlaWithoutQueryRankHaveNoQueryDownProjection) {
  use_mla(0);
  EXPECT_EQ(shape_of("mla_q_down_proj", 2), Shape{});
}

TEST_F(BaGuaLu2Layer, UpProjectionsChangeGroupWithTheNormFusedIntoThem) {
  use_mla(32);
  const std::int64_t up = 2 * kTokens * kHeads * (12 + 4 + 12 + 10) / kTp;
  const Bytes fused = layer().in_groups({"LayerNormLinear"});
  const Bytes plain = layer().in_groups({"Linear"});
  job_.model.attention.qk_layernorm = true;
  EXPECT_EQ(layer().in_groups({"LayerNormLinear"}), fused + Bytes(up));
  EXPECT_EQ(layer().in_groups({"Linear"}), plain - Bytes(up));
}

TEST_F(BaGuaLu2Layer, GroupsCountATensorOnce) {
  // The activation output belongs to both, the fc1 input to one of them.
  const Bytes act(2 * kRows * kFfn / kTp);
  const BaGuaLu2Activations l = layer();
  EXPECT_EQ(l.in_groups({"swiglu", "GroupedLinear"}) + act,
            l.in_groups({"swiglu"}) + l.in_groups({"GroupedLinear"}));
  EXPECT_EQ(l.in_groups(bagualu2_default_offload_groups()), Bytes(1'114'112));
  EXPECT_EQ(l.in_groups({}), Bytes(0));
}

TEST_F(BaGuaLu2Layer, ImbalanceScalesRoutedTensorsAlone) {
  const std::int64_t routed = 2 * kRows * (kHidden + 3 * kFfn) / kTp;
  const std::int64_t balanced = total();
  options_.max_vio = 0.5;
  EXPECT_EQ(total(), balanced + routed / 2);
  options_.dispatched_tokens = 3.0 * kRows;
  EXPECT_EQ(total(), balanced + 2 * routed);
}

TEST_F(BaGuaLu2Layer, BytesOfFractionsAreCutOff) {
  // One received row over TP 2: half a row of each routed tensor.
  options_.dispatched_tokens = 1;
  job_.model.hidden_size = 2;
  job_.model.moe->ffn_hidden_size = 5;
  const BaGuaLu2Activations l = layer();
  EXPECT_EQ(l.in_groups({"permutation"}), Bytes(2));  // 1 * 1/2 * 2 elements
  options_.fp8 = true;
  EXPECT_EQ(layer().tensors.end()[-2].bytes, Bytes(2));  // 1/2 * 5 bytes
}

TEST_F(BaGuaLu2Layer, TypesFollowTheSwitches) {
  const std::int64_t before = total();
  job_.options.moe_router_fp32 = true;
  job_.options.moe_permute_fusion = false;
  EXPECT_EQ(total(), before + 2 * kTokens * (kTopk + kExperts) + 4 * kTokens * kExperts);
  job_.options.moe_router_fp32 = false;
  job_.options.moe_permute_fusion = true;

  // Input norm, projection, fc1 input and activation output.
  const std::int64_t quantized = 2 * kActivation + kRows * (kHidden + kFfn) / kTp;
  options_.fp8 = true;
  EXPECT_EQ(total(), before - quantized);
  options_.activation_func_fp8_input_store = true;
  EXPECT_EQ(total(), before - quantized - kRows * 2 * kFfn / kTp);
  options_.fp8 = false;
  EXPECT_EQ(total(), before);
}

TEST_F(BaGuaLu2Layer, AttentionIsFlashBelowTheThreshold) {
  const std::int64_t flash = total();
  const std::int64_t heads_per_card = kTokens * kHeads * kDim / kTp;
  const std::int64_t unfused =
      flash - 2 * 2 * heads_per_card - 4 * kTokens * kHeads / kTp +
      2 * (kTokens * kGroups * kDim / kTp + heads_per_card + kTokens * 128 * kHeads / kTp);
  options_.flash_attention_kv_threshold = kDim + 1;
  EXPECT_EQ(total(), flash);
  options_.flash_attention_kv_threshold = kDim;
  EXPECT_EQ(total(), unfused);
  job_.options.attention_backend = AttentionBackend::kFused;
  EXPECT_EQ(total(), flash);
  options_.unfused_attention = true;
  EXPECT_EQ(total(), unfused);
}

TEST_F(BaGuaLu2Layer, RecomputeDropsWhatTheirMapNames) {
  const std::int64_t all = total();
  const std::int64_t heads_per_card = kTokens * kHeads * kDim / kTp;
  const std::pair<const char*, std::int64_t> dropped[] = {
      {"core_attn", 2 * heads_per_card + 4 * kTokens * kHeads / kTp},
      {"moe_act", 2 * kActivation},
      {"layernorm", 4 * kActivation},
      {"mla_up_proj", 2 * (heads_per_card + kTokens * kGroups * kDim / kTp)},
      {"mlp", 0},
      {"moe", 2 * kRows * (kHidden + 3 * kFfn) / kTp},
      {"experts", 2 * kRows * (kHidden + 3 * kFfn) / kTp},
      {"router", kTokens * (kTopk * (2 + 8) + kExperts * (2 + 4))},
      {"no such module", 0}};
  for (const auto& [module, bytes] : dropped) {
    options_.recompute_modules = {module};
    EXPECT_EQ(total(), all - bytes) << module;
  }
  options_.recompute_modules = {"moe_act", "layernorm"};
  EXPECT_EQ(total(), all - 6 * kActivation);
  options_.recompute_full = true;
  EXPECT_EQ(total(), 0);
}

TEST_F(BaGuaLu2Layer, OffloadTakesItsPartOfAGroup) {
  const std::int64_t all = total();
  const std::int64_t fc1_input = 2 * kRows * kHidden / kTp;
  options_.offload = {{"permutation", 0.25}};
  EXPECT_EQ(total(), all - fc1_input / 4);
  options_.offload = {{"permutation", 0.25}, {"GroupedLinear", 0.5}};
  EXPECT_EQ(total(), all - (fc1_input + 2 * kRows * kFfn / kTp) / 2);
}

}  // namespace
}  // namespace tidemark::bagualu2_activations_test
