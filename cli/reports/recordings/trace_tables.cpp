#include "cli/reports/recordings/trace_tables.h"

#include <fmt/format.h>

#include <algorithm>

#include "cli/console/amount_text.h"
#include "cli/console/csv_table.h"
#include "cli/console/json_text.h"
#include "cli/console/text_lines.h"

namespace foreshard::cli {
namespace {

constexpr std::size_t kWidestName = 60;

TableCell time_cell(SimDuration ns) {
  return {fmt::format("{}", ns), true, false, duration_text(static_cast<double>(ns))};
}
TableCell signed_time_cell(SimDuration ns) {
  const std::string amount = duration_text(static_cast<double>(ns < 0 ? -ns : ns));
  return {fmt::format("{}", ns), true, false, (ns < 0 ? "-" : ns > 0 ? "+" : "") + amount};
}
TableCell share_cell(double share) { return {fmt::format("{:.6f}", share), true, false, percent_text(share)}; }

TableCell bytes_cell(Bytes bytes) { return {fmt::format("{}", bytes), true, false, bytes_text(bytes)}; }
TableCell frame_cell(const std::string& frame) {
  return text_cell(frame, frame.empty() ? "(before the recording began)" : "");
}

TableCell name_cell(const std::string& name, KernelKey by) {
  if (name.empty()) return text_cell("", by == KernelKey::Operator ? "(outside of operators)" : "(of none)");
  return text_cell(name, by == KernelKey::Kernel ? folded_kernel_name(name) : name);
}

const std::string& spoken(const TableCell& cell) { return cell.spoken.empty() ? cell.text : cell.spoken; }

/// Letters as a terminal counts them.
std::size_t width_of(std::string_view text) {
  return static_cast<std::size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xc0U) != 0x80U; }));
}

std::string padded(std::string text, std::size_t width, bool right) {
  const std::size_t own = width_of(text);
  const std::string blanks(width > own ? width - own : 0, ' ');
  return right ? blanks + text : text + blanks;
}

std::string cut(const std::string& text) {
  return width_of(text) <= kWidestName ? text : text.substr(0, kWidestName - 1) + "~";
}

class TablesText : private TextLines {
 public:
  std::string take(const TraceTable& table, int top, const ReportStyle& style) {
    const std::size_t shown = top > 0 ? std::min(table.rows.size(), static_cast<std::size_t>(top)) : table.rows.size();
    const std::vector<std::string>& titles = table.titles.empty() ? table.columns : table.titles;
    std::vector<std::size_t> widths;
    std::vector<bool> right(titles.size(), false);
    for (std::size_t c = 0; c < titles.size(); ++c) {
      std::size_t width = width_of(titles[c]);
      for (std::size_t r = 0; r < shown; ++r) {
        width = std::max(width, width_of(cut(spoken(table.rows[r][c]))));
        right[c] = right[c] || table.rows[r][c].number;
      }
      widths.push_back(width);
    }
    std::string head;
    for (std::size_t c = 0; c < titles.size(); ++c)
      head += (c > 0 ? "  " : "") + padded(titles[c], widths[c], right[c]);
    line("{}", style.color ? "\x1b[1m" + head + "\x1b[0m" : head);
    for (std::size_t r = 0; r < shown; ++r) {
      std::string row;
      for (std::size_t c = 0; c < titles.size(); ++c)
        row += (c > 0 ? "  " : "") + padded(cut(spoken(table.rows[r][c])), widths[c], right[c]);
      line("{}", row);
    }
    if (shown < table.rows.size()) line("... {} more (--top 0 shows all)", table.rows.size() - shown);
    if (!table.note.empty()) line("{}", table.note);
    return std::move(out_);
  }
};

std::string csv_field(const TableCell& cell) { return cell.number ? cell.text : csv_cell(cell.text); }

