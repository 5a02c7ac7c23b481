#include "tools/text_table.h"

#include <gtest/gtest.h>

#include "tools/quantity_text.h"

namespace tidemark::text_table_test {
namespace {

TEST(TextTable, AlignsColumnsToTheirWidestCell) {
  TextTable table({{"name", TextTable::Align::kLeft}, {"size"}, {"", TextTable::Align::kLeft}});
  table.add_row({"a", "1,024", "pass"});
  table.add_row({"longer", "7", ""});
  EXPECT_EQ(table.text(),
            "name     size\n"
            "a       1,024  pass\n"
            "longer      7\n");
}

TEST(QuantityText, GroupsDigitsByThree) {
  EXPECT_EQ(grouped_text(0), "0");
  EXPECT_EQ(grouped_text(999), "999");
  EXPECT_EQ(grouped_text(1000), "1,000");
  EXPECT_EQ(grouped_text(-100), "-100");
  EXPECT_EQ(grouped_text(-1234567), "-1,234,567");
}

TEST(QuantityText, ChoosesTheUnitOfATime) {
  EXPECT_EQ(duration_text(SimDuration(39'634'615'652)), "39.635 s");
  EXPECT_EQ(duration_text(SimDuration(12'340'000)), "12.3 ms");
  EXPECT_EQ(duration_text(SimDuration(0)), "0 us");
}

}  // namespace
}  // namespace tidemark::text_table_test
