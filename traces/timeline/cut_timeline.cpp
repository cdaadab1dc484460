#include "traces/timeline/cut_timeline.h"

#include <algorithm>

namespace foreshard {
namespace {

bool touches(const Span& span, const Interval& range) {
  const SimTime end = span.start + std::max<SimDuration>(0, span.duration);
  return span.start < range.end && (end > range.begin || span.start >= range.begin);
}

}  // namespace

TimelineCut cut_timeline(const Timeline& timeline, const SliceArguments& arguments, Interval range) {
  TimelineCut cut;
  Timeline& part = cut.timeline;
  part.lanes = timeline.lanes;
  part.counters = timeline.counters;
  part.names = timeline.names;
  part.units = timeline.units;
  part.provenance = timeline.provenance;

  std::vector<SpanId> kept;
  std::vector<std::int32_t> place(timeline.spans.size(), -1);
  for (std::size_t s = 0; s < timeline.spans.size(); ++s) {
    if (!touches(timeline.spans[s], range)) continue;
    place[s] = static_cast<std::int32_t>(part.spans.size());
    part.spans.push_back(timeline.spans[s]);
    kept.emplace_back(s);
  }
  cut.arguments = arguments.of_spans(kept);
  for (const Flow& flow : timeline.flows) {
    const std::int32_t from = place[flow.from.index()], to = place[flow.to.index()];
    if (from >= 0 && to >= 0) part.flows.push_back({SpanId(from), SpanId(to)});
  }
  const std::vector<CounterSample>& samples = timeline.samples;  // by counter, then time
  for (std::size_t s = 0; s < samples.size(); ++s) {
    CounterSample sample = samples[s];
    if (sample.time >= range.end) continue;
    if (sample.time < range.begin) {
      const bool last_before =
          s + 1 == samples.size() || samples[s + 1].counter != sample.counter || samples[s + 1].time > range.begin;
      if (!last_before) continue;
      sample.time = range.begin;
    }
    part.samples.push_back(sample);
  }
  std::copy_if(timeline.marks.begin(), timeline.marks.end(), std::back_inserter(part.marks),
               [&](const TimeMark& mark) { return mark.time >= range.begin && mark.time < range.end; });
  return cut;
}

}  // namespace foreshard
