// The command as a user meets it: results, exit status, and one paragraph for every bad input.

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/support/command_run.h"

namespace tidemark::command_test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::StartsWith;

const fs::path kSource = TIDEMARK_SOURCE_DIR;
const fs::path kJob = kSource / "validation/jobs/dsv3-671b-bw1000-1024.json";
const fs::path kLog = kSource / "validation/dcu_logs/logs/BW1000_Qwen3-8B-dcu8-b32-s4096.log";

json job_json() { return json::parse(read_text(kJob)); }

class Command : public testing::Test {
 protected:
  fs::path folder_ = fresh_folder("cli");
  ~Command() override { fs::remove_all(folder_); }

  fs::path write(const std::string& name, const std::string& text) const {
    write_text(folder_ / name, text);
    return folder_ / name;
  }

  // Runs it three times: as text, as JSON, and with an output file, which must not appear.
  // Returns: the text.
  std::string refused(const std::string& arguments) const {
    const CommandRun text = run_tidemark(arguments);
    EXPECT_EQ(text.exit, 2);
    EXPECT_THAT(text.out, IsEmpty());
    EXPECT_THAT(text.err, StartsWith("tidemark: "));
    EXPECT_LT(text.err.size(), 1000U);

    const CommandRun as_json = run_tidemark(arguments + " --json");
    EXPECT_EQ(as_json.exit, 2);
    EXPECT_THAT(as_json.err, IsEmpty());
    const json error = json::parse(as_json.out).at("error");
    EXPECT_EQ(error.at("kind"), "bad_input");
    for (const json& violation : error.at("violations")) {
      EXPECT_FALSE(violation.at("place").get<std::string>().empty() &&
                   violation.at("file").get<std::string>().empty());
      EXPECT_FALSE(violation.at("found").get<std::string>().empty());
      EXPECT_FALSE(violation.at("allowed").get<std::string>().empty());
    }
    const fs::path outputs = folder_ / "outputs";
    fs::create_directory(outputs);
    EXPECT_EQ(run_tidemark(arguments + " -o " + (outputs / "result.json").string()).exit, 2);
    EXPECT_TRUE(fs::is_empty(outputs));
    return text.err;
  }
};

TEST_F(Command, SaysFirstWhetherTheJobFits) {
  const CommandRun run = run_tidemark("simulate " + kJob.string());
  EXPECT_EQ(run.exit, 0);
  EXPECT_THAT(run.out, StartsWith("Fits: stage 1 "));
  EXPECT_THAT(run.err, IsEmpty());
}

TEST_F(Command, ExitsWith3AndSaysWhatToChangeWhenItDoesNotFit) {
  const fs::path job = kSource / "validation/jobs/qwen3-30b-a3b-b64-s4096.json";
  const CommandRun run = run_tidemark("simulate " + job.string() + " --hardware bw1000");
  EXPECT_EQ(run.exit, 3);
  EXPECT_THAT(run.out, AllOf(StartsWith("Does not fit: stage 0 "),
                             HasSubstr("No single change is enough; the largest: ")));
}

TEST_F(Command, WritesTheJsonResultWhole) {
  const fs::path output = folder_ / "result.json";
  const CommandRun run =
      run_tidemark("simulate " + kJob.string() + " --json --lanes -o " + output.string());
  EXPECT_EQ(run.exit, 0);
  EXPECT_THAT(run.out, IsEmpty());
  const auto result = nlohmann::ordered_json::parse(read_text(output));
  EXPECT_EQ(result.begin().key(), "schema_version");
  EXPECT_EQ(result.at("provenance").at("inputs").at(0).at("path"), kJob.string());
  EXPECT_EQ(result.at("provenance").at("inputs").at(0).at("sha256").get<std::string>().size(), 64U);
  EXPECT_EQ(result.at("iteration").at("model_flops"), 2'095'575'394'815'049'728);
  EXPECT_EQ(result.at("stages").at(1).at("parameters_per_card"), 1'886'388'224);
  EXPECT_EQ(result.at("lanes").size(), 8U * 64U);
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), {}), 1);
}

