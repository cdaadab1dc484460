// Chrome JSON: whatever the bytes are, a timeline whose references hold, or an Error.
#include <cstdint>
#include <cstdlib>

#include "traces/analysis/analysis.h"
#include "traces/formats/kineto.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto source = foreshard::memory_source({reinterpret_cast<const char*>(data), size});
  const auto opened = foreshard::read_chrome_json(*source, "fuzz.json");
  if (!opened) return 0;
  const foreshard::Timeline& t = opened->timeline;
  for (const foreshard::Span& span : t.spans) {
    if (!span.lane.valid() || span.lane.index() >= t.lanes.size() || span.duration < 0) std::abort();
    if (span.name.valid() && span.name.index() >= t.names.size()) std::abort();
  }
  for (const foreshard::Flow& flow : t.flows) {
    if (flow.from.index() >= t.spans.size() || flow.to.index() >= t.spans.size()) std::abort();
  }
  static_cast<void>(foreshard::analyse_timeline(t).has_value());
  return 0;
}
