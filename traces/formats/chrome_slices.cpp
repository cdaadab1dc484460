#include "traces/formats/chrome_slices.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>

#include "core/plan.h"
#include "traces/formats/chrome_trace.h"
#include "traces/timeline/trace_names.h"
#include "traces/timeline/trace_roles.h"

namespace foreshard {
namespace {

enum class Category {
  Operator,
  Range,
  Python,
  Runtime,
  Kernel,
  Copy,
  Memset,
  DeviceRange,
  Sync,
  Event,
  Overhead,
  Own,
  Unknown
};

struct KnownCategory {
  std::string_view name;
  Category category;
};
// With those of 2021 and 2022 (capital letters).
constexpr std::array<KnownCategory, 23> kCategories{{{"cpu_op", Category::Operator},
                                                     {"kernel", Category::Kernel},
                                                     {"cuda_runtime", Category::Runtime},
                                                     {"python_function", Category::Python},
                                                     {"user_annotation", Category::Range},
                                                     {"cuda_driver", Category::Runtime},
                                                     {"gpu_memcpy", Category::Copy},
                                                     {"gpu_memset", Category::Memset},
                                                     {"gpu_user_annotation", Category::DeviceRange},
                                                     {"cuda_sync", Category::Sync},
                                                     {"cuda_event", Category::Event},
                                                     {"overhead", Category::Overhead},
                                                     {"Trace", Category::Overhead},
                                                     {"hip_runtime", Category::Runtime},
                                                     {"hip_driver", Category::Runtime},
                                                     {"Operator", Category::Operator},
                                                     {"Runtime", Category::Runtime},
                                                     {"Kernel", Category::Kernel},
                                                     {"Memcpy", Category::Copy},
                                                     {"Memset", Category::Memset},
                                                     {"Python", Category::Python},
                                                     {"mark", Category::Own},
                                                     {"issue", Category::Own}}};

std::optional<SpanKind> own_kind(std::string_view name) {
  for (int k = 0; k <= static_cast<int>(kLastSpanKind); ++k) {
    if (span_kind_name(static_cast<SpanKind>(k)) == name) return static_cast<SpanKind>(k);
  }
  return std::nullopt;
}

Category category_of(std::string_view name) {
  const auto found =
      std::find_if(kCategories.begin(), kCategories.end(), [&](const KnownCategory& k) { return k.name == name; });
  if (found != kCategories.end()) return found->category;
  if (name.ends_with("_runtime") || name.ends_with("_driver")) return Category::Runtime;  // of other makers' devices
  return own_kind(name) ? Category::Own : Category::Unknown;
}

LaneRole role_of(Category category) {
  switch (category) {
    case Category::Operator:
    case Category::Range:
    case Category::Runtime: return LaneRole::Host;
    case Category::Python: return LaneRole::HostPython;
    case Category::Kernel:
    case Category::Copy:
    case Category::Memset:
    case Category::Sync: return LaneRole::Device;
    case Category::DeviceRange:
    case Category::Event: return LaneRole::DeviceRanges;
    default: return LaneRole::Other;
  }
}

constexpr std::int64_t kSyncRow = 1'000'000;  // Kineto moves waits for a stream to row stream + 1,000,000

/// "stream 7" of older files, or the number.
std::int64_t stream_number(std::string_view token) {
  std::string_view text = text_token(token);
  if (text.starts_with("stream ")) text.remove_prefix(7);
  while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
  return identity_token(text);
}

SpanKind runtime_kind(std::string_view name) {
  return is_waiting_call(name) ? SpanKind::HostWait : SpanKind::HostIssue;
}

}  // namespace

std::int32_t rank_in_name(std::string_view file) {
  file.remove_prefix(std::min(file.size(), file.rfind('/') + 1));
  for (const std::string_view word : {"rank", "worker"}) {
    std::size_t at = file.find(word);
    if (at == std::string_view::npos) continue;
    at += word.size();
    if (at < file.size() && (file[at] == '-' || file[at] == '_')) ++at;
    std::int32_t rank = 0;
    std::size_t digits = 0;
    for (; at < file.size() && file[at] >= '0' && file[at] <= '9' && digits < 8; ++at, ++digits)
      rank = rank * 10 + (file[at] - '0');
    if (digits > 0) return rank;
  }
  return -1;
}

void ChromeSlices::take(const ChromeEvent& event) {
  ++taken_;
  switch (event.phase) {
    case 'X': return slice(event);
    case 'B': return begin(event);
    case 'E': return end(event);
    case 'i':
    case 'I':
    case 'R': return instant(event);
    case 'C': return counter(event);
    case 'M': return metadata(event);
    case 's':
    case 'f': return arrow(event);
    case 't': return;  // a step of an arrow that begins and ends elsewhere
    case 0: return finding("events without a kind (ph): left out", event.name);
    default: return finding(fmt::format("events of kind '{}' are not shown", event.phase), event.name);
  }
}

void ChromeSlices::left_out(std::string_view why, const ChromeEvent& event) {
  finding(why, event.name);
  ++builder_.timeline.provenance.dropped_records;
}

/// All but start and duration.
void ChromeSlices::fill(const ChromeEvent& event, Span& span, std::int64_t& correlation) {
  const std::string_view word = text_token(event.category);
  const Category category = category_of(word);
  TimelineBuilder::LaneAbout about{role_of(category), identity_token(event.process), stream_number(event.thread)};
  span.name = builder_.name(event.name);
  if (event.thread.starts_with('"')) texts_.try_emplace(about.thread, text_token(event.thread));
  if (category == Category::Sync) {
    about.thread = about.thread >= kSyncRow ? about.thread - kSyncRow : about.thread;
    if (about.thread < 0) about.role = LaneRole::Other;
  }
  if (category != Category::Own && category != Category::Unknown && dialect_ == Dialect::Other)
    dialect_ = Dialect::Kineto;
  span.lane = builder_.lane(about);
  switch (category) {
    case Category::Operator:
    case Category::Python: span.kind = SpanKind::HostIssue; break;
    case Category::Runtime: span.kind = runtime_kind(event.name); break;
    case Category::Kernel:
    case Category::Copy:
    case Category::Memset: fill_device(event, span); break;
    case Category::Sync: span.kind = SpanKind::Wait; break;
    case Category::Range:
    case Category::DeviceRange:
    case Category::Event:
    case Category::Overhead: span.kind = SpanKind::Annotation; break;
    case Category::Own: fill_own(event, span); break;
    case Category::Unknown: span.kind = SpanKind::Other; break;
  }
  if (category == Category::Runtime || about.role == LaneRole::Device) {
    if (const auto number = integer_token(event.argument("correlation"))) correlation = *number;
    if (category == Category::Sync) correlation = -1;
  }
}

void ChromeSlices::fill_device(const ChromeEvent& event, Span& span) {
  ++device_slices_;
  const std::string_view category = text_token(event.category);
  span.kind = category == "gpu_memcpy" || category == "Memcpy"   ? SpanKind::Copy
              : category == "gpu_memset" || category == "Memset" ? SpanKind::Memset
                                                                 : device_work_kind(event.name);
  if (const auto bytes = integer_token(event.argument("bytes"))) span.bytes = *bytes;
  if (!is_nccl_kernel(event.name)) return;
  for (const char* key : {"Process Group Description", "Process Group Name"}) {
    const std::string_view group = text_token(event.argument(key));
    if (!group.empty() && group != "undefined" && !span.communicator.valid()) span.communicator = builder_.name(group);
  }
  const std::string_view collective = text_token(event.argument("Collective name"));
  if (const auto kind = collective_kind(collective); kind && span.kind == SpanKind::SendRecv) span.kind = *kind;
  const Bytes element = recorded_dtype_bytes(text_token(event.argument("dtype")));
  const auto in = integer_token(event.argument("In msg nelems"));
  const auto out = integer_token(event.argument("Out msg nelems"));
  const auto numel = span.kind == SpanKind::AllGather ? out : in;
  if (numel && element > 0 && *numel >= 0 && *numel < (std::int64_t{1} << 56U)) span.bytes = *numel * element;
}

void ChromeSlices::fill_own(const ChromeEvent& event, Span& span) {
  dialect_ = Dialect::Own;
  span.kind = own_kind(text_token(event.category)).value_or(SpanKind::Other);
  const auto number = [&](std::string_view key, std::int64_t otherwise) {
    return integer_token(event.argument(key)).value_or(otherwise);
  };
  span.instruction = InstructionId(static_cast<std::int32_t>(number("instruction", -1)));
  span.op = static_cast<std::int32_t>(number("op", -1));
  span.bytes = number("bytes", 0);
  if (const std::string_view unit = event.argument("unit"); !unit.empty()) span.unit = builder_.unit(text_token(unit));
  if (const auto group = text_token(event.argument("communicator")); !group.empty()) {
    span.communicator = builder_.name(group);
  }
  const std::string_view phase = text_token(event.argument("phase"));
  for (int p = 1; !phase.empty() && p <= static_cast<int>(Phase::Load); ++p) {
    if (phase_name(static_cast<Phase>(p)) == phase) span.phase = p;
  }
  if (event.name == span_kind_name(span.kind)) span.name = NameId();
}

/// Of our own slices only what the fields of a span do not hold.
std::uint32_t ChromeSlices::keep_arguments(const ChromeEvent& event) {
  if (event.all_arguments.size() <= 2) return TimelineBuilder::kNoArguments;
  const bool own = dialect_ == Dialect::Own;
  const auto is_field = [](const ChromeEvent::Argument& argument) { return is_span_field(argument.key); };
  if (own && std::all_of(event.arguments.begin(), event.arguments.end(), is_field))
    return TimelineBuilder::kNoArguments;
  return arguments_.take(event.all_arguments, own);
}

void ChromeSlices::slice(const ChromeEvent& event) {
  const auto start = microseconds_token(event.time);
  if (!start) return left_out("slices without a time: left out", event);
  Span span;
  span.start = *start;
  if (const auto duration = microseconds_token(event.duration)) {
    span.duration = *duration;
  } else if (text_token(event.duration).empty()) {
    finding("slices without a duration, shown as moments", event.name);
  } else {
    return left_out("slices whose duration is no number: left out", event);
  }
  if (span.duration < 0) return left_out("slices with a negative duration: left out", event);
  std::int64_t correlation = -1;
  fill(event, span, correlation);
  builder_.add(span, correlation, keep_arguments(event));
}

void ChromeSlices::begin(const ChromeEvent& event) {
  const auto start = microseconds_token(event.time);
  if (!start) return left_out("slices without a time: left out", event);
  Open open;
  open.span.start = *start;
  fill(event, open.span, open.correlation);
  open.arguments = keep_arguments(event);
  open_[{identity_token(event.process), stream_number(event.thread)}].push_back(open);
}

void ChromeSlices::end(const ChromeEvent& event) {
  const auto time = microseconds_token(event.time);
  if (!time) return left_out("slices without a time: left out", event);
  auto open = open_.find({identity_token(event.process), stream_number(event.thread)});
  if (open == open_.end() || open->second.empty()) return left_out("ends without a beginning: left out", event);
  Open& last = open->second.back();
  last.span.duration = *time - last.span.start;
  if (last.span.duration < 0)
    left_out("slices with a negative duration: left out", event);
  else
    builder_.add(last.span, last.correlation, last.arguments);
  open->second.pop_back();
}

void ChromeSlices::instant(const ChromeEvent& event) {
  const auto time = microseconds_token(event.time);
  if (!time) return left_out("moments without a time: left out", event);
  if (event.name == "[memory]") return memory(event, *time);
  TimeMark mark;
  mark.time = *time;
  mark.name = builder_.name(event.name);
  mark.rank = static_cast<std::int32_t>(std::clamp<std::int64_t>(identity_token(event.process), -1, 1 << 30));
  builder_.timeline.marks.push_back(mark);
}

void ChromeSlices::sample(std::string_view counter, std::string_view unit, std::int32_t rank, SimTime time,
                          std::int64_t value) {
  builder_.timeline.samples.push_back({builder_.counter(rank, counter, unit), time, value});
}

void ChromeSlices::memory(const ChromeEvent& event, SimTime time) {
  const bool device = integer_token(event.argument("Device Type")).value_or(0) == 1;
  const std::int64_t id = device ? integer_token(event.argument("Device Id")).value_or(0) : -1;
  if (device && memory_device_ < 0) memory_device_ = id;
  const std::string where = !device ? "host " : id == memory_device_ ? "" : fmt::format("gpu {} ", id);
  std::int64_t& total = memory_[id];
  const auto allocated = integer_token(event.argument("Total Allocated"));
  const auto reserved = integer_token(event.argument("Total Reserved"));
  const std::int64_t bytes = integer_token(event.argument("Bytes")).value_or(0);
  total = allocated && (device || *allocated > 0)
              ? *allocated
              : static_cast<std::int64_t>(static_cast<std::uint64_t>(total) + static_cast<std::uint64_t>(bytes));
  sample(where + "allocated", "bytes", 0, time, total);
  if (reserved && device) sample(where + "reserved", "bytes", 0, time, *reserved);
}

/// Ours are called "memory allocated [bytes]" and "memory, of which activations [bytes]".
void ChromeSlices::counter(const ChromeEvent& event) {
  const auto time = microseconds_token(event.time);
  if (!time) return left_out("samples of counters without a time: left out", event);
  constexpr std::string_view kOwn = "memory ", kOwnCategory = "memory, of which ";
  const std::size_t bracket = event.name.rfind(" [");
  const bool unit = bracket != std::string_view::npos && event.name.ends_with("]");
  const std::string_view called = event.name.substr(0, unit ? bracket : event.name.size());
  const bool category = unit && called.starts_with(kOwnCategory);
  const bool own = category || (unit && called.starts_with(kOwn));
  for (const ChromeEvent::Argument& argument : event.arguments) {
    const auto value = integer_token(argument.token);
    if (!value) {
      left_out("samples of counters that are no numbers: left out", event);
      continue;
    }
    std::string name(called);
    if (own)
      name = category ? "category:" + name.substr(kOwnCategory.size()) : name.substr(kOwn.size());
    else if (event.arguments.size() > 1 || name.empty())
      name += fmt::format("{}{}", name.empty() ? "" : " ", argument.key);
    const std::int64_t process = own ? identity_token(event.process) : 0;
    sample(name, unit ? event.name.substr(bracket + 2, event.name.size() - bracket - 3) : std::string_view(),
           static_cast<std::int32_t>(std::clamp<std::int64_t>(process, 0, 1 << 30)), *time, *value);
  }
}

void ChromeSlices::metadata(const ChromeEvent& event) {
  const std::string_view name = text_token(event.argument("name"));
  if (event.name == "thread_name") thread_names_[{identity_token(event.process), stream_number(event.thread)}] = name;
}

/// Arrows whose ends must be found by place and time; those of Kineto's launches repeat the correlation numbers.
void ChromeSlices::arrow(const ChromeEvent& event) {
  const std::string_view category = text_token(event.category);
  if (category == "ac2g" || category.starts_with("async")) return;
  const auto time = microseconds_token(event.time);
  if (!time) return left_out("arrows without a time: left out", event);
  const auto id = static_cast<std::uint64_t>(identity_token(event.id)) * 31 + (category.empty() ? 0 : category.front());
  const LaneRole role = category == "fwdbwd" ? LaneRole::Host : LaneRole::Other;
  arrows_.push_back(
      {event.phase, id, builder_.lane({role, identity_token(event.process), stream_number(event.thread)}), *time});
}

void ChromeSlices::read_beside(const std::map<std::string, std::string>& beside) {
  const auto value = [&](const char* key) -> nlohmann::json {
    const auto text = beside.find(key);
    if (text == beside.end()) return nullptr;
    auto parsed = nlohmann::json::parse(text->second, nullptr, false);
    if (!parsed.is_discarded()) return parsed;
    finding(fmt::format("the value of {} cannot be read", key), "");
    return nullptr;
  };
  const auto integer = [](const nlohmann::json& object, const char* key, std::int64_t otherwise) {
    if (!object.is_object() || !object.contains(key)) return otherwise;
    return integer_token(object[key].dump()).value_or(otherwise);
  };
  const nlohmann::json about = value("distributedInfo");
  rank_ = static_cast<std::int32_t>(std::clamp<std::int64_t>(integer(about, "rank", -1), -1, 1 << 30));
  world_size_ = static_cast<std::int32_t>(std::clamp<std::int64_t>(integer(about, "world_size", 0), 0, 1 << 30));
  if (const auto base = beside.find("baseTimeNanoseconds"); base != beside.end())
    base_ns_ = integer_token(base->second).value_or(0);
  for (const nlohmann::json& device : value("deviceProperties")) {
    if (device.is_object() && device.contains("name") && device["name"].is_string())
      devices_[integer(device, "id", 0)] = device["name"].get<std::string>();
  }
  Provenance& p = builder_.timeline.provenance;
  const nlohmann::json other = value("otherData");
  if (other.is_object() && other.value("schema", nlohmann::json()) == "foreshard.chrome/1") {
    dialect_ = Dialect::Own;
    const auto text = [&](const char* key) {
      return other.contains(key) && other[key].is_string() ? other[key].get<std::string>() : std::string();
    };
    p.source = text("source"), p.plan_digest = text("plan_digest"), p.software = text("software");
    p.hardware = text("hardware"), p.clock = text("clock");
    p.dropped_records += std::max<std::int64_t>(0, integer_token(text("dropped_records")).value_or(0));
    return;
  }
  p.source = dialect_ == Dialect::Kineto ? "kineto" : "chrome";
  p.clock = p.source;
  for (const char* version : {"cuda_runtime_version", "hip_runtime_version"}) {
    if (const auto text = beside.find(version); text != beside.end())
      p.software = fmt::format("{} {}", std::string_view(version).substr(0, std::string_view(version).find('_')),
                               text->second.substr(0, 20));
  }
}

std::string ChromeSlices::thread_label(const TimelineBuilder::LaneAbout& about) const {
  const auto named = thread_names_.find({about.process, about.thread});
  const auto spelt = texts_.find(about.thread);
  std::string label = spelt != texts_.end() ? spelt->second
                      : about.thread >= 0   ? fmt::format("thread {}", about.thread)
                                            : "";
  if (named != thread_names_.end() && !named->second.empty() && named->second.find(label) == std::string::npos)
    label += (label.empty() ? "" : " ") + named->second;
  else if (named != thread_names_.end() && !named->second.empty())
    label = named->second;
  return label;
}

Result<OpenedTrace> ChromeSlices::finish(const std::map<std::string, std::string>& beside) {
  read_beside(beside);
  for (const auto& [row, stack] : open_) {
    for (const Open& open : stack) {
      finding("slices that begin and never end, shown as moments", "");
      builder_.add(open.span, open.correlation, open.arguments);
    }
  }
  if (rank_ < 0) rank_ = std::max(0, rank_in_name(file_));
  if (dialect_ == Dialect::Own) name_own_lanes();
  const SimTime zero = builder_.finish();
  bind_arrows(zero);
  OpenedTrace opened;
  if (dialect_ != Dialect::Own) {
    for (std::size_t i = 0; i < builder_.lanes.size(); ++i) {
      const auto& about = builder_.lanes[i];
      builder_.timeline.lanes[i].label = about.role == LaneRole::Device || about.role == LaneRole::DeviceRanges
                                             ? fmt::format("stream {}", about.thread)
                                             : thread_label(about);
    }
    for (Counter& counter : builder_.timeline.counters) counter.rank = rank_;
    for (TimeMark& mark : builder_.timeline.marks) mark.rank = rank_;
    Provenance& p = builder_.timeline.provenance;
    const std::int64_t device = assign_roles(builder_, rank_);
    if (const auto card = devices_.find(device); card != devices_.end()) p.hardware = card->second;
    const bool unix_time = base_ns_ > 0 || zero > 1'000'000'000LL * 1'000'000'000;
    if (unix_time) opened.origin_ns = base_ns_ + zero;
  }
  opened.arguments = arguments_.finish();
  opened.arguments.row_of_span = std::move(builder_.argument_rows);
  if (arguments_.dropped() > 0)
    note(fmt::format("{} arguments of slices are left out: there are more than {} names of them", arguments_.dropped(),
                     SliceArguments::kMostKeys));
  opened.format = dialect_ == Dialect::Own ? "chrome" : "kineto";
  opened.warnings = builder_.warnings(file_);
  for (std::string& text : notes_) opened.warnings.push_back({file_, std::move(text)});
  opened.world_size = world_size_;
  opened.timeline = std::move(builder_.timeline);
  return opened;
}

/// Thread names become streams again; the rows that overlaps were spread over become one lane.
void ChromeSlices::name_own_lanes() {
  Timeline& t = builder_.timeline;
  std::map<std::pair<std::int32_t, std::string>, LaneId> lane_of;
  std::vector<LaneId> target(t.lanes.size());
  for (std::size_t i = 0; i < t.lanes.size(); ++i) {
    const auto& about = builder_.lanes[i];
    const auto named = thread_names_.find({about.process, about.thread});
    std::string stream = named != thread_names_.end() ? named->second : fmt::format("{}", about.thread);
    if (const std::size_t row = stream.rfind(" ("); row != std::string::npos && stream.back() == ')') {
      const std::string number = stream.substr(row + 2, stream.size() - row - 3);
      if (!number.empty() && number.find_first_not_of("0123456789") == std::string::npos) stream.resize(row);
    }
    for (const std::string_view letter : {"host", "D", "U", "C", "A", "G", "S", "Q", "H"}) {
      if (spoken_stream_name(letter) == stream) stream = letter;
    }
    const auto rank = static_cast<std::int32_t>(std::clamp<std::int64_t>(about.process, -1, 1 << 30));
    t.lanes[i].rank = rank;
    t.lanes[i].stream = stream;
    target[i] = lane_of.try_emplace({rank, stream}, LaneId(i)).first->second;
  }
  alias_lanes(target);
}

void ChromeSlices::alias_lanes(const std::vector<LaneId>& target) {
  Timeline& t = builder_.timeline;
  std::vector<LaneId> place(target.size());
  std::vector<Lane> kept;
  std::vector<TimelineBuilder::LaneAbout> abouts;
  for (std::size_t i = 0; i < target.size(); ++i) {
    if (target[i].index() != i) continue;
    place[i] = LaneId(kept.size());
    kept.push_back(t.lanes[i]);
    abouts.push_back(builder_.lanes[i]);
  }
  const auto moved = [&](LaneId lane) { return place[target[lane.index()].index()]; };
  for (Span& span : t.spans) span.lane = moved(span.lane);
  for (Arrow& arrow : arrows_) arrow.lane = moved(arrow.lane);
  t.lanes = std::move(kept);
  builder_.lanes = std::move(abouts);
}

/// The innermost slice that holds the moment; one that begins there is meant before one that only lasts.
SpanId ChromeSlices::span_at(LaneId lane, SimTime time) const {
  const std::vector<Span>& spans = builder_.timeline.spans;
  const auto after = std::partition_point(
      spans.begin(), spans.end(), [&](const Span& s) { return s.lane < lane || (s.lane == lane && s.start <= time); });
  constexpr int kLookedAt = 64;
  int looked = 0;
  for (auto it = after; it != spans.begin() && looked < kLookedAt; ++looked) {
    --it;
    if (it->lane != lane) break;
    if (it->start == time || it->start + it->duration >= time)
      return SpanId(static_cast<std::size_t>(it - spans.begin()));
  }
  return {};
}

void ChromeSlices::bind_arrows(SimTime zero) {
  std::unordered_map<std::uint64_t, SpanId> from;
  for (const Arrow& arrow : arrows_) {
    if (arrow.phase == 's') from[arrow.id] = span_at(arrow.lane, arrow.time - zero);
  }
  for (const Arrow& arrow : arrows_) {
    if (arrow.phase != 'f') continue;
    const auto begin = from.find(arrow.id);
    if (begin == from.end()) continue;  // common and harmless
    const SpanId to = span_at(arrow.lane, arrow.time - zero);
    if (begin->second.valid() && to.valid() && begin->second != to)
      builder_.timeline.flows.push_back({begin->second, to});
  }
}

}  // namespace foreshard