TEST_F(Command, ComparesSchedules) {
  const std::string compare = "compare " + kJob.string() + " --schedules ";
  const CommandRun run = run_tidemark(compare + "1f1b,zb-h1,v-half --json");
  EXPECT_EQ(run.exit, 0) << run.err;
  const json schedules = json::parse(run.out).at("schedules");
  ASSERT_EQ(schedules.size(), 3U);
  // 8 stages: p - r microbatches in flight in both; H1 fills a part of the bubble.
  for (const std::size_t i : {std::size_t{0}, std::size_t{1}}) {
    EXPECT_EQ(schedules.at(i)["in_flight_peak_chunks"], json({8, 7, 6, 5, 4, 3, 2, 1}));
  }
  EXPECT_LT(schedules.at(1)["bubble_fraction"], schedules.at(0)["bubble_fraction"]);
  const json simulated = json::parse(run_tidemark("simulate " + kJob.string() + " --json").out);
  EXPECT_EQ(schedules.at(0)["time_ns"], simulated["iteration"]["time_ns"]);
  // The five layers of the first stage do not make two equal chunks.
  EXPECT_THAT(schedules.at(2)["refused"].get<std::string>(),
              HasSubstr("decoder_first_pipeline_num_layers"));
  EXPECT_THAT(run_tidemark(compare + "1f1b,zb-v").out, HasSubstr("zb-v is not possible: "));
  EXPECT_THAT(refused(compare + "gpipe"), HasSubstr("--schedules: \"gpipe\""));
}

TEST_F(Command, TakesTheModelOfAJobFromTheZoo) {
  json job = job_json();
  job["model"] = "deepseek-v3";
  const fs::path path = write("job.json", job.dump());
  const json from_zoo = json::parse(run_tidemark("simulate " + path.string() + " --json").out);
  const json given = json::parse(run_tidemark("simulate " + kJob.string() + " --json").out);
  EXPECT_EQ(from_zoo.at("stages"), given.at("stages"));
  EXPECT_EQ(from_zoo.at("provenance").at("inputs").at(1).at("path"),
            (kSource / "models/zoo/deepseek-v3.json").string());
}

TEST_F(Command, GivesTheSameBytesTwice) {
  const std::string arguments = "simulate " + kJob.string() + " --json --lanes";
  EXPECT_EQ(run_tidemark(arguments).out, run_tidemark(arguments).out);
}

TEST_F(Command, ExplainsTheStageThatIsAskedFor) {
  const CommandRun run = run_tidemark("explain " + kJob.string() + " --stage 7 --json");
  EXPECT_EQ(run.exit, 0);
  const json explanation = json::parse(run.out).at("explanation");
  EXPECT_EQ(explanation.at("stage"), 7);
  EXPECT_EQ(explanation.at("kept_by_layer").size(), 8U);
  EXPECT_FALSE(explanation.at("remedies").empty());
}

TEST_F(Command, TakesMegatronArgumentsInPlaceOfAJob) {
  const CommandRun run = run_tidemark("simulate --megatron-args " + kLog.string() +
                                      " --hardware bw1000 --vocab-size 151669 --json");
  EXPECT_EQ(run.exit, 0);
  EXPECT_EQ(json::parse(run.out).at("stages").at(0).at("parameters_per_card"), 4'094'997'504);
}

TEST_F(Command, ComparesWithALog) {
  const CommandRun run =
      run_tidemark("validate --log " + kLog.string() + " --hardware bw1000 --vocab-size 151669");
  EXPECT_EQ(run.exit, 0);
  EXPECT_THAT(run.out, HasSubstr("measured 4.867 s (median of 13 iterations, from number 3)"));
  EXPECT_THAT(run.out, HasSubstr("2 of 2 printed counts are equal"));
}

TEST_F(Command, ExitsWith5WhenAClaimDoesNotHold) {
  fs::create_directory(folder_ / "off_by_one");
  write("off_by_one/claim.json", R"({
    "schema_version": 1, "claim": "wrong", "source": "none", "reason": "none",
    "kind": "schedule", "tolerance": {"absolute": 0},
    "cases": [{"stages": 1, "microbatches": 1, "forward_ns": 1, "backward_ns": 2,
               "makespan_ns": 4, "in_flight": [1]}]})");
  setenv("TIDEMARK_VALIDATION_DIR", folder_.c_str(), 1);
  const CommandRun run = run_tidemark("validate");
  unsetenv("TIDEMARK_VALIDATION_DIR");
  EXPECT_EQ(run.exit, 5);
  EXPECT_THAT(run.out, AllOf(StartsWith("FAIL  off_by_one"), HasSubstr("0 of 1 claims hold.")));
}

