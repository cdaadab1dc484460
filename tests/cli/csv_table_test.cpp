#include "cli/console/csv_table.h"

#include <gtest/gtest.h>

namespace foreshard::cli {
namespace {

TEST(CsvTable, CellsAreFoundByColumn) {
  const auto table = CsvTable::parse("id,x\r\na,1\r\nb,2\r\n", "t.csv");
  ASSERT_TRUE(table);
  ASSERT_EQ(table->rows().size(), 2U);
  EXPECT_EQ(table->cell(table->rows()[1], "x"), "2");
  EXPECT_EQ(table->cell(table->rows()[1], "y"), "");
  EXPECT_EQ(table->rows()[1].line, 3);
}

TEST(CsvTable, QuotesHoldCommasLineEndsAndQuotes) {
  const auto table = CsvTable::parse("id,note\na,\"one, \"\"two\"\"\nthree\"\n", "t.csv");
  ASSERT_TRUE(table);
  EXPECT_EQ(table->cell(table->rows()[0], "note"), "one, \"two\"\nthree");
}

TEST(CsvTable, ARowOfAnotherLengthNamesItsLine) {
  const auto table = CsvTable::parse("id,x\na,1\nb\n", "t.csv");
  ASSERT_FALSE(table);
  EXPECT_EQ(table.error().place, "line 3");
}

TEST(CsvTable, OpenQuotesAndEmptyTextsAreErrors) {
  EXPECT_FALSE(CsvTable::parse("id\n\"a", "t.csv"));
  EXPECT_FALSE(CsvTable::parse("id\n\"a\"b\n", "t.csv"));
  EXPECT_FALSE(CsvTable::parse("", "t.csv"));
}

TEST(CsvTable, WhatIsWrittenIsReadBack) {
  for (const char* text : {"plain", "a,b", "a \"b\"", "two\nlines", ""}) {
    const auto table = CsvTable::parse("id,x\n" + csv_cell(text) + ",1\n", "t.csv");
    ASSERT_TRUE(table);
    EXPECT_EQ(table->cell(table->rows()[0], "id"), text);
  }
}

}  // namespace
}  // namespace foreshard::cli
