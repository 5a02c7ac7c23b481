// One broken schedule for each rule.
#include "sim/check_schedule.h"

#include <algorithm>
#include <variant>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "sim/zero_bubble.h"

namespace tidemark::check_schedule_test {
namespace {

using testing::Contains;
using testing::HasSubstr;
using testing::IsEmpty;

std::vector<Step>& steps(Schedule& s, std::size_t stage) { return s.stages[stage]; }

// Positions of a stage's slots.
std::vector<std::size_t> slots(const Schedule& s, std::size_t stage) {
  std::vector<std::size_t> out;
  for (std::size_t i = 0; i < s.stages[stage].size(); ++i) {
    if (std::holds_alternative<Slot>(s.stages[stage][i])) out.push_back(i);
  }
  return out;
}

TEST(CheckSchedule, AcceptsMegatronsAndItsOwn) {
  EXPECT_THAT(check_schedule(build_1f1b(4, 8)), IsEmpty());
  EXPECT_THAT(check_schedule(build_interleaved_1f1b(4, 8, {2, 4, true})), IsEmpty());
  EXPECT_THAT(check_schedule(with_transfers(build_zb_h1(4, 8), 8, 1, Placement::kRing)), IsEmpty());
}

TEST(CheckSchedule, RejectsAMicrobatchThatRunsTwice) {
  Schedule s = build_1f1b(1, 2);
  steps(s, 0).push_back(Slot{SlotKind::kForward, 1});
  EXPECT_THAT(check_schedule(s), Contains(HasSubstr("runs chunk 0 microbatch 1 forward twice")));
}

TEST(CheckSchedule, RejectsAMicrobatchThatIsLeftOut) {
  Schedule s = build_1f1b(1, 2);
  steps(s, 0).pop_back();
  EXPECT_THAT(check_schedule(s), Contains(HasSubstr("never finishes chunk 0 microbatch 1")));
}

TEST(CheckSchedule, RejectsWeightGradientsThatAreLeftOut) {
  Schedule s = with_transfers(build_zb_h1(1, 2), 2, 1, Placement::kRing);
  steps(s, 0).erase(steps(s, 0).begin() + static_cast<std::ptrdiff_t>(slots(s, 0).back()));
  EXPECT_THAT(check_schedule(s), Contains(HasSubstr("never finishes chunk 0 microbatch 1")));
}

TEST(CheckSchedule, RejectsABackwardBeforeItsForward) {
  Schedule s = build_1f1b(1, 1);
  std::swap(steps(s, 0)[0], steps(s, 0)[1]);
  EXPECT_THAT(check_schedule(s), Contains(HasSubstr("backward before forward")));
}

TEST(CheckSchedule, RejectsWeightGradientsBeforeTheBackward) {
  Schedule s = with_transfers(build_zb_h1(1, 1), 1, 1, Placement::kRing);
  const std::vector<std::size_t> at = slots(s, 0);
  std::swap(steps(s, 0)[at[1]], steps(s, 0)[at[2]]);
  EXPECT_THAT(check_schedule(s), Contains(HasSubstr("before its input's")));
}

TEST(CheckSchedule, RejectsASlotThatDoesNotWaitForItsInput) {
  Schedule s = with_transfers(build_zb_h1(2, 1), 1, 1, Placement::kRing);
  std::erase_if(steps(s, 1), [](const Step& step) { return std::holds_alternative<Wait>(step); });
  EXPECT_THAT(check_schedule(s), Contains(HasSubstr("without its input")));
}

TEST(CheckSchedule, RejectsAMessageThatIsSentBeforeItIsMade) {
  Schedule s = build_1f1b(2, 1);
  std::swap(steps(s, 0)[0], steps(s, 0)[1]);
  EXPECT_THAT(check_schedule(s), Contains(HasSubstr("before it is made")));
}

TEST(CheckSchedule, RejectsAMessageThatNobodyReceives) {
  Schedule s = build_1f1b(2, 1);
  steps(s, 1).erase(steps(s, 1).begin());
  EXPECT_THAT(check_schedule(s), Contains(HasSubstr("waits for ever")));
}

// Each would send before it receives, and a send blocks.
TEST(CheckSchedule, RejectsStagesThatWaitForEachOther) {
  Schedule s = build_1f1b(2, 2);
  // Stage 0 sends F0 and F1 one by one; stage 1 wants to give B0 back before it takes F1.
  const auto is_pair = [](const Step& step) {
    const Transfer* t = std::get_if<Transfer>(&step);
    return t != nullptr && t->receive_activation.valid() && t->send_gradient.valid();
  };
  EXPECT_THAT(check_schedule(s), IsEmpty());
  const auto it = std::ranges::find_if(steps(s, 1), is_pair);
  ASSERT_NE(it, steps(s, 1).end());
  const Transfer both = std::get<Transfer>(*it);
  *it = Transfer{.send_gradient = both.send_gradient};
  steps(s, 1).insert(it + 1, Transfer{.receive_activation = both.receive_activation});
  std::vector<Step>& first = steps(s, 0);
  const auto meets = std::ranges::find_if(first, [](const Step& step) {
    const Transfer* t = std::get_if<Transfer>(&step);
    return t != nullptr && t->receive_gradient.valid() && t->send_activation.valid();
  });
  ASSERT_NE(meets, first.end());
  const Transfer mixed = std::get<Transfer>(*meets);
  *meets = Transfer{.send_activation = mixed.send_activation};
  first.insert(meets + 1, Transfer{.receive_gradient = mixed.receive_gradient});
  EXPECT_THAT(check_schedule(s), Contains(HasSubstr("waits for ever")));
}

}  // namespace
}  // namespace tidemark::check_schedule_test