TEST_F(Command, HelpListsCommandsAndFlags) {
  EXPECT_THAT(run_tidemark("--help").out, HasSubstr("tidemark validate"));
  EXPECT_THAT(run_tidemark("simulate --help").out, HasSubstr("--trace FILE"));
  EXPECT_EQ(run_tidemark("").exit, 2);
}

// --- bad input ----------------------------------------------------------------------------------

TEST_F(Command, RefusesHeadsThatTensorParallelismDoesNotDivide) {
  json job = job_json();
  job["parallel"]["tensor_model_parallel_size"] = 3;
  const std::string error = refused("simulate " + write("job.json", job.dump()).string());
  EXPECT_THAT(error, AllOf(HasSubstr("job.json: /"), HasSubstr("128"), HasSubstr("expected")));
}

TEST_F(Command, RefusesExpertsThatExpertParallelismDoesNotDivide) {
  json job = job_json();
  job["model"]["num_experts"] = 250;
  EXPECT_THAT(refused("simulate " + write("job.json", job.dump()).string()),
              AllOf(HasSubstr("job.json: /parallel/expert_model_parallel_size"), HasSubstr("250")));
}

TEST_F(Command, RefusesAnUnknownKeyAndNamesTheNearest) {
  json job = job_json();
  job["batch"]["micro_batch_sise"] = 1;
  EXPECT_THAT(refused("simulate " + write("job.json", job.dump()).string()),
              AllOf(HasSubstr("/batch/micro_batch_sise"), HasSubstr("micro_batch_size")));
}

TEST_F(Command, RefusesANegativeBandwidth) {
  json profile = json::parse(read_text(kSource / "hw_profiles/data/h20/profile.json"));
  profile["fabric"]["intra_node_gb_per_s"]["value"] = -5;
  EXPECT_THAT(refused("simulate " + kJob.string() + " --hardware " +
                      write("profile.json", profile.dump()).string()),
              AllOf(HasSubstr("profile.json: /fabric/intra_node_gb_per_s"), HasSubstr("-5")));
}

TEST_F(Command, RefusesATruncatedFile) {
  const std::string text = read_text(kJob);
  EXPECT_THAT(refused("simulate " + write("job.json", text.substr(0, text.size() / 2)).string()),
              HasSubstr("job.json: line "));
}

TEST_F(Command, RefusesTwoGigabytesOfGarbage) {
  const fs::path garbage = write("garbage", "");
  fs::resize_file(garbage, std::uintmax_t{2} << 30);  // sparse
  for (const char* use : {"simulate ", "simulate --hardware h20 --megatron-args ",
                          "validate --hardware h20 --log "}) {
    EXPECT_THAT(refused(use + garbage.string()), HasSubstr("garbage: ")) << use;
  }
}

// A log that does not name its vocabulary still prints parameters: 151,669 tokens are padded to
// 151,808 = 1,186 * 128 * TP2 rows of 4,096 in both embedding and output.
TEST_F(Command, DeducesTheVocabularyOfALogFromItsParameters) {
  const CommandRun run = run_tidemark("validate --log " + kLog.string() + " --hardware bw1000");
  EXPECT_EQ(run.exit, 0);
  EXPECT_THAT(run.out, HasSubstr("warning: padded vocabulary 151808 deduced"));
  EXPECT_THAT(run.out, HasSubstr("2 of 2 printed counts are equal"));
}

