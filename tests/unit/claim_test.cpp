#include "tools/claim.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "models/input_error.h"

namespace tidemark::claim_test {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

// A claim of kind rank_memory about one of our jobs, of eight cards in two stages.
class RankMemory : public ::testing::Test {
 protected:
  void SetUp() override {
    fs::create_directories(folder_ / "ours");
    setenv("TIDEMARK_VALIDATION_DIR", folder_.c_str(), 1);
  }
  void TearDown() override {
    unsetenv("TIDEMARK_VALIDATION_DIR");
    fs::remove_all(folder_);
  }

  ClaimResult check(const std::string& measured_mib, const std::string& rival_gib) const {
    const fs::path job =
        fs::path(TIDEMARK_SOURCE_DIR) / "validation/simumax_b200/jobs/llama3-405b-l4-tp1-pp2.json";
    std::ofstream(folder_ / "ours/claim.json")
        << R"({"schema_version": 1, "claim": "c", "source": "s", "reason": "r",
               "kind": "rank_memory", "field": "max_allocated", "rival": "Other",
               "tolerance": {"mean_percent": 1, "max_percent": 1},
               "cases": [{"job": )"
        << job << R"(, "rival_gib": )" << rival_gib << R"(, "measured_mib": )" << measured_mib
        << "}]}";
    return check_claim("ours");
  }

  std::string complaint(const std::string& measured_mib) const {
    try {
      check(measured_mib, "1");
    } catch (const InputError& error) {
      return error.what();
    }
    return "";
  }

  fs::path folder_ =
      fs::path(::testing::TempDir()) /
      (std::string("claim_") + ::testing::UnitTest::GetInstance()->current_test_info()->name());
};

TEST_F(RankMemory, PutsTheRivalsErrorForTheFullestRankBesideOurs) {
  const ClaimResult result = check("[1024, 1024, 1024, 1024, 1024, 4096, 1024, 1024]", "3");
  EXPECT_FALSE(result.pass()) << "the job needs far more than 4 GiB";
  ASSERT_GE(result.lines.size(), 2U);
  // 3 GiB where 4 were measured.
  EXPECT_EQ(result.lines.end()[-2].expected, "Other 25.000 %");
  EXPECT_EQ(result.lines.end()[-1].expected, "Other 25.000 %");
}

TEST_F(RankMemory, RefusesPeaksThatAreNone) {
  for (const char* measured : {"[]", "[1024, 0]", "[1024, \"2048\"]"}) {
    EXPECT_THAT(complaint(measured),
                AllOf(HasSubstr("/cases/0/measured_mib"), HasSubstr("a list of numbers > 0")))
        << measured;
  }
}

TEST_F(RankMemory, RefusesMoreRanksThanTheJobHas) {
  EXPECT_THAT(complaint("[1, 1, 1, 1, 1, 1, 1, 1, 1]"),
              AllOf(HasSubstr("memory of rank: 8"), HasSubstr("8 cards in 2 stages")));
}

}  // namespace
}  // namespace tidemark::claim_test
