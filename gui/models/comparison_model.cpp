#include "gui/models/comparison_model.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "traces/timeline/iterations.h"

namespace foreshard::gui {
namespace {

/// Spans of one compared iteration by what joins them, as far as this side can say it: where an instruction begins and
/// ends on a stream.
class SideSpans {
 public:
  SideSpans(const Timeline& timeline, std::int32_t rank, std::int32_t iteration) : timeline_(timeline) {
    const auto iterations = iterations_of(timeline, rank);
    const auto found = std::find_if(iterations.begin(), iterations.end(),
                                    [&](const TimelineIteration& i) { return i.index == iteration; });
    if (found == iterations.end()) return;
    begin_ = found->begin;
    end_ = found->end;
    first_ = found->first.valid() ? found->first.value : 0;
    for (const SpanId id : found->spans) {
      const Span& span = timeline.spans[id.index()];
      const std::string& stream = timeline.lanes[span.lane.index()].stream;
      const auto index = static_cast<std::uint32_t>(id.index());
      if (span.instruction.valid())
        by_instruction_[{stream, span.instruction.value - first_}].push_back(index);
      else
        by_start_.emplace(std::pair{stream, span.start - begin_}, index);
    }
  }

  /// Empty if this side has no such spans.
  std::vector<std::uint32_t> find(const std::string& stream, std::int32_t instruction, double start) const {
    const auto by_id = by_instruction_.find({stream, instruction});
    if (instruction >= 0 && by_id != by_instruction_.end()) return by_id->second;
    const auto by_time = by_start_.find({stream, static_cast<SimTime>(start)});
    if (by_time != by_start_.end()) return {by_time->second};
    return {};
  }

  TimeRange range(const std::vector<std::uint32_t>& spans) const {
    TimeRange range{std::numeric_limits<SimTime>::max(), 0};
    for (const std::uint32_t index : spans) {
      const Span& span = timeline_.spans[index];
      range.begin = std::min(range.begin, span.start - begin_);
      range.end = std::max(range.end, span.start + std::max<SimDuration>(0, span.duration) - begin_);
    }
    return range;
  }
  std::int32_t first() const { return first_; }
  SimTime begin() const { return begin_; }
  SimTime end() const { return end_; }

 private:
  const Timeline& timeline_;
  SimTime begin_ = 0, end_ = 0;
  std::int32_t first_ = 0;
  std::map<std::pair<std::string, std::int32_t>, std::vector<std::uint32_t>> by_instruction_;
  std::map<std::pair<std::string, SimTime>, std::uint32_t> by_start_;
};

std::optional<std::size_t> look_up(const std::vector<std::pair<std::uint32_t, std::uint32_t>>& list,
                                   std::uint32_t span) {
  const auto found = std::lower_bound(list.begin(), list.end(), std::pair{span, 0U});
  if (found == list.end() || found->first != span) return std::nullopt;
  return found->second;
}

}  // namespace

std::optional<std::size_t> ComparisonModel::pair_of(int side, std::uint32_t span) const {
  return look_up(side == 0 ? pairs_by_span_a : pairs_by_span_b, span);
}

std::vector<float> ComparisonModel::heat(std::int32_t rank, const std::string& stream, SimTime begin,
                                         double ns_per_pixel, int width) const {
  const auto pixels = static_cast<std::size_t>(std::max(0, width));
  std::vector<double> sum(pixels, 0), weight(pixels, 0);
  for (const ComparedPair& pair : pairs) {
    if (pair.numbers.rank != rank || pair.numbers.stream != stream) continue;
    const Pair& d = pair.numbers.duration;
    const double longer = std::max(d.a, d.b);
    if (longer <= 0) continue;
    const double left = static_cast<double>(pair.b.begin - begin) / ns_per_pixel;
    const double right = static_cast<double>(pair.b.end - begin) / ns_per_pixel;
    if (right <= 0 || left >= width) continue;
    const auto last = std::min(static_cast<std::size_t>(width), static_cast<std::size_t>(std::max(0.0, right)) + 1);
    for (auto p = static_cast<std::size_t>(std::max(0.0, left)); p < last; ++p) {
      const double at = static_cast<double>(p);
      const double overlap = std::min(right, at + 1) - std::max(left, at);
      if (overlap <= 0) continue;
      sum[p] += overlap * d.difference() / longer;
      weight[p] += overlap;
    }
  }
  std::vector<float> heat(pixels, std::numeric_limits<float>::quiet_NaN());
  for (std::size_t p = 0; p < pixels; ++p)
    if (weight[p] > 0) heat[p] = static_cast<float>(sum[p] / weight[p]);
  return heat;
}

Result<std::shared_ptr<const ComparisonModel>> make_comparison_model(std::shared_ptr<const TimelineModel> a,
                                                                     std::shared_ptr<const TimelineModel> b,
                                                                     const CompareOptions& options) {
  auto numbers = compare_timelines(a->timeline, b->timeline, options);
  if (!numbers) return fail(numbers.error());
  auto model = std::make_shared<ComparisonModel>();
  model->a = std::move(a);
  model->b = std::move(b);
  model->numbers = std::move(*numbers);
  const Comparison& c = model->numbers;
  std::map<std::int32_t, std::pair<SideSpans, SideSpans>> sides;
  for (const std::int32_t rank : c.ranks) {
    const auto [at, fresh] = sides.try_emplace(rank, SideSpans(model->a->timeline, rank, c.iteration_a),
                                               SideSpans(model->b->timeline, rank, c.iteration_b));
    const auto& [side_a, side_b] = at->second;
    if (rank == c.ranks.front()) {
      model->origin_a = side_a.begin();
      model->origin_b = side_b.begin();
    }
    model->end = std::max({model->end, side_a.end() - side_a.begin(), side_b.end() - side_b.begin()});
  }
  for (const InstructionPair& row : c.by_instruction) {
    const auto& [side_a, side_b] = sides.at(row.rank);
    const std::int32_t id = row.instruction.valid() ? row.instruction.value - side_a.first() : -1;
    const auto spans_a = side_a.find(row.stream, id, row.start.a);
    const auto spans_b = side_b.find(row.stream, id, row.start.b);
    if (spans_a.empty() || spans_b.empty()) continue;
    const auto place = static_cast<std::uint32_t>(model->pairs.size());
    for (const std::uint32_t span : spans_a) model->pairs_by_span_a.emplace_back(span, place);
    for (const std::uint32_t span : spans_b) model->pairs_by_span_b.emplace_back(span, place);
    model->pairs.push_back({row, side_a.range(spans_a), side_b.range(spans_b), spans_a.front(), spans_b.front()});
  }
  std::sort(model->pairs_by_span_a.begin(), model->pairs_by_span_a.end());
  std::sort(model->pairs_by_span_b.begin(), model->pairs_by_span_b.end());
  return std::shared_ptr<const ComparisonModel>(std::move(model));
}

}  // namespace foreshard::gui