TEST_F(Command, WarnsThatRoutingIsSimulatedAsBalanced) {
  json job = job_json();
  job["options"]["moe_pad_expert_input_to_capacity"] = false;
  const fs::path file = write("dropless.json", job.dump());
  EXPECT_THAT(run_tidemark("simulate " + file.string()).out, HasSubstr("routing is simulated"));
  EXPECT_THAT(run_tidemark("simulate " + kJob.string()).out,
              Not(HasSubstr("routing is simulated")));
}

TEST_F(Command, RefusesALogWithoutItsArguments) {
  const fs::path log =
      write("train.log", " iteration  1/ 5 | elapsed time per iteration (ms): 7 |\n");
  EXPECT_THAT(refused("validate --log " + log.string() + " --hardware h20"),
              AllOf(HasSubstr("train.log"), HasSubstr("arguments")));
}

TEST_F(Command, RefusesALogWhoseRanksAreNotInItsJob) {
  const fs::path log =
      write("train.log",
            read_text(kLog) +
                "[Rank 8] (after 1 iterations) memory (MB) | allocated: 1.0 | max allocated: "
                "1.0 | reserved: 2.0 | max reserved: 2.0\n");
  EXPECT_THAT(refused("validate --log " + log.string() + " --hardware bw1000 --vocab-size 151669"),
              AllOf(HasSubstr("rank: 8"), HasSubstr("8 cards")));
}

TEST_F(Command, RefusesAMegatronFlagWithoutItsValue) {
  const fs::path script =
      write("train.sh", "torchrun pretrain_gpt.py --num-layers 2 --hidden-size --swiglu\n");
  EXPECT_THAT(refused("simulate --megatron-args " + script.string() + " --hardware h20"),
              AllOf(HasSubstr("train.sh"), HasSubstr("hidden-size")));
}

TEST_F(Command, RefusesItsOwnFlagsWhenTheyAreWrong) {
  EXPECT_THAT(refused("simulate " + kJob.string() + " --hardware"),
              AllOf(HasSubstr("--hardware"), HasSubstr("no value")));
  EXPECT_THAT(refused("simulate " + kJob.string() + " --hardware --lanes"),
              AllOf(HasSubstr("--hardware"), HasSubstr("no value")));
  EXPECT_THAT(refused("simulate " + kJob.string() + " --lane"), HasSubstr("--lanes"));
  EXPECT_THAT(refused("simulate " + kJob.string() + " --cards 8"), HasSubstr("--cards"));
  EXPECT_THAT(refused("explain " + kJob.string() + " --stage 8"), HasSubstr("from 0 to 7"));
  EXPECT_THAT(refused("simulate " + kJob.string() + " --hardware h2O"), HasSubstr("h20"));
  EXPECT_THAT(refused("validate no_such_claim"), HasSubstr("memory_dcu_logs"));
  EXPECT_THAT(refused("simulat"), HasSubstr("simulate"));
}

TEST_F(Command, RefusesAPlaceItCannotWriteTo) {
  const CommandRun run = run_tidemark("simulate " + kJob.string() + " --trace /no/such/trace.json");
  EXPECT_EQ(run.exit, 2);
  EXPECT_THAT(run.err, HasSubstr("/no/such/trace.json"));
}

// A run of the small job of the golden tests, with experts, under skewed routing.
class Runs : public Command {
 protected:
  fs::path job(const json& changes = json::object()) const {
    json job = json::parse(read_text(kSource / "tests/golden/moe_expert_parallel.json"));
    job["hardware"] = (kSource / "tests/golden/toy/profile.json").string();
    job["routing"] = {{"workload", "dirichlet"}, {"alpha", 4}};
    job.merge_patch(changes);
    return write("run.json", job.dump());
  }
  // Of eight microbatches.
  // Of two iterations with two microbatches through one MoE layer each (kDecisionNs).
  static constexpr std::int64_t kDeciding = std::int64_t{2} * 2 * 25'000;

