#include "tools/log_comparison.h"

#include <gtest/gtest.h>

namespace tidemark::log_comparison_test {
namespace {

TrainingLog log_of(std::vector<double> elapsed_ms) {
  TrainingLog log;
  for (const double ms : elapsed_ms) {
    log.iterations.push_back({std::ssize(log.iterations) + 1, ms, std::nullopt});
  }
  return log;
}

Job four_cards_in_two_stages() {
  Job job;
  job.layout.cards = 4;
  job.layout.pipeline = 2;
  return job;
}

SimulationResult two_stages() {
  SimulationResult result;
  result.stages.resize(2);
  for (std::int64_t i = 0; i < 2; ++i) {
    CardMemory& memory = result.stages[static_cast<std::size_t>(i)].card.memory;
    memory.after_iteration = (10 + i) * kMiB;
    memory.peak_first_iteration = (20 + i) * kMiB;
    memory.peak = (30 + i) * kMiB;
  }
  return result;
}

TEST(CompareWithLog, TakesTheMedianOfIterationsPastStartUp) {
  const ComparedTime time =
      *compare_with_log(log_of({900, 100, 4, 2, 6, 8}), four_cards_in_two_stages(), two_stages())
           .time;
  EXPECT_EQ(time.from_iteration, 3);
  EXPECT_EQ(time.iterations, 4);
  EXPECT_DOUBLE_EQ(time.measured_ms, 5);
}

TEST(CompareWithLog, TakesAllIterationsOfAShortLog) {
  const ComparedTime time =
      *compare_with_log(log_of({9, 1}), four_cards_in_two_stages(), two_stages()).time;
  EXPECT_EQ(time.from_iteration, 1);
  EXPECT_DOUBLE_EQ(time.measured_ms, 5);
}

TEST(CompareWithLog, ComparesARankWithItsStage) {
  TrainingLog log;
  log.memory = {{1, 1, 10, 20, 30, 30}, {2, 2, 10, 20, 30, 30}};
  const LogComparison comparison = compare_with_log(log, four_cards_in_two_stages(), two_stages());
  EXPECT_EQ(comparison.memory[0].stage, 0);
  EXPECT_EQ(comparison.memory[0].max_allocated, 20 * kMiB);  // of the first iteration
  EXPECT_EQ(comparison.memory[1].stage, 1);
  EXPECT_EQ(comparison.memory[1].max_allocated, 31 * kMiB);
  EXPECT_NEAR(comparison.memory[1].allocated_error_percent(), 10, 1e-9);
}

TEST(Summarize, TakesAbsoluteErrors) {
  const std::vector<double> errors = {-3, 1};
  EXPECT_DOUBLE_EQ(summarize(errors).mean, 2);
  EXPECT_DOUBLE_EQ(summarize(errors).max, 3);
}

}  // namespace
}  // namespace tidemark::log_comparison_test
