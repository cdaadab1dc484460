#include "traces/analysis/kernel_table.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <map>
#include <memory>
#include <unordered_map>

#include "traces/analysis/host_threads.h"
#include "traces/analysis/range_statistics.h"
#include "traces/analysis/slice_origins.h"

namespace foreshard {
namespace {

constexpr std::array<std::string_view, 4> kKeys{"kernel", "operator", "module", "layer"};

/// "model.layers.12.mlp" -> "model.layers.12"; without a number the whole.
std::string layer_of(std::string_view module) {
  std::size_t begin = 0;
  while (begin < module.size()) {
    const std::size_t end = std::min(module.size(), module.find('.', begin));
    const std::string_view part = module.substr(begin, end - begin);
    if (!part.empty() && part.find_first_not_of("0123456789") == std::string_view::npos)
      return std::string(module.substr(0, end));
    begin = end + 1;
  }
  return std::string(module);
}

/// Module frames of a thread's Python stack, which nest.
class ModuleFrames {
 public:
  explicit ModuleFrames(const Timeline& timeline) : t_(timeline) {
    std::vector<bool> module(t_.names.size());
    for (std::size_t i = 0; i < t_.names.size(); ++i)
      module[i] = t_.names[i].starts_with(kModuleFrame) && !t_.names[i].ends_with("FullyShardedDataParallel_0");
    for (std::size_t i = 0; i < t_.spans.size(); ++i) {
      const Span& span = t_.spans[i];
      if (span.lane.valid() && span.name.valid() && module[span.name.index()])
        frames_[t_.lanes[span.lane.index()].rank].emplace_back(i);
    }
    for (auto& [rank, frames] : frames_) {
      std::stable_sort(frames.begin(), frames.end(), [&](SpanId a, SpanId b) { return at(a).start < at(b).start; });
    }
  }

  std::string around(std::int32_t rank, SimTime time) const {
    const auto frames = frames_.find(rank);
    if (frames == frames_.end()) return {};
    auto it = std::partition_point(frames->second.begin(), frames->second.end(),
                                   [&](SpanId id) { return at(id).start <= time; });
    constexpr int kDeepest = 256;
    for (int looked = 0; it != frames->second.begin() && looked < kDeepest; ++looked) {
      const Span& span = at(*--it);
      if (span.start + span.duration > time) return std::string(t_.name_of(span.name).substr(kModuleFrame.size()));
    }
    return {};
  }

 private:
  const Span& at(SpanId id) const { return t_.spans[id.index()]; }
  const Timeline& t_;
  std::map<std::int32_t, std::vector<SpanId>> frames_;
};

class Labels {
 public:
  Labels(const Timeline& timeline, KernelKey by) : t_(timeline), by_(by), frames_(timeline) {
    if (by == KernelKey::Kernel) return;
    for (const Flow& flow : t_.flows) {
      if (flow.from.valid() && flow.to.valid()) calls_[flow.to.value] = flow.from;
    }
    for (const Flow& flow : t_.flows) {  // of our own timelines only an instruction's first work has an arrow
      if (flow.from.valid() && flow.to.valid() && at(flow.to).instruction.valid())
        of_instruction_[{rank_of(at(flow.to)), at(flow.to).instruction.value}] = flow.from;
    }
  }

  std::string of(SpanId id) {
    const Span& span = at(id);
    if (by_ == KernelKey::Kernel) return std::string(t_.name_of(span.name));
    const SpanId call = call_of(id);
    if (by_ == KernelKey::Operator) return operator_of(span, call);
    std::string module = call.valid() ? frames_.around(rank_of(span), at(call).start) : std::string();
    if (module.empty() && span.unit >= 0 && static_cast<std::size_t>(span.unit) < t_.units.size()) {
      module = t_.units[static_cast<std::size_t>(span.unit)];
      if (module.empty()) module = "root";
    }
    return by_ == KernelKey::Layer ? layer_of(module) : module;
  }

 private:
  const Span& at(SpanId id) const { return t_.spans[id.index()]; }
  std::int32_t rank_of(const Span& span) const { return t_.lanes[span.lane.index()].rank; }

  SpanId call_of(SpanId id) const {
    const auto call = calls_.find(id.value);
    if (call != calls_.end()) return call->second;
    const auto shared = of_instruction_.find({rank_of(at(id)), at(id).instruction.value});
    return shared == of_instruction_.end() ? SpanId() : shared->second;
  }

  /// Kernels of our own timelines are named for their operator.
  std::string operator_of(const Span& span, SpanId call) {
    if (span.instruction.valid()) return std::string(t_.name_of(span.name));
    if (!call.valid()) return {};
    auto& threads = threads_[rank_of(span)];
    if (!threads) threads = std::make_unique<HostThreads>(t_, rank_of(span));
    for (SpanId outer = threads->parent(call); outer.valid(); outer = threads->parent(outer)) {
      if (at(outer).kind != SpanKind::Annotation) return std::string(t_.name_of(at(outer).name));
    }
    return {};
  }