  static json two_stages() {
    return {{"model", {{"num_layers", 4}}},
            {"parallel", {{"world_size", 4}, {"pipeline_model_parallel_size", 2}}},
            {"batch", {{"global_batch_size", 16}}}};
  }
};

TEST_F(Runs, AreTheSameBytesTwiceAndDifferWithTheSeed) {
  const std::string path = job().string();
  const auto iterations = [](const std::string& arguments) {
    const CommandRun run = run_tidemark("simulate " + arguments + " --iterations 3 --json");
    EXPECT_EQ(run.exit, 0) << run.err;
    return json::parse(run.out).at("iterations");
  };
  const json once = iterations(path);
  EXPECT_EQ(once.size(), 3u);
  EXPECT_EQ(iterations(path), once);
  EXPECT_NE(iterations(path + " --seed 2"), once);
}

TEST_F(Runs, AblateThePlannerOnTheSameRouting) {
  const std::string compare = "compare " + job(two_stages()).string() + " --iterations 2 ";
  const CommandRun run = run_tidemark(compare + "--ablation --json");
  ASSERT_EQ(run.exit, 0) << run.err;
  const json parts = json::parse(run.out).at("ablation");
  ASSERT_EQ(parts.size(), 4u);
  EXPECT_EQ(parts[0]["speed"], 1);
  for (const json& part : parts) {
    EXPECT_LE(part["exposed_expert_communication_ns"], part["expert_communication_ns"]);
    EXPECT_LE(part["exposed_copies_ns"], part["copies_ns"]);
    EXPECT_DOUBLE_EQ(part["speed"],
                     parts[0]["iteration_ns"].get<double>() / part["iteration_ns"].get<double>());
  }
  // Full recompute runs forwards twice.
  EXPECT_GT(parts[0]["computing_ns"], parts[1]["computing_ns"]);
  EXPECT_GE(parts[3]["speed"], parts[2]["speed"]);

  const json same =
      json::parse(run_tidemark(compare + "--policies full-recompute --json").out)["policies"][0];
  EXPECT_EQ(parts[0]["iteration_ns"], same["run"]["total_ns"].get<std::int64_t>() / 2);
  EXPECT_THAT(refused(compare + "--ablation --policies adaptive"), HasSubstr("--ablation"));
}

TEST_F(Runs, ExplainACombinedSlot) {
  json combined = two_stages();
  combined["parallel"]["pipeline_schedule"] = "combined-1f1b";
  const CommandRun run = run_tidemark("explain " + job(combined).string() + " --slot --json");
  ASSERT_EQ(run.exit, 0) << run.err;
  const json slot = json::parse(run.out).at("slot");
  EXPECT_LE(slot["busiest_stream_ns"], slot["time_ns"]);
  EXPECT_EQ(slot["critical_path"].back()["end_ns"], slot["time_ns"]);
  EXPECT_THAT(refused("explain " + job().string() + " --slot"), HasSubstr("combined-1f1b"));
}

TEST_F(Runs, ComparePoliciesOnTheSameRouting) {
  const std::string path = job().string();
  const CommandRun run = run_tidemark("compare " + path +
                                      " --policies keep-everything,full-recompute,adaptive"
                                      " --iterations 2 --json");
  ASSERT_EQ(run.exit, 0) << run.err;
  const json policies = json::parse(run.out).at("policies");
  ASSERT_EQ(policies.size(), 3u);
  for (const json& policy : policies) {
    EXPECT_EQ(policy.at("iterations")[0].at("imbalance"),
              policies[0].at("iterations")[0].at("imbalance"));
  }
  const auto time = [&](std::size_t p) {
    return policies[p].at("run").at("total_ns").get<std::int64_t>();
  };
  EXPECT_LT(time(0), time(1)) << "recomputing takes time";
  EXPECT_EQ(time(2), time(0) + kDeciding) << "where everything fits, nothing is given up";
}

