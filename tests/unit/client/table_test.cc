#include "client/qgemmctl/table.h"

#include <gtest/gtest.h>

namespace qgemm {
namespace {

using enum Table::Align;

TEST(Table, AlignsColumnsAndKeepsNoTrailingSpaces) {
  Table table({{"name"}, {"time us", kRight}, {"note"}});
  table.AddRow({"a", "1.50", "x"});
  table.AddRow({"longer", "12.00", ""});
  EXPECT_EQ(table.ToString(),
            "name    time us  note\n"
            "a          1.50  x\n"
            "longer    12.00\n");
}

TEST(Table, LeavesOutColumnsWithoutAValue) {
  Table table({{"layers"}, {"N", kRight}, {"kernel"}});
  table.AddRow({"", "5376", ""});
  EXPECT_EQ(table.ToString(), "   N\n5376\n");
}

TEST(Table, IsNothingWithoutRows) { EXPECT_EQ(Table({{"name"}}).ToString(), ""); }

TEST(Table, CountsCodePointsNotBytes) {
  Table table({{"a"}, {"b"}});
  table.AddRow({"\xC2\xB5s", "1"});  // micro sign
  table.AddRow({"us", "2"});
  EXPECT_EQ(table.ToString(), "a   b\n\xC2\xB5s  1\nus  2\n");
}

TEST(KeyValueLines, AlignsValuesAndSkipsEmptyOnes) {
  EXPECT_EQ(KeyValueLines({{"a", "1"}, {"state", "ready"}, {"driver", ""}}), "a       1\nstate   ready\n");
}

}  // namespace
}  // namespace qgemm