void write_cell(JsonText& json, const TableCell& cell) {
  if (cell.absent) {
    json.null();
  } else if (!cell.number) {
    json.value(std::string_view(cell.text));
  } else if (cell.text.find_first_of(".en") == std::string::npos) {
    json.value(static_cast<std::int64_t>(std::stoll(cell.text)));
  } else {
    json.value(std::stod(cell.text));
  }
}

}  // namespace

TableCell text_cell(std::string text, std::string spoken) { return {std::move(text), false, false, std::move(spoken)}; }
TableCell count_cell(std::int64_t number) { return {fmt::format("{}", number), true, false, grouped_text(number)}; }
TableCell real_cell(double number) {
  std::string text = fmt::format("{}", number);
  if (text.find_first_of(".en") == std::string::npos) text += ".0";
  return {std::move(text), true, false, fmt::format("{:.6g}", number)};
}
TableCell absent_cell() { return {"", false, true, "-"}; }

TraceTable kernels_of(const std::vector<KernelRow>& rows, KernelKey by) {
  TraceTable table;
  table.schema = "foreshard.kernels/1";
  table.columns = {std::string(kernel_key_name(by)),
                   "kind",
                   "count",
                   "total_ns",
                   "mean_ns",
                   "min_ns",
                   "p50_ns",
                   "p90_ns",
                   "p99_ns",
                   "max_ns",
                   "share"};
  table.titles = {
      std::string(kernel_key_name(by)), "kind", "count", "total", "mean", "min", "p50", "p90", "p99", "max", "share"};
  for (const KernelRow& row : rows) {
    table.rows.push_back({name_cell(row.name, by), text_cell(std::string(span_kind_name(row.kind))),
                          count_cell(row.count), time_cell(row.total), time_cell(static_cast<SimDuration>(row.mean())),
                          time_cell(row.least), time_cell(row.p50), time_cell(row.p90), time_cell(row.p99),
                          time_cell(row.most), share_cell(row.share)});
  }
  return table;
}

TraceTable differences_of(const std::vector<KernelDifference>& rows, KernelKey by) {
  TraceTable table;
  table.schema = "foreshard.kernel_differences/1";
  table.columns = {std::string(kernel_key_name(by)),
                   "a_count",
                   "b_count",
                   "a_total_ns",
                   "b_total_ns",
                   "difference_ns",
                   "a_mean_ns",
                   "b_mean_ns"};
  table.titles = {
      std::string(kernel_key_name(by)), "count A", "count B", "total A", "total B", "A - B", "mean A", "mean B"};
  const auto mean = [](const KernelRow& row) {
    return row.count > 0 ? time_cell(static_cast<SimDuration>(row.mean())) : absent_cell();
  };
  SimDuration all = 0;
  for (const KernelDifference& row : rows) {
    all += row.difference();
    table.rows.push_back({name_cell(row.a.name, by), count_cell(row.a.count), count_cell(row.b.count),
                          time_cell(row.a.total), time_cell(row.b.total), signed_time_cell(row.difference()),
                          mean(row.a), mean(row.b)});
  }
  table.note = fmt::format("all rows: A - B = {}", spoken(signed_time_cell(all)));
  return table;
}

TraceTable stragglers_of(const std::vector<StragglerRow>& rows, const std::vector<CollectiveMeeting>& meetings) {
  TraceTable table;
  table.schema = "foreshard.stragglers/1";
  table.columns = {"rank", "kind", "came_last", "collectives", "late_ns", "others_waited_ns"};
  table.titles = {"rank", "collectives", "came last", "of", "late by", "others waited"};
  for (const StragglerRow& row : rows) {
    table.rows.push_back({count_cell(row.rank), text_cell(std::string(span_kind_name(row.kind))), count_cell(row.last),
                          count_cell(row.meetings), time_cell(row.lateness), time_cell(row.waited)});
  }
  table.note = meetings.empty() ? "no collective has two ranks in this recording"
                                : "late by: behind the median of the ranks; others waited: their mean; both summed";
  return table;
}