TEST_F(Runs, OfAPlanAreThoseOfThePolicyThatItWasMadeFrom) {
  const std::string path = job().string();
  const std::string plan = (folder_ / "plan.json").string();
  const CommandRun made = run_tidemark("plan " + path + " --iterations 2 -o " + plan);
  ASSERT_EQ(made.exit, 0) << made.err;
  EXPECT_THAT(made.out, StartsWith("Safe up to "));
  const json file = json::parse(read_text(plan));
  const json trials = file.at("trials");
  EXPECT_EQ(trials.at("iterations"), 2);
  EXPECT_EQ(trials.at("seed"), 2) << "another than the bound was taken from";
  const auto simulated = file.at("predictions").at("balanced_iteration_ns").get<double>();
  const auto priced = file.at("predictions").at("priced_balanced_iteration_ns").get<double>();
  EXPECT_NEAR(priced / simulated, 1, 0.0156);

  const auto iterations = [&](const std::string& policy) {
    const CommandRun run =
        run_tidemark("simulate " + path + " --iterations 2 --json --policy " + policy);
    EXPECT_EQ(run.exit, 0) << run.err;
    return json::parse(run.out).at("iterations");
  };
  EXPECT_EQ(iterations("plan:" + plan), iterations("adaptive"));
}

TEST_F(Runs, PlansSayWhatTheyLackAndTheSmallestBudgetIsEnough) {
  const std::string path = job().string();
  const auto plan = [&](const std::string& more, int exit) {
    const CommandRun run = run_tidemark("plan " + path + " --iterations 1 --json " + more);
    EXPECT_EQ(run.exit, exit) << run.err;
    return json::parse(run.out);
  };
  const json whole = plan("", 0);
  const auto bytes = whole.at("smallest_safe_budget_bytes").get<double>();
  const double gib = bytes / (1 << 30);
  EXPECT_EQ(plan("--budget " + std::to_string(gib + 1e-5), 0).at("verdict").at("feasible"), true);
  const json less = plan("--budget " + std::to_string(gib - 0.01), 3);
  EXPECT_EQ(less.at("verdict").at("feasible"), false);
  EXPECT_FALSE(less.contains("policy"));
}

TEST_F(Runs, LogWhatAPlanDecided) {
  // It keeps 102 GiB if it may.
  const std::string path = (kSource / "validation/jobs/qwen3-30b-a3b-b64-s4096.json").string();
  const std::string file = (folder_ / "plan.json").string();
  ASSERT_EQ(run_tidemark("plan " + path + " --iterations 1 --budget 90 -o " + file).exit, 0);
  const auto simulate = [&](const std::string& policy) {
    return json::parse(
        run_tidemark("simulate " + path + " --iterations 2 --json --policy " + policy).out);
  };
  EXPECT_FALSE(simulate("keep-everything").contains("decisions")) << "nothing to decide";
  EXPECT_EQ(simulate("adaptive").at("decisions").at("changed_iterations"), 0) << "all fits";

  const json log = simulate("plan:" + file).at("decisions");
  ASSERT_EQ(log.at("changed_iterations"), 1) << "balanced, so decided alike in the second";
  EXPECT_EQ(log.at("iterations")[0].at("iteration"), 0);
  const json stages = json::parse(read_text(file)).at("policy").at("stages");
  for (const json& group : log.at("iterations")[0].at("groups")) {
    // What was decided is what some rung of the stage's ladder names.
    bool planned = false;
    for (const json& rung : stages[group.at("stage").get<std::size_t>()].at("rungs")) {
      for (const json& action : rung.at("actions")) {
        planned |= action.at("operator") == group.at("operator") &&
                   action.at("action") == group.at("action");
      }
    }
    EXPECT_TRUE(planned) << group;
    EXPECT_GT(group.at("taken"), 0);
    EXPECT_LE(group.at("taken"), group.at("of"));
  }
}

