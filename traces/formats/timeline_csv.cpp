#include "traces/formats/timeline_csv.h"

#include <fmt/format.h>

#include <iterator>

#include "core/plan.h"
#include "core/text/format_append.h"
#include "traces/encodings/byte_file.h"

namespace foreshard {
namespace {

constexpr std::size_t kFlushRowsBytes = 1U << 18U;

/// RFC 4180.
std::string csv_field(std::string_view text) {
  if (text.find_first_of("\",\r\n") == std::string_view::npos) return std::string(text);
  std::string cell(1, '"');
  for (const char c : text) cell.append(c == '"' ? 2 : 1, c);
  return cell + '"';
}

}  // namespace

Result<void> write_timeline_csv(const Timeline& timeline, const std::string& path) {
  auto file = PackedOutput::create(path);
  if (!file) return fail(file.error());
  std::string text = "rank,stream,label,kind,name,start_ns,duration_ns,unit,phase,instruction,bytes\n";
  for (const Span& span : timeline.spans) {
    if (!span.lane.valid()) continue;
    const Lane& lane = timeline.lanes[span.lane.index()];
    const bool has_unit = span.unit >= 0 && static_cast<std::size_t>(span.unit) < timeline.units.size();
    const std::string& unit = has_unit ? timeline.units[static_cast<std::size_t>(span.unit)] : lane.label;
    const bool has_phase = span.phase > 0 && span.phase <= static_cast<int>(Phase::Load);
    format_append(text, "{},{},{},{},{},{},{},{},{},{},{}\n", lane.rank, csv_field(lane.stream), csv_field(lane.label),
                  span_kind_name(span.kind), csv_field(timeline.name_of(span.name)), span.start, span.duration,
                  !has_unit      ? ""
                  : unit.empty() ? "root"
                                 : csv_field(unit),
                  has_phase ? phase_name(static_cast<Phase>(span.phase)) : std::string_view(),
                  span.instruction.valid() ? fmt::format("{}", span.instruction.value) : "", span.bytes);
    if (text.size() < kFlushRowsBytes) continue;
    if (auto written = file->write(text); !written) return written;
    text.clear();
  }
  if (auto written = file->write(text); !written) return written;
  return file->close();
}

}  // namespace foreshard
