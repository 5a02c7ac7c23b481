// The claim about running maxima, and the workloads it fits to recorded routers.
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "models/input_error.h"
#include "tools/claim.h"
#include "tools/claims/recorded_routers.h"

namespace tidemark::running_peak_claim_test {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int kExperts = 64;

class RunningPeakClaim : public ::testing::Test {
 protected:
  void SetUp() override {
    fs::create_directories(folder_ / "ours");
    setenv("TIDEMARK_VALIDATION_DIR", folder_.c_str(), 1);
    // Half of the experts receive 1 + d times the mean, half 1 - d.
    std::ofstream table(folder_ / "counts.csv");
    table << "task,layer,tokens,top_k,ep8_rank_max_over_mean,ep16_rank_max_over_mean,"
             "ep64_rank_max_over_mean,counts\n";
    for (const auto& [task, deviation] : {std::pair("b", 250), std::pair("a", 500)}) {
      for (const int layer : {1, 2}) {
        table << task << "," << layer << ",8000,8,1,1,1,";
        for (int e = 0; e < kExperts; ++e) {
          table << (e > 0 ? " " : "") << 1000 + (e % 2 == 0 ? deviation : -deviation);
        }
        table << "\n";
      }
    }
  }
  void TearDown() override {
    unsetenv("TIDEMARK_VALIDATION_DIR");
    fs::remove_all(folder_);
  }

  ClaimResult check(const std::string& measured) const {
    const fs::path arguments =
        fs::path(TIDEMARK_SOURCE_DIR) /
        "validation/megatron_golden/arguments/gpt3_mcore_te_tp2_pp2_ep4_etp1_memory_speed.json";
    std::ofstream(folder_ / "ours/claim.json")
        << R"({"schema_version": 1, "claim": "c", "source": "s", "reason": "r",
               "kind": "running_peak", "tolerance": {"band_percent": 95}, "seeds": 4,
               "recorded": "counts.csv", "assumed": {"drift_iterations": 100},
               "cases": [{"arguments": )"
        << arguments << R"(, "cards": 8, "hardware": "h100", "vocab_size": 50257,
               "frameworks": {"megatron_core": "0.17", "transformer_engine": "2.12"},
               "measured": )"
        << measured << "}]}";
    return check_claim("ours");
  }

  fs::path folder_ =
      fs::path(::testing::TempDir()) /
      (std::string("running_") + ::testing::UnitTest::GetInstance()->current_test_info()->name());
};

TEST_F(RunningPeakClaim, FitsTheLoadsOfEachTask) {
  const std::vector<Workload> fitted = claims::fit_recorded_routers(folder_ / "counts.csv");
  ASSERT_EQ(fitted.size(), 2U);
  const auto alpha = [](double deviation) {
    // The loads' relative variance, less what the multinomial adds to counts of 1,000 each; a
    // Dirichlet share has (E - 1) / (E alpha + 1).
    const double variance = deviation * deviation - (1 - 1.0 / kExperts) / 1000;
    return ((kExperts - 1) / variance - 1) / kExperts;
  };
  EXPECT_NEAR(fitted[0].alpha, alpha(0.5), 1e-9) << "a comes before b";
  EXPECT_NEAR(fitted[1].alpha, alpha(0.25), 1e-9);
  for (const Workload& workload : fitted) {
    EXPECT_EQ(workload.kind, WorkloadKind::kDirichlet);
    EXPECT_EQ(workload.microbatch_correlation, 1);
    EXPECT_EQ(workload.drift_iterations, 0);
  }
}

TEST_F(RunningPeakClaim, SetsTheMeasuredCurveBesideTheBand) {
  const ClaimResult result = check(R"([{"iteration": 1, "bytes": 1073741824},
                                       {"iteration": 2, "bytes": 2147483648},
                                       {"iteration": 4, "bytes": 5368709120}])");
  ASSERT_EQ(result.lines.size(), 4U);
  EXPECT_EQ(result.lines[1].expected, "2.00 GiB");
  EXPECT_EQ(result.lines[3].what, "grown from iteration 2 to 4");
  EXPECT_EQ(result.lines[3].expected, "3.00 GiB");
  for (const ClaimLine& line : result.lines) {
    EXPECT_FALSE(line.pass) << "the card holds more than 50 GiB, and gains little";
  }
}

TEST_F(RunningPeakClaim, RefusesTooFewPointsAndPointsOutOfOrder) {
  for (const char* measured : {R"([{"iteration": 1, "bytes": 1}, {"iteration": 2, "bytes": 1}])",
                               R"([{"iteration": 1, "bytes": 1}, {"iteration": 3, "bytes": 1},
            {"iteration": 2, "bytes": 1}])"}) {
    try {
      check(measured);
      FAIL() << measured;
    } catch (const InputError& error) {
      EXPECT_THAT(error.what(), AllOf(HasSubstr("/cases/0/measured"),
                                      HasSubstr("three points or more, by iteration")));
    }
  }
}

}  // namespace
}  // namespace tidemark::running_peak_claim_test