TEST_F(Runs, WriteEveryCardsMemory) {
  const std::filesystem::path csv = job().parent_path() / "memory.csv";
  const CommandRun run = run_tidemark("simulate " + job().string() +
                                      " --iterations 2 --json --memory-csv " + csv.string());
  ASSERT_EQ(run.exit, 0) << run.err;
  std::ifstream in(csv);
  std::string line;
  std::getline(in, line);
  EXPECT_EQ(line, "iteration,attempt,unit,stage,lane,peak_allocated_bytes");
  std::int64_t lines = 0;
  std::vector<std::int64_t> most(2, 0);  // [iteration]
  while (std::getline(in, line)) {
    ++lines;
    const auto bytes = std::stoll(line.substr(line.rfind(',') + 1));
    std::int64_t& highest = most.at(static_cast<std::size_t>(std::stoll(line)));
    highest = std::max<std::int64_t>(highest, bytes);
  }
  const json result = json::parse(run.out);
  for (std::size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(result.at("iterations")[i].at("peak_allocated_bytes"), most[i]);
  }
  EXPECT_EQ(result.at("cards").at("peak_allocated_max_bytes"), std::max(most[0], most[1]));
  const json parallel =
      json::parse(read_text(kSource / "tests/golden/moe_expert_parallel.json")).at("parallel");
  EXPECT_EQ(lines, 2 * parallel.at("world_size").get<std::int64_t>());
}

TEST_F(Runs, CompareTheBaselines) {
  const CommandRun run =
      run_tidemark("compare " + job().string() +
                   " --policies keep-everything,megatron-best,adapipe:1.2,adaptive-recompute,"
                   "bagualu2-offload,adaptive:3 --iterations 2 --json");
  ASSERT_EQ(run.exit, 0) << run.err;
  const json policies = json::parse(run.out).at("policies");
  ASSERT_EQ(policies.size(), 6u);
  const auto bound = policies[0].at("run").at("total_ns").get<std::int64_t>();
  for (const json& policy : policies) {
    const std::int64_t time = bound + (policy.at("policy") == "adaptive:3" ? kDeciding : 0);
    EXPECT_EQ(policy.at("run").at("total_ns"), time)
        << policy.at("policy") << ": where everything fits, nothing is given up";
    EXPECT_DOUBLE_EQ(policy.at("run").at("of_bound").get<double>(),
                     static_cast<double>(bound) / static_cast<double>(time));
  }
}

TEST_F(Runs, SayWhatTheRecomputeBaselinesDid) {
  const CommandRun run = run_tidemark("compare " + job().string() +
                                      " --policies adapipe,adaptive-recompute --iterations 2");
  ASSERT_EQ(run.exit, 0) << run.err;
  EXPECT_THAT(run.out, HasSubstr("adapipe: keeps the job's split of layers, since"));
  EXPECT_THAT(run.out, HasSubstr("adaptive-recompute: 0 of 2 iterations rescued by swapping"));
}

// At the least ratio cards give cached blocks back; all are alike, so what fits one fits all.
TEST(CompareCommand, TunesKwaisRatioForItsFork) {
  const std::string kwai = (kSource / "validation/kwai_atc24/job.json").string();
  const CommandRun run =
      run_tidemark("compare " + kwai + " --policies ratio-offload:0.1,kwai-best --json");
  ASSERT_EQ(run.exit, 0) << run.err;
  const json policies = json::parse(run.out).at("policies");
  EXPECT_FALSE(policies[0].at("verdict").at("fits").get<bool>());
  EXPECT_TRUE(policies[1].at("verdict").at("fits").get<bool>());
  EXPECT_THAT(policies[1].at("notes").at(0).get<std::string>(), HasSubstr("the least that fits"));
  for (const json& stage : policies[1].at("stages")) {
    EXPECT_EQ(stage.at("reserved_bound_bytes"), stage.at("peak_reserved_bytes")) << stage;
  }
  const CommandRun other = run_tidemark("compare " + kJob.string() + " --policies kwai-best");
  EXPECT_EQ(other.exit, 2);
  EXPECT_THAT(other.err, HasSubstr("/frameworks/fork"));
}

