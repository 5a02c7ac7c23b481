#include "planner/decision_log.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace tidemark::decision_log_test {
namespace {

// Stage 0 may recompute the norm of two layers and offload the first one's query; stage 1 nothing.
std::vector<std::vector<NamedAction>> actions() {
  return {{{"norm", 4, ActionKind::kRecompute},
           {"query", 4, ActionKind::kOffload},
           {"norm", 5, ActionKind::kRecompute}},
          {}};
}

// Two microbatches. `taken`: [microbatch][action]
UnitDecisions unit(const std::vector<std::uint8_t>& taken) {
  UnitDecisions out{StageDecisions(2, 3), StageDecisions(2, 0)};
  out[0].taken = taken;
  return out;
}

IterationRecord at(std::int64_t iteration) {
  IterationRecord record;
  record.iteration = iteration;
  return record;
}

TEST(DecisionLog, CountsMicrobatchesOfAllUnitsAndLayersWithTheMostChangedFirst) {
  DecisionLog log(actions());
  log.add(at(0), {unit({0, 1, 1, 0, 0, 1}), unit({0, 0, 1, 0, 0, 0})});
  ASSERT_EQ(log.iterations().size(), 1U);
  const DecisionLog::Iteration& first = log.iterations()[0];
  EXPECT_EQ(first.changed_groups, 2);
  ASSERT_EQ(first.groups.size(), 2U);
  const DecisionLog::Group& norm = first.groups[0];
  EXPECT_EQ(norm.operator_name, "norm");
  EXPECT_EQ(norm.kind, ActionKind::kRecompute);
  EXPECT_EQ(norm.layers, std::vector<std::int32_t>{5});
  EXPECT_EQ(norm.taken, 2 + 1);
  EXPECT_EQ(norm.before, 0);
  EXPECT_EQ(norm.changed, 3);
  EXPECT_EQ(norm.of, 2 * 2 * 2) << "layers, microbatches, units";
  const DecisionLog::Group& query = first.groups[1];
  EXPECT_EQ(query.operator_name, "query");
  EXPECT_EQ(query.taken, 1);
  EXPECT_EQ(query.of, 2 * 2);
}

TEST(DecisionLog, ListsOnlyIterationsThatDecideOtherwiseThanTheOneBefore) {
  DecisionLog log(actions());
  log.add(at(0), {unit({0, 0, 0, 0, 0, 0})});
  log.add(at(1), {unit({1, 0, 0, 1, 0, 0})});
  log.add(at(2), {unit({1, 0, 0, 1, 0, 0})});
  log.add(at(3), {unit({0, 0, 1, 0, 0, 1})});
  EXPECT_EQ(log.changed_iterations(), 2);
  ASSERT_EQ(log.iterations().size(), 2U);
  EXPECT_EQ(log.iterations()[0].iteration, 1);
  EXPECT_EQ(log.iterations()[1].iteration, 3);
  const DecisionLog::Group& moved = log.iterations()[1].groups.at(0);
  EXPECT_EQ(moved.taken, moved.before) << "as many, in another layer";
  EXPECT_EQ(moved.changed, 2 + 2);
  EXPECT_EQ(moved.layers, std::vector<std::int32_t>{5});
}

TEST(DecisionLog, IsBounded) {
  std::vector<NamedAction> many;
  for (int i = 0; i < 2 * DecisionLog::kMostGroups; ++i) many.push_back({std::to_string(i), 0});
  DecisionLog log({many});
  constexpr std::int64_t kIterations = 3 * DecisionLog::kMostIterations;
  for (std::int64_t i = 0; i < kIterations; ++i) {
    StageDecisions stage(1, static_cast<std::int32_t>(many.size()));
    if (i % 2 == 0) stage.taken.assign(many.size(), 1);
    log.add(at(i), {{stage}});
  }
  EXPECT_EQ(log.changed_iterations(), kIterations);
  ASSERT_EQ(std::ssize(log.iterations()), DecisionLog::kMostIterations);
  EXPECT_EQ(log.iterations()[0].changed_groups, std::ssize(many));
  EXPECT_EQ(std::ssize(log.iterations()[0].groups), DecisionLog::kMostGroups);
}

}  // namespace
}  // namespace tidemark::decision_log_test
