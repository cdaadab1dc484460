#include "gui/models/timeline/slice_search.h"

#include <algorithm>
#include <cctype>
#include <string>

namespace foreshard::gui {
namespace {

std::string lowered(std::string_view text) {
  std::string out(text);
  std::transform(out.begin(), out.end(), out.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return out;
}

std::vector<std::string> words_of(std::string_view text) {
  std::vector<std::string> words;
  std::string word;
  for (const char c : lowered(text) + " ") {
    if (c != ' ') {
      word += c;
    } else if (!word.empty()) {
      words.push_back(std::move(word));
      word.clear();
    }
  }
  return words;
}

/// Which of the first 32 words a text holds, as bits.
std::uint32_t bits_of(std::string_view text, const std::vector<std::string>& words) {
  const std::string low = lowered(text);
  std::uint32_t bits = 0;
  for (std::size_t w = 0; w < words.size(); ++w)
    if (low.find(words[w]) != std::string::npos) bits |= 1U << w;
  return bits;
}

/// Streams have names of one letter: only a word that says that it is one is looked for there.
std::uint32_t bits_of_stream(std::string_view stream, const std::vector<std::string>& words) {
  std::uint32_t bits = 0;
  for (std::size_t w = 0; w < words.size(); ++w)
    if (words[w] == "stream:" + lowered(stream)) bits |= 1U << w;
  return bits;
}

}  // namespace

SearchResult search_slices(const TimelineModel& model, std::string_view text, std::size_t limit) {
  std::vector<std::string> words = words_of(text);
  if (words.size() > 32) words.resize(32);
  SearchResult result;
  if (words.empty()) return result;
  const Timeline& t = model.timeline;
  std::vector<std::uint32_t> names, units, kinds, streams;
  for (const std::string& name : t.names) names.push_back(bits_of(name, words));
  for (std::size_t u = 0; u < t.units.size(); ++u)
    units.push_back(bits_of(unit_label(t, static_cast<std::int32_t>(u)), words));
  for (std::size_t k = 0; k <= static_cast<std::size_t>(kLastSpanKind); ++k)
    kinds.push_back(bits_of(span_kind_name(static_cast<SpanKind>(k)), words));
  std::vector<FoundOnStream> found;  // by stream
  std::vector<std::size_t> stream_of;
  for (const Lane& lane : t.lanes) {
    streams.push_back(bits_of_stream(lane.stream, words));
    const auto at =
        std::find_if(found.begin(), found.end(), [&](const FoundOnStream& one) { return one.stream == lane.stream; });
    stream_of.push_back(static_cast<std::size_t>(at - found.begin()));
    if (at == found.end()) found.push_back({lane.stream, 0, 0});
  }
  const std::uint32_t all = words.size() == 32 ? ~0U : (1U << words.size()) - 1;
  for (std::size_t s = 0; s < t.spans.size(); ++s) {
    const Span& span = t.spans[s];
    std::uint32_t bits = kinds[static_cast<std::size_t>(span.kind)];
    if (span.name.valid() && span.name.index() < names.size()) bits |= names[span.name.index()];
    if (span.unit >= 0 && static_cast<std::size_t>(span.unit) < units.size())
      bits |= units[static_cast<std::size_t>(span.unit)];
    const bool laid = span.lane.valid() && span.lane.index() < t.lanes.size();
    if (laid) bits |= streams[span.lane.index()];
    if (bits != all) continue;
    if (result.spans.size() < limit) result.spans.push_back(static_cast<std::uint32_t>(s));
    ++result.found;
    if (!laid) continue;
    FoundOnStream& there = found[stream_of[span.lane.index()]];
    ++there.slices;
    there.time += std::max<SimDuration>(0, span.duration);
  }
  std::erase_if(found, [](const FoundOnStream& one) { return one.slices == 0; });
  std::stable_sort(found.begin(), found.end(),
                   [](const FoundOnStream& a, const FoundOnStream& b) { return a.time > b.time; });
  result.streams = std::move(found);
  return result;
}

std::optional<std::uint32_t> neighbour_of(const TimelineModel& model, std::uint32_t span, int step) {
  const auto place = find_slice(model.lanes, model.timeline, span);
  if (!place) return std::nullopt;
  const SliceRow& row = model.lanes[place->lane].rows[place->row];
  const auto next = static_cast<std::int64_t>(place->slice) + step;
  if (next < 0 || next >= static_cast<std::int64_t>(row.size())) return std::nullopt;
  return row.span[static_cast<std::size_t>(next)];
}

}  // namespace foreshard::gui
