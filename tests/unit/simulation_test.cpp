#include "sim/simulation.h"

#include <gtest/gtest.h>

#include "models/input_error.h"
#include "tests/support/jobs.h"

namespace tidemark::simulation_test {
namespace {

Simulation small() {
  static const HardwareProfile profile = load_hardware_profile("bw1000");
  const Job job = two_stage_job();
  return simulate(job, profile, balanced_routing(job));
}

TEST(Simulate, CarriesOverTheLastInputAndItsGradientWhereThereIsOne) {
  const Simulation s = small();
  EXPECT_EQ(s.result.stages[0].carried_over, Bytes(0));
  EXPECT_EQ(s.result.stages[1].carried_over, Bytes(2 * 2 * 16 * 64));
}

TEST(Simulate, HoldsAtLeastWhatIsResidentAndWhatIsCarriedOver) {
  const Simulation s = small();
  for (const StageResult& stage : s.result.stages) {
    Bytes resident;
    Bytes moments;
    for (const ResidentItem& item : stage.resident) {
      resident += item.bytes;
      if (item.since == ResidentSince::kOptimizerStep) moments += item.bytes;
    }
    EXPECT_EQ(stage.resident_bytes, resident);
    EXPECT_EQ(stage.moment_bytes, moments);
    EXPECT_GE(stage.allocated_after_iteration(), resident + stage.carried_over);
    EXPECT_GE(stage.peak_allocated(), resident + stage.memory.lanes[0].bytes);
  }
}

TEST(OnPlatform, RefusesExpandableSegmentsOnRocm) {
  Job job = two_stage_job();
  job.options.allocator.expandable_segments = true;
  EXPECT_NO_THROW(on_platform(job, load_hardware_profile("h100")));
  EXPECT_THROW(on_platform(job, load_hardware_profile("bw1000")), InputError);
}

TEST(Simulate, CountsMicrobatchesInFlight) {
  const Simulation s = small();
  EXPECT_EQ(s.result.stages[0].in_flight_peak, 2);
  EXPECT_EQ(s.result.stages[1].in_flight_peak, 1);
}

TEST(Simulate, CountsModelFlopsPerCardAndSecond) {
  const Simulation s = small();
  const IterationResult& i = s.result.iteration;
  EXPECT_EQ(i.tokens, 2 * 16);
  const double seconds = static_cast<double>(i.time_ns) * 1e-9;
  EXPECT_DOUBLE_EQ(i.tflops_per_card, static_cast<double>(i.model_flops) / seconds / 2 * 1e-12);
}

}  // namespace
}  // namespace tidemark::simulation_test
