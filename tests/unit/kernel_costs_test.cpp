#include "hw_profiles/kernel_costs.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include <gtest/gtest.h>

#include "hw_profiles/kernel_rates.h"
#include "models/input_error.h"

namespace tidemark::kernel_costs_test {
namespace {

constexpr std::array kPasses = {Pass::kForward, Pass::kBackwardInput, Pass::kBackwardWeight};

const HardwareProfile& bw1000() {
  static const HardwareProfile profile = load_hardware_profile("bw1000");
  return profile;
}

const KernelCosts& costs() {
  static const KernelCosts costs(bw1000());
  return costs;
}

// BW1000: bytes read plus written a second.
constexpr double kCopy = 1145.5e9;

double gemm_seconds(const KernelCosts& kernels, const GemmShape& shape) {
  double seconds = 0;
  for (const Pass pass : kPasses) seconds += kernels.gemm(shape, pass).seconds;
  return seconds;
}

TEST(TiledGemm, CountsWholeWavesOfTiles) {
  const TiledGemm gemm{1e12, 256, 256, 80, 1e30};
  // 16 x 5 tiles fill the 80 units once; one more row of output needs five more tiles: two waves.
  const double wave = 2.0 * 80 * 256 * 256 * 1000 / 1e12;
  EXPECT_DOUBLE_EQ(gemm.seconds(16 * 256, 5 * 256, 1000), wave);
  EXPECT_DOUBLE_EQ(gemm.seconds(16 * 256 + 1, 5 * 256, 1000), 2 * wave);
  EXPECT_DOUBLE_EQ(gemm.seconds(1, 1, 1000), wave);
}

TEST(TiledGemm, IsNotFasterThanItsMemoryTraffic) {
  const TiledGemm gemm{1e30, 256, 256, 80, 1e9};
  // 3 * 4 + 5 * 4 + 3 * 5 elements of 2 bytes.
  EXPECT_DOUBLE_EQ(gemm.seconds(3, 5, 4), 2.0 * 47 / 1e9);
}

TEST(KernelRates, FitOfTheTableIsPhysical) {
  for (const char* name : {"bw1000", "bw1100"}) {
    const HardwareProfile profile = load_hardware_profile(name);
    const KernelRates rates = kernel_rates(profile);
    // The head is the forward half of what the host needs for a row of no work.
    EXPECT_GT(rates.head_seconds, 0.2e-3 * profile.operators->host_floor_ms.value);
    EXPECT_LT(rates.head_seconds, 0.5e-3 * profile.operators->host_floor_ms.value);
    EXPECT_LT(rates.gemm.flops_per_second, profile.peak_bf16_tflops.value * 1e12);
    // Three numbers describe the linear layers: half of the shapes within 7 %.
    std::vector<double> errors;
    for (const auto& [shape, entry] : rates.linear.exact) {
      errors.push_back(std::abs(std::log(entry.slowness)));
    }
    std::sort(errors.begin(), errors.end());
    EXPECT_LT(errors[errors.size() / 2], 0.07) << name;
  }
}

TEST(KernelRates, RefusesATableThatCannotBeFitted) {
  HardwareProfile profile = bw1000();
  profile.operators->linear.resize(2);
  profile.operators->rms_norm.clear();
  EXPECT_THROW(kernel_rates(profile), InputError);
}

TEST(KernelCosts, GemmReproducesACleanedRow) {
  // attn_proj 5120 x 2048: mean_ms less the head and 12 bytes per output. No norm is inside.
  const double outputs = 5120.0 * 4096;
  const double kernel = 1.2637559366226196e-3 - costs().rates().head_seconds - 12 * outputs / kCopy;
  const GemmShape shape{5120, 4096, 2048};
  EXPECT_NEAR(gemm_seconds(costs(), shape), kernel, 1e-12);
  EXPECT_EQ(costs().gemm(shape, Pass::kForward).kind, CostKind::kMeasured);
}

TEST(KernelCosts, GemmOfAFusedNormRowLeavesTheNormOut) {
  // linear_fc1 12800 x 5120 is a te.LayerNormLinear; 5120 has no tuned norm kernel.
  const double outputs = 12800.0 * 4096;
  const double norm = 4096.0 * 5120 * costs().rates().general_norm_seconds_per_element;
  const double kernel =
      6.638635673522949e-3 - costs().rates().head_seconds - 12 * outputs / kCopy - norm;
  EXPECT_NEAR(gemm_seconds(costs(), {12800, 4096, 5120}), kernel, 1e-12);
  EXPECT_NEAR(costs().rms_norm(4096, 5120, Direction::kForward).seconds +
                  costs().rms_norm(4096, 5120, Direction::kBackward).seconds,
              norm, 1e-15);
}

TEST(KernelCosts, GemmAveragesRepeatedRowsOfOneShape) {
  // gdn_out_proj and attn_proj, both 3072 x 4096.
  const double mean = (1.3984373235702514e-3 + 1.4976340818405152e-3) / 2;
  const double kernel = mean - costs().rates().head_seconds - 12 * 3072.0 * 4096 / kCopy;
  EXPECT_NEAR(gemm_seconds(costs(), {3072, 4096, 4096}), kernel, 1e-12);
}

TEST(KernelCosts, GemmScalesAMeasuredShapeWithItsWaves) {
  const GemmShape measured{5120, 4096, 2048};
  const GemmShape longer{5120, 8192, 2048};
  // Weight gradient: the tokens are the depth, so twice the time.
  EXPECT_DOUBLE_EQ(costs().gemm(longer, Pass::kBackwardWeight).seconds,
                   2 * costs().gemm(measured, Pass::kBackwardWeight).seconds);
  // Forward: 16 x 20 = 320 tiles are 4 waves, 640 are 8.
  EXPECT_DOUBLE_EQ(costs().gemm(longer, Pass::kForward).seconds,
                   2 * costs().gemm(measured, Pass::kForward).seconds);
  // Input gradient: 16 x 8 = 128 tiles are 2 waves, 256 are 4.
  EXPECT_DOUBLE_EQ(costs().gemm(longer, Pass::kBackwardInput).seconds,
                   2 * costs().gemm(measured, Pass::kBackwardInput).seconds);
  EXPECT_EQ(costs().gemm(longer, Pass::kForward).kind, CostKind::kInterpolated);
}

TEST(KernelCosts, GemmOfAnUnmeasuredShapeTakesTheMeanSlowness) {
  const KernelRates& rates = costs().rates();
  double sum = 0;
  for (const auto& [shape, entry] : rates.linear.exact) sum += entry.slowness;
  const double mean = sum / static_cast<double>(rates.linear.exact.size());
  EXPECT_DOUBLE_EQ(costs().gemm({14336, 4096, 8192}, Pass::kForward).seconds,
                   mean * rates.gemm.seconds(4096, 14336, 8192));
}

TEST(KernelCosts, LogitsGemmKnowsTheLibrarysLottery) {
  // lm_head 37984 x 4096 takes twice as long as the wider 37984 x 5120.
  double narrow = 0;
  double wide = 0;
  for (const Pass pass : kPasses) {
    narrow += costs().logits_gemm({37984, 4096, 4096}, pass).seconds;
    wide += costs().logits_gemm({37984, 4096, 5120}, pass).seconds;
  }
  EXPECT_NEAR(wide,
              15.194197731018066e-3 - costs().rates().head_seconds - 12 * 37984.0 * 4096 / kCopy,
              1e-12);
  EXPECT_GT(narrow, 1.8 * wide);
}

TEST(KernelCosts, GroupedGemmIsTheSumOfItsExperts) {
  const std::vector<std::int64_t> tokens = {2048, 0, 100, 4096};
  double sum = 0;
  for (const std::int64_t count : tokens) {
    sum += costs().grouped_gemm(4096, 7168, 1, count, Pass::kForward).seconds;
  }
  EXPECT_DOUBLE_EQ(costs().grouped_gemm(4096, 7168, tokens, Pass::kForward).seconds, sum);
  EXPECT_EQ(costs().grouped_gemm(4096, 7168, 1, 0, Pass::kForward).seconds, 0);
}

TEST(KernelCosts, GroupedGemmReproducesItsRow) {
  // 32 experts of 128 tokens, 7168 <- 2048.
  const double outputs = 32.0 * 128 * 7168;
  const double kernel =
      8.15164 * 1e-3 - costs().rates().head_seconds - kHarnessBytesPerOutput * outputs / kCopy;
  double seconds = 0;
  for (const Pass pass : kPasses) {
    const Cost cost = costs().grouped_gemm(7168, 2048, 32, 128, pass);
    EXPECT_EQ(cost.kind, CostKind::kMeasured);
    seconds += cost.seconds;
  }
  EXPECT_NEAR(seconds, kernel, 1e-7);
}

TEST(KernelCosts, GroupedGemmRunsFasterPerTokenWithMoreTokens) {
  // 128 tokens fill half a tile, and an expert's few tiles a fraction of a wave.
  const double few = costs().grouped_gemm(7168, 2048, 32, 128, Pass::kForward).seconds / (32 * 128);
  const double many =
      costs().grouped_gemm(7168, 2048, 4, 2048, Pass::kForward).seconds / (4 * 2048);
  EXPECT_LT(many, few / 3);
}

TEST(KernelCosts, GroupedGemmDoesNotCarryTheGainOfNarrowTilesToMoreTokens) {
  // Faster than modelled at 128 tokens, which fill half a tile of 256.
  EXPECT_LT(costs().rates().grouped.exact.at({7168, 2048}).slowness, 1);
  EXPECT_DOUBLE_EQ(costs().grouped_gemm(7168, 2048, 1, 2048, Pass::kForward).seconds,
                   costs().rates().gemm.seconds(2048, 7168, 2048));
}

TEST(AttentionPairs, CountBlocksThatTheMaskTouches) {
  EXPECT_EQ(attention_pairs(256, 256, true), 3 * 128 * 128);  // two diagonal, one below
  EXPECT_EQ(attention_pairs(256, 256, false), 256 * 256);
  // Context parallel: 256 queries at the end of 1024 keys.
  EXPECT_EQ(attention_pairs(256, 1024, true), 256 * 768 + 3 * 128 * 128);
  // The excess over s^2 / 2 falls with s.
  EXPECT_DOUBLE_EQ(attention_pairs(4096, 4096, true) / (4096.0 * 4096 / 2), 1 + 1.0 / 32);
}

TEST(KernelCosts, AttentionReproducesItsRows) {
  for (const AttentionRow& row : bw1000().operators->attention) {
    const AttentionShape shape{1, row.seq, row.seq, row.heads, row.qk_dim, row.v_dim, true};
    const double outputs = static_cast<double>(row.seq * row.heads * row.v_dim);
    const double kernel = row.mean_ms * 1e-3 - costs().rates().head_seconds - 12 * outputs / kCopy;
    const double seconds = costs().attention(shape, Direction::kForward).seconds +
                           costs().attention(shape, Direction::kBackward).seconds;
    EXPECT_NEAR(seconds / kernel, 1, 0.02) << row.heads << " heads";
  }
}

TEST(KernelCosts, AttentionGrowsBetweenLinearAndQuadratic) {
  for (const Direction direction : {Direction::kForward, Direction::kBackward}) {
    const double at_4k = costs().attention({1, 4096, 4096, 16, 128, 128, true}, direction).seconds;
    const double at_8k = costs().attention({1, 8192, 8192, 16, 128, 128, true}, direction).seconds;
    EXPECT_GT(at_8k, 3.3 * at_4k);
    EXPECT_LT(at_8k, 4 * at_4k);
  }
}

TEST(KernelCosts, AttentionForwardDoesTwoOfSevenProducts) {
  const AttentionShape shape{1, 65536, 65536, 1, 128, 128, true};  // long: only the pairs count
  const double forward = costs().attention(shape, Direction::kForward).seconds;
  const double backward = costs().attention(shape, Direction::kBackward).seconds;
  EXPECT_NEAR(forward / backward, 2.0 / 5, 0.005);
}

TEST(KernelCosts, TunedNormWidthsStream) {
  // Forward reads and writes bf16.
  EXPECT_DOUBLE_EQ(costs().rms_norm(1000, 4096, Direction::kForward).seconds,
                   4.0 * 1000 * 4096 / kCopy);
  // The rows of width 4096 agree: head, 10 bytes of the norm and 12 of the harness an element.
  const double elements = 16777216;
  EXPECT_NEAR(costs().rates().head_seconds + 22 * elements / kCopy, 0.62888e-3, 0.02e-3);
  EXPECT_FALSE(has_tuned_rms_norm(128));
  EXPECT_GT(costs().rms_norm(1000, 5120, Direction::kForward).seconds,
            5 * costs().rms_norm(1250, 4096, Direction::kForward).seconds);
}

TEST(KernelCosts, ElementwiseKernelsCountBytes) {
  EXPECT_DOUBLE_EQ(costs().streaming(kCopy).seconds, 1);
  EXPECT_EQ(costs().streaming(1).kind, CostKind::kRoofline);
  EXPECT_DOUBLE_EQ(costs().gradient_accumulation(1'000'000).seconds, 6e6 / kCopy);
  // The fused loss moves less than the unfused one, which has a row.
  const std::int64_t logits = 622329856;
  const auto loss = [&](CrossEntropy path) {
    return costs().cross_entropy(path, logits, Direction::kForward).seconds +
           costs().cross_entropy(path, logits, Direction::kBackward).seconds;
  };
  EXPECT_NEAR(loss(CrossEntropy::kUnfused), 29.6391e-3 - costs().rates().head_seconds, 1e-7);
  EXPECT_LT(loss(CrossEntropy::kTransformerEngine), loss(CrossEntropy::kUnfused) / 3);
}

TEST(KernelCosts, WithoutATableTheRatesAreAssumedSharesOfThePeak) {
  const KernelCosts h20(load_hardware_profile("h20"));
  const Cost cost = h20.gemm({4096, 4096, 4096}, Pass::kForward);
  EXPECT_EQ(cost.kind, CostKind::kAssumed);
  // 32 x 16 tiles of 128 x 256 on 78 units: 7 waves.
  EXPECT_DOUBLE_EQ(cost.seconds, 2.0 * 7 * 78 * 128 * 256 * 4096 / (0.95 * 148e12));
}

}  // namespace
}  // namespace tidemark::kernel_costs_test
