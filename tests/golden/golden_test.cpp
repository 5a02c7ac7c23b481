// Whole results of small jobs on a card of round numbers, compared structurally and without
// provenance. UPDATE_GOLDEN=1 rewrites the expected files; review the difference.
//
// Some of the numbers by hand:
//
// dense_two_stages: two layers of width 128 over two stages, 4 microbatches of 128 tokens.
//   weights of a layer: qkv 384 * 128 + proj 128 * 128 + fc1 512 * 128 + fc2 128 * 256
//                       + two norms of 128                                          =   164,096
//   stage 0: + embedding 512 * 128                                                  =   229,632
//   stage 1: + final norm 128 + output 128 * 512                                    =   229,760
//   in flight: min(4, 2 - r) = 2 and 1;  tokens: 4 * 128 = 512
//   model FLOPs: 6 a token for each matrix weight, and causal attention,
//   6 * 512 * (2 * 163,840 + 65,536) + 2 * 6 * 512 * 128 * 128                      = 1,308,622,848
//
// moe_expert_parallel: one layer, 4 experts of width 64, two of them on each of two cards.
//   a card: embedding and output 2 * 65,536, qkv and proj 65,536, router 4 * 128, three norms 384,
//   two experts of 128 * 128 + 128 * 64 each 24,576                                 =   246,656
//   each card sends 128 tokens * top-2 = 256 rows and receives as many: two lanes alike.

#include <cstdlib>
#include <string>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/support/command_run.h"

namespace tidemark {
namespace {

namespace fs = std::filesystem;

class Golden : public testing::TestWithParam<const char*> {};

TEST_P(Golden, SimulationIsAsReviewed) {
  const fs::path folder = fs::path(TIDEMARK_SOURCE_DIR) / "tests/golden";
  setenv("TIDEMARK_DATA_DIR", folder.c_str(), 1);
  const std::string name = GetParam();
  const fs::path expected = folder / (name + ".expected.json");
  const CommandRun run =
      run_tidemark("simulate " + (folder / (name + ".json")).string() + " --json --lanes");
  ASSERT_EQ(run.exit, 0) << run.err;
  nlohmann::ordered_json result = nlohmann::ordered_json::parse(run.out);
  EXPECT_EQ(result.erase("provenance"), 1U);
  if (std::getenv("UPDATE_GOLDEN") != nullptr) {
    write_text(expected, result.dump(2) + "\n");
    FAIL() << "rewrote " << expected << ": review the difference, then run without UPDATE_GOLDEN";
  }
  const nlohmann::json difference =
      nlohmann::json::diff(nlohmann::json::parse(read_text(expected)), nlohmann::json(result));
  EXPECT_EQ(difference, nlohmann::json::array()) << difference.dump(2);
}

INSTANTIATE_TEST_SUITE_P(Jobs, Golden, testing::Values("dense_two_stages", "moe_expert_parallel"),
                         [](const auto& job) { return std::string(job.param); });

}  // namespace
}  // namespace tidemark