  const Timeline& t_;
  KernelKey by_;
  ModuleFrames frames_;
  std::unordered_map<std::int32_t, SpanId> calls_;
  std::map<std::pair<std::int32_t, std::int32_t>, SpanId> of_instruction_;
  std::map<std::int32_t, std::unique_ptr<HostThreads>> threads_;
};

struct Sample {
  std::vector<SimDuration> durations;
  SimDuration longest = -1;
  SpanKind kind = SpanKind::Compute;
};

KernelRow row_of(const std::string& name, Sample& sample) {
  KernelRow row;
  row.name = name;
  row.kind = sample.kind;
  std::vector<SimDuration>& d = sample.durations;
  std::sort(d.begin(), d.end());
  row.count = static_cast<std::int64_t>(d.size());
  for (const SimDuration duration : d) row.total += duration;
  // The smallest that so many are not longer than.
  const auto at = [&](double share) {
    return d[static_cast<std::size_t>(std::max(0.0, std::ceil(share * static_cast<double>(d.size())) - 1))];
  };
  row.least = d.front(), row.p50 = at(0.5), row.p90 = at(0.9), row.p99 = at(0.99), row.most = d.back();
  return row;
}

}  // namespace

std::string_view kernel_key_name(KernelKey key) { return kKeys[static_cast<std::size_t>(key)]; }

std::optional<KernelKey> kernel_key_of_name(std::string_view name) {
  for (std::size_t i = 0; i < kKeys.size(); ++i) {
    if (kKeys[i] == name) return static_cast<KernelKey>(i);
  }
  return std::nullopt;
}

std::vector<KernelRow> kernel_table(const Timeline& timeline, const KernelTableOptions& options) {
  Labels labels(timeline, options.by);
  std::unordered_map<std::string, Sample> samples;
  std::vector<Sample> by_name(options.by == KernelKey::Kernel ? timeline.names.size() + 1 : 0);
  for (std::size_t i = 0; i < timeline.spans.size(); ++i) {
    const Span& span = timeline.spans[i];
    if (!is_device_work(span.kind) || !span.lane.valid()) continue;
    if (options.rank && timeline.lanes[span.lane.index()].rank != *options.rank) continue;
    if ((options.from && span.start < *options.from) || (options.to && span.start >= *options.to)) continue;
    Sample& sample = options.by == KernelKey::Kernel
                         ? by_name[span.name.valid() ? span.name.index() : timeline.names.size()]
                         : samples[labels.of(SpanId(i))];
    sample.durations.push_back(span.duration);
    if (span.duration > sample.longest) sample.longest = span.duration, sample.kind = span.kind;
  }
  std::vector<KernelRow> rows;
  for (std::size_t n = 0; n < by_name.size(); ++n) {
    if (!by_name[n].durations.empty())
      rows.push_back(row_of(n < timeline.names.size() ? timeline.names[n] : std::string(), by_name[n]));
  }
  for (auto& [name, sample] : samples) rows.push_back(row_of(name, sample));
  SimDuration all = 0;
  for (const KernelRow& row : rows) all += row.total;
  for (KernelRow& row : rows) row.share = all > 0 ? static_cast<double>(row.total) / static_cast<double>(all) : 0;
  std::sort(rows.begin(), rows.end(), [](const KernelRow& a, const KernelRow& b) {
    return a.total != b.total ? a.total > b.total : a.name < b.name;
  });
  return rows;
}

std::vector<KernelDifference> kernel_differences(const std::vector<KernelRow>& a, const std::vector<KernelRow>& b) {
  std::map<std::string, KernelDifference> rows;
  for (const KernelRow& row : a) rows[row.name].a = row;
  for (const KernelRow& row : b) rows[row.name].b = row;
  std::vector<KernelDifference> all;
  for (auto& [name, row] : rows) {
    row.a.name = row.b.name = name;
    all.push_back(row);
  }
  std::stable_sort(all.begin(), all.end(), [](const KernelDifference& x, const KernelDifference& y) {
    return std::llabs(x.difference()) > std::llabs(y.difference());
  });
  return all;
}

std::string folded_kernel_name(std::string_view name) {
  if (name.starts_with("void ")) name.remove_prefix(5);
  std::string folded;
  int depth = 0;
  for (std::size_t i = 0; i < name.size(); ++i) {
    const char c = name[i];
    // "(anonymous namespace)" is a part of the name.
    constexpr std::string_view kAnonymous = "(anonymous namespace)";
    if (depth == 0 && name.substr(i).starts_with(kAnonymous)) {
      i += kAnonymous.size() - 1;
      if (name.substr(i + 1).starts_with("::")) i += 2;
      continue;
    }
    if (c == '(' && depth == 0) break;
    if (c == '<' && depth++ == 0) folded += "<>";
    if (depth == 0) folded += c;
    if (c == '>') depth = std::max(0, depth - 1);
  }
  return folded.empty() ? std::string(name) : folded;
}

}  // namespace foreshard