TEST_F(Runs, PayForAStepThatOverflowsItsPagedStashTwice) {
  const std::string simulate = "simulate " + job().string() + " --iterations 2 --json --policy ";
  const auto total = [&](const std::string& policy, bool run_again) {
    const CommandRun run = run_tidemark(simulate + policy);
    EXPECT_EQ(run.exit, 0) << run.err;
    const json result = json::parse(run.out);
    EXPECT_EQ(result.at("iterations")[1].contains("run_again"), run_again);
    return result.at("run").at("total_ns").get<std::int64_t>();
  };
  const std::int64_t once = total("paged-stash:1000:1000", false);
  EXPECT_EQ(total("paged-stash:0.001", true), once + total("keep-everything", false));
}

TEST_F(Runs, OnARecordedTraceAdaptAndArePlannedButNotRehearsed) {
  const std::string trace = (folder_ / "run.trace").string();
  ASSERT_EQ(run_tidemark("trace generate " + trace +
                         " --ep 2 --experts 4 --topk 2 --tokens 256 --moe-layers 1 --microbatches 2"
                         " --workload dirichlet --parameters alpha=4 --iterations 4")
                .exit,
            0);
  json recorded = {{"routing", {{"file", trace}, {"workload", nullptr}, {"alpha", nullptr}}}};
  const std::string path = job(recorded).string();
  EXPECT_EQ(run_tidemark("simulate " + path + " --policy adaptive --iterations 4").exit, 0);
  const CommandRun plan = run_tidemark("plan " + path + " --json");
  ASSERT_EQ(plan.exit, 0) << plan.err;
  const json trials = json::parse(plan.out).at("trials");
  EXPECT_EQ(trials.at("first_iteration"), 2) << "the bound is of the first half";
  EXPECT_EQ(trials.at("iterations"), 2);
  EXPECT_THAT(refused("simulate " + path + " --policy adaptive:5"), HasSubstr("rehearse"));
}

TEST_F(Runs, RefuseWhatMakesNoSense) {
  const std::string good = job().string();
  EXPECT_THAT(refused("compare " + good + " --policies magic"), HasSubstr("full-recompute"));
  EXPECT_THAT(refused("simulate " + good + " --policy plan:missing.json"),
              HasSubstr("missing.json"));
  EXPECT_THAT(refused("plan " + good + " --budget 0"), HasSubstr("--budget"));
  EXPECT_THAT(refused("plan " + good + " --risk 0"), HasSubstr("--risk"));
  EXPECT_THAT(refused("simulate " + good + " --policy adaptive:x"), HasSubstr("adaptive:N"));
  EXPECT_THAT(refused("simulate " + good + " --policy adapipe:0"), HasSubstr("adapipe:F"));
  EXPECT_THAT(refused("simulate " + good + " --policy paged-stash:1:0"),
              HasSubstr("paged-stash:F:B"));
  EXPECT_THAT(refused("simulate " + kJob.string() + " --policy paged-stash:1"),
              HasSubstr("an expert capacity of its own"));
  EXPECT_THAT(refused("simulate " + good + " --iterations 0"), HasSubstr("iterations"));
  EXPECT_THAT(refused("simulate " + good + " --policy adaptive --risk 1"), HasSubstr("--risk"));
  EXPECT_THAT(refused("simulate " + good + " --trace t.json"), HasSubstr("--trace"));
  const json interval = {
      {"run", {{"iterations", 5}, {"checkpoint_interval", 0}, {"restart_seconds", 1}}}};
  EXPECT_THAT(refused("simulate " + job(interval).string()), HasSubstr("checkpoint_interval"));
  const json workload = {{"routing", {{"workload", "dirichlet"}, {"alpha", -1}}}};
  EXPECT_THAT(refused("simulate " + job(workload).string()), HasSubstr("alpha"));
}

}  // namespace
}  // namespace tidemark::command_test
