#include "tools/chrome_trace.h"

#include <map>
#include <set>
#include <sstream>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "hw_profiles/hardware_profile.h"
#include "models/job_reader.h"

namespace tidemark::chrome_trace_test {
namespace {

using nlohmann::json;

class ChromeTrace : public testing::Test {
 protected:
  const std::string golden_ = std::string(TIDEMARK_SOURCE_DIR) + "/tests/golden/";
  const Job job_ = read_job(golden_ + "dense_two_stages.json");
  const HardwareProfile profile_ = load_hardware_profile(golden_ + "toy/profile.json");
  const Simulation simulation_ = simulate(job_, profile_, balanced_routing(job_));
  json events_;

  void SetUp() override {
    std::ostringstream out;
    write_chrome_trace(out, job_, simulation_);
    events_ = json::parse(out.str()).at("traceEvents");
  }
};

TEST_F(ChromeTrace, EveryTransferIsAnArrowBetweenNeighbours) {
  std::map<std::int64_t, json> starts;
  std::map<std::int64_t, json> ends;
  for (const json& e : events_) {
    if (e["ph"] != "s" && e["ph"] != "f") continue;
    EXPECT_TRUE((e["ph"] == "s" ? starts : ends).emplace(e["id"], e).second);
  }
  EXPECT_EQ(starts.size(), 2U * 4U);  // an activation and a gradient for each microbatch
  ASSERT_EQ(starts.size(), ends.size());
  for (const auto& [id, start] : starts) {
    ASSERT_TRUE(ends.contains(id));
    EXPECT_EQ(start["pid"].get<int>() + ends[id]["pid"].get<int>(), 1);
    EXPECT_LE(start["ts"], ends[id]["ts"]);
  }
}

TEST_F(ChromeTrace, EventsOfAStreamDoNotOverlapAndEndWithTheIteration) {
  std::map<std::pair<int, int>, std::map<double, double>> threads;  // start -> end, us
  double last = 0;
  for (const json& e : events_) {
    if (e["ph"] != "X") continue;
    const double start = e["ts"];
    const double end = start + e["dur"].get<double>();
    threads[{e["pid"], e["tid"]}][start] = end;
    last = std::max(last, end);
  }
  for (const auto& [thread, spans] : threads) {
    double free = 0;
    for (const auto& [start, end] : spans) {
      EXPECT_GE(start, free - 1e-6);
      free = end;
    }
  }
  EXPECT_NEAR(last, static_cast<double>(simulation_.result.iteration.time_ns) * 1e-3, 1e-3);
}

TEST_F(ChromeTrace, TheHighestCounterIsThePeak) {
  std::map<std::size_t, std::int64_t> highest;
  for (const json& e : events_) {
    if (e["ph"] != "C") continue;
    std::int64_t& bytes = highest[e["pid"]];
    bytes = std::max(bytes, e["args"]["bytes"].get<std::int64_t>());
  }
  for (std::size_t i = 0; i < simulation_.result.stages.size(); ++i) {
    const StageResult& s = simulation_.result.stages[i];
    const LanePeak& peak = s.memory.lanes[static_cast<std::size_t>(s.hottest_lane)];
    EXPECT_EQ(highest[i], (s.resident_bytes + peak.bytes).value);
  }
}

}  // namespace
}  // namespace tidemark::chrome_trace_test
