// Tables of recordings that `trace kernels`, `trace stragglers` and `trace query` print: as text, as JSON and as CSV.
// Pure: values in, text out.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cli/reports/report.h"
#include "core/timeline.h"
#include "traces/analysis/collective_meetings.h"
#include "traces/analysis/flame.h"
#include "traces/analysis/kernel_table.h"
#include "traces/analysis/memory_blocks.h"

namespace foreshard::cli {

/// One cell: JSON's and CSV's spelling, and the one for people ("" = the same).
struct TableCell {
  std::string text;
  bool number = false, absent = false;  // absent: null, an empty field
  std::string spoken = {};
};

struct TraceTable {
  std::string schema;                // "foreshard.kernels/1"
  std::vector<std::string> columns;  // as JSON's keys and CSV's head
  std::vector<std::string> titles;   // for people; empty = as columns
  std::vector<std::vector<TableCell>> rows;
  std::string note;  // below the text; often empty
};

TraceTable kernels_of(const std::vector<KernelRow>& rows, KernelKey by);
TraceTable differences_of(const std::vector<KernelDifference>& rows, KernelKey by);
TraceTable stragglers_of(const std::vector<StragglerRow>& rows, const std::vector<CollectiveMeeting>& meetings);
/// Every place of the graph, what is above it behind it.
TraceTable flame_of(const FlameGraph& graph);

TraceTable blocks_of(const LiveBlocks& live);
TraceTable block_differences_of(const LiveBlocks& a, const LiveBlocks& b);

TableCell text_cell(std::string text, std::string spoken = {});
TableCell count_cell(std::int64_t number);
TableCell real_cell(double number);
TableCell absent_cell();

/// `top` rows; 0 = all.
std::string table_text(const TraceTable& table, int top, const ReportStyle& style);
std::string table_json(const TraceTable& table);
std::string table_csv(const TraceTable& table);

}  // namespace foreshard::cli
