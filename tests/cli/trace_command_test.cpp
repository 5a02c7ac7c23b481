// tidemark trace as a user meets it.

#include <filesystem>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/support/command_run.h"

namespace tidemark::trace_command_test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;

const fs::path kTable = fs::path(TIDEMARK_SOURCE_DIR) / "validation/esft_routing/counts.csv";

class TraceCommand : public testing::Test {
 protected:
  fs::path folder_ = fresh_folder("trace");
  ~TraceCommand() override { fs::remove_all(folder_); }
  std::string path(const std::string& name) const { return (folder_ / name).string(); }

  void generate(const std::string& name, const std::string& more) const {
    const CommandRun run = run_tidemark(
        "trace generate " + path(name) +
        " --ep 8 --experts 64 --topk 4 --tokens 4096 --moe-layers 3 --microbatches 2 --seed 5 " +
        more);
    EXPECT_EQ(run.exit, 0) << run.err;
  }
  void refused(const std::string& arguments, const std::string& why) const {
    const CommandRun run = run_tidemark("trace " + arguments);
    EXPECT_EQ(run.exit, 2);
    EXPECT_THAT(run.err, HasSubstr(why));
  }
};

TEST_F(TraceCommand, ImportsRealCountsAndDescribesThem) {
  const std::string trace = path("law.trace");
  EXPECT_EQ(run_tidemark("trace import counts " + kTable.string() + " " + trace +
                         " --ep 8 --where task=law")
                .exit,
            0);
  const CommandRun run = run_tidemark("trace describe " + trace + " --ep 8,16,64 --json");
  const json result = json::parse(run.out);
  EXPECT_EQ(result.at("trace").at("moe_layers"), 26);
  // The largest of the table's column ep64_rank_max_over_mean for this task.
  EXPECT_NEAR(result.at("ranks").at(2).at("max").get<double>(), 6.8686, 1e-4);
}

TEST_F(TraceCommand, GeneratesTheSameBytesTwice) {
  generate("a.trace", "--iterations 5 --workload dirichlet --parameters alpha=20");
  generate("b.trace", "--iterations 5 --workload dirichlet --parameters alpha=20");
  EXPECT_EQ(read_text(path("a.trace")), read_text(path("b.trace")));
}

TEST_F(TraceCommand, FitsATrace) {
  generate("a.trace", "--iterations 40 --workload dirichlet --parameters alpha=20");
  const CommandRun run = run_tidemark("trace fit " + path("a.trace") + " --json");
  EXPECT_EQ(run.exit, 0);
  const json result = json::parse(run.out);
  EXPECT_EQ(result.at("workload").at("workload"), "dirichlet");
  EXPECT_EQ(result.at("held_out_iterations"), 20);
}

TEST_F(TraceCommand, DrawsAPicture) {
  generate("a.trace", "--iterations 20 --workload burst");
  const CommandRun run =
      run_tidemark("trace describe " + path("a.trace") + " --plot " + path("a.png"));
  EXPECT_EQ(run.exit, 0) << run.err;
  EXPECT_EQ(read_text(path("a.png")).substr(1, 3), "PNG");
}

TEST_F(TraceCommand, RefusesBadInputAndLeavesNothing) {
  refused("", "nothing to do");
  refused("show x", "import, generate, describe or fit");
  refused("describe " + path("none.trace"), "cannot be opened");
  refused("import pickle " + kTable.string() + " " + path("x.trace") + " --ep 8", "telemetry");
  refused("import counts " + kTable.string() + " " + path("x.trace") + " --ep 8", "again");
  refused("generate " + path("x.trace") +
              " --workload dirichlet --parameters beta=1 --ep 8 "
              "--experts 64 --topk 4 --tokens 64 --moe-layers 1 --microbatches 1 --iterations 1",
          "beta: unknown key");
  refused("describe " + kTable.string(), "byte ");
  refused("describe x --seed 3", "--seed: given to trace describe");
  EXPECT_TRUE(fs::is_empty(folder_));
}

TEST_F(TraceCommand, RefusesATruncatedTraceWithTheByte) {
  generate("a.trace", "--iterations 5 --workload multinomial");
  const std::string bytes = read_text(path("a.trace"));
  write_text(path("cut.trace"), bytes.substr(0, bytes.size() - 7));
  refused("describe " + path("cut.trace"), "byte " + std::to_string(bytes.size() - 7));
}

}  // namespace
}  // namespace tidemark::trace_command_test