TraceTable flame_of(const FlameGraph& graph) {
  TraceTable table;
  table.schema = "foreshard.flame/1";
  table.columns = {"stack", "total_ns", "own_ns", "count"};
  std::vector<std::pair<std::uint32_t, std::string>> open{{0, ""}};
  while (!open.empty()) {
    const auto [at, stack] = std::move(open.back());
    open.pop_back();
    const FlameNode& node = graph.nodes[at];
    table.rows.push_back({text_cell(stack), time_cell(node.total), time_cell(node.own), count_cell(node.count)});
    for (auto child = node.children.rbegin(); child != node.children.rend(); ++child)
      open.emplace_back(*child, stack.empty() ? graph.nodes[*child].name : stack + ";" + graph.nodes[*child].name);
  }
  return table;
}

TraceTable blocks_of(const LiveBlocks& live) {
  TraceTable table;
  table.schema = "foreshard.memory_blocks/1";
  table.columns = {"frame", "blocks", "bytes", "largest_bytes", "share"};
  table.titles = {"allocated by", "blocks", "bytes", "largest", "share"};
  Bytes all = 0;  // what blocks hold may be more than what the counter says
  for (const BlockRow& row : live.rows) all += std::max<Bytes>(0, row.bytes);
  for (const BlockRow& row : live.rows) {
    table.rows.push_back({frame_cell(row.frame), count_cell(row.blocks), bytes_cell(row.bytes), bytes_cell(row.largest),
                          share_cell(all > 0 ? static_cast<double>(row.bytes) / static_cast<double>(all) : 0)});
  }
  table.note = fmt::format("rank {}, {} after the recording's beginning: {} allocated", live.rank,
                           duration_text(static_cast<double>(live.at)), bytes_text(live.allocated));
  return table;
}

TraceTable block_differences_of(const LiveBlocks& a, const LiveBlocks& b) {
  TraceTable table;
  table.schema = "foreshard.memory_differences/1";
  table.columns = {"frame", "a_blocks", "b_blocks", "a_bytes", "b_bytes", "difference_bytes"};
  table.titles = {"allocated by", "blocks A", "blocks B", "bytes A", "bytes B", "A - B"};
  for (const BlockDifference& row : block_differences(a, b)) {
    TableCell difference = bytes_cell(row.difference() < 0 ? -row.difference() : row.difference());
    difference.text = fmt::format("{}", row.difference());
    difference.spoken = (row.difference() < 0 ? "-" : row.difference() > 0 ? "+" : "") + difference.spoken;
    table.rows.push_back({frame_cell(row.frame), count_cell(row.a.blocks), count_cell(row.b.blocks),
                          bytes_cell(row.a.bytes), bytes_cell(row.b.bytes), std::move(difference)});
  }
  table.note = fmt::format("allocated: {} in A, {} in B", bytes_text(a.allocated), bytes_text(b.allocated));
  return table;
}

std::string table_text(const TraceTable& table, int top, const ReportStyle& style) {
  return TablesText().take(table, top, style);
}

std::string table_json(const TraceTable& table) {
  JsonText json;
  json.begin_object().field("schema", table.schema).key("rows").begin_array();
  for (const auto& row : table.rows) {
    json.begin_object();
    for (std::size_t c = 0; c < row.size(); ++c) write_cell(json.key(table.columns[c]), row[c]);
    json.end_object();
  }
  json.end_array().end_object();
  return json.take();
}

std::string table_csv(const TraceTable& table) {
  std::string text;
  for (std::size_t c = 0; c < table.columns.size(); ++c)
    text += (c > 0 ? "," : "") + csv_field(text_cell(table.columns[c]));
  text += "\n";
  for (const auto& row : table.rows) {
    for (std::size_t c = 0; c < row.size(); ++c) text += (c > 0 ? "," : "") + csv_field(row[c]);
    text += "\n";
  }
  return text;
}

}  // namespace foreshard::cli
