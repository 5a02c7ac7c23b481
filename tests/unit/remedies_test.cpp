#include "planner/remedies.h"

#include <algorithm>
#include <optional>

#include <gtest/gtest.h>

#include "models/job_reader.h"

namespace tidemark::remedies_test {
namespace {

std::optional<Remedy> find(const std::vector<Remedy>& remedies, const std::string& flag) {
  const auto it = std::find_if(remedies.begin(), remedies.end(), [&](const Remedy& r) {
    return r.flags.find(flag) != std::string::npos;
  });
  return it == remedies.end() ? std::nullopt : std::optional(*it);
}

class Remedies : public testing::Test {
 protected:
  const std::string golden_ = std::string(TIDEMARK_SOURCE_DIR) + "/tests/golden/";
  const HardwareProfile profile_ = load_hardware_profile(golden_ + "toy/profile.json");
  Job job_ = read_job(golden_ + "dense_two_stages.json");

  std::vector<Remedy> found() const {
    const Simulation simulation = simulate(job_, profile_, balanced_routing(job_));
    return find_remedies(job_, profile_, simulation, simulation.result.tightest_stage());
  }
};

TEST_F(Remedies, AreSortedAndFreeSomething) {
  const std::vector<Remedy> remedies = found();
  ASSERT_FALSE(remedies.empty());
  EXPECT_TRUE(std::is_sorted(remedies.begin(), remedies.end(),
                             [](const Remedy& a, const Remedy& b) { return a.freed > b.freed; }));
  EXPECT_GT(remedies.back().freed, Bytes(0));
}

TEST_F(Remedies, WhatIsOnIsNotOffered) {
  job_.layout.cards = 4;  // two data-parallel cards
  job_.options.optimizer.distributed = false;
  const std::optional<Remedy> sharded = find(found(), "--use-distributed-optimizer");
  ASSERT_TRUE(sharded);
  EXPECT_TRUE(sharded->simulated.has_value());
  job_.options.optimizer.distributed = true;
  EXPECT_FALSE(find(found(), "--use-distributed-optimizer"));
}

TEST_F(Remedies, ImpossibleLayoutsAreNotOffered) {
  // 2 layers do not go over 4 stages, 2 cards not over TP 2 * PP 2.
  EXPECT_FALSE(find(found(), "--pipeline-model-parallel-size"));
  EXPECT_FALSE(find(found(), "--tensor-model-parallel-size"));
}

TEST_F(Remedies, RecomputeIsAnUpperBound) {
  const std::optional<Remedy> full = find(found(), "--recompute-granularity full");
  ASSERT_TRUE(full);
  EXPECT_FALSE(full->simulated.has_value());
}

}  // namespace
}  // namespace tidemark::remedies_test
