#include "traces/timeline/merged_timeline.h"

#include <string>
#include <unordered_map>

namespace foreshard {
namespace {

/// Gives each text of several tables one place in a common one.
class CommonTexts {
 public:
  explicit CommonTexts(std::vector<std::string>& texts) : texts_(texts) {}

  std::vector<std::int32_t> places_of(const std::vector<std::string>& own) {
    std::vector<std::int32_t> places;
    for (const std::string& text : own) {
      const auto [it, fresh] = known_.try_emplace(text, static_cast<std::int32_t>(texts_.size()));
      if (fresh) texts_.push_back(text);
      places.push_back(it->second);
    }
    return places;
  }

 private:
  std::vector<std::string>& texts_;
  std::unordered_map<std::string, std::int32_t> known_;
};

std::int32_t placed(const std::vector<std::int32_t>& places, std::int32_t own) {
  return own >= 0 && static_cast<std::size_t>(own) < places.size() ? places[static_cast<std::size_t>(own)] : own;
}

}  // namespace

Timeline merge_timelines(const std::vector<Timeline>& timelines) {
  Timeline all;
  CommonTexts names(all.names), units(all.units);
  for (const Timeline& one : timelines) {
    const std::vector<std::int32_t> name_of = names.places_of(one.names), unit_of = units.places_of(one.units);
    const auto lanes = static_cast<std::int32_t>(all.lanes.size());
    const auto spans = static_cast<std::int32_t>(all.spans.size());
    const auto counters = static_cast<std::int32_t>(all.counters.size());
    all.lanes.insert(all.lanes.end(), one.lanes.begin(), one.lanes.end());
    for (Span span : one.spans) {
      span.lane.value += lanes;
      span.name = NameId(placed(name_of, span.name.value));
      span.communicator = NameId(placed(name_of, span.communicator.value));
      span.unit = placed(unit_of, span.unit);
      all.spans.push_back(span);
    }
    for (const Flow& flow : one.flows) {
      all.flows.push_back({SpanId(flow.from.value + spans), SpanId(flow.to.value + spans)});
    }
    all.counters.insert(all.counters.end(), one.counters.begin(), one.counters.end());
    for (CounterSample sample : one.samples) {
      sample.counter.value += counters;
      all.samples.push_back(sample);
    }
    for (TimeMark mark : one.marks) {
      mark.name = NameId(placed(name_of, mark.name.value));
      all.marks.push_back(mark);
    }
    if (&one == &timelines.front()) {
      all.provenance = one.provenance;
      continue;
    }
    all.provenance.clock += " | " + one.provenance.clock;
    all.provenance.dropped_records += one.provenance.dropped_records;
  }
  return all;
}

}  // namespace foreshard
