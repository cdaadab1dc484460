#include "core/plan/form/plan_reader.h"

#include <fmt/format.h>

#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <unordered_map>

#include "core/plan/form/plan_writer.h"
#include "core/plan/process_groups.h"

namespace foreshard::detail {
namespace {

using Json = nlohmann::json;

/// A value and the way to it, spelt only when something is wrong.
struct At {
  const Json* value = nullptr;
  const At* parent = nullptr;
  std::string_view key;
  std::size_t index = 0;

  std::string path() const {
    if (value != nullptr && value->is_object()) {
      if (const auto line = value->find("@line"); line != value->end()) return "line " + line->dump();
    }
    if (parent == nullptr) return {};
    const std::string before = parent->path();
    if (key.empty()) return fmt::format("{}[{}]", before, index);
    return before.empty() ? std::string(key)
                          : fmt::format("{}{}{}", before, before.starts_with("line") ? ", " : ".", key);
  }
};

template <class E>
using NameMap = std::unordered_map<std::string_view, E>;

template <class E, class NameOf>
NameMap<E> names_of(E last, NameOf name_of) {
  NameMap<E> map;
  for (int i = 0; i <= static_cast<int>(last); ++i) map.emplace(name_of(static_cast<E>(i)), static_cast<E>(i));
  return map;
}

/// The first error sticks; after it every getter gives a default and the caller ends soon.
class PlanReader {
 public:
  explicit PlanReader(std::string file) : file_(std::move(file)) {}

  Result<Plan> read(const Json& document) {
    const At root{&document};
    if (text(root, "schema") != "foreshard.plan/1" && ok()) {
      refuse(ErrorCode::Unsupported, root, "schema", "another schema", "foreshard.plan/1", text(root, "schema"));
    }
    plan_.runtime = word(root, "runtime", runtimes_);
    plan_.world_size = narrow(integer(root, "world_size", 1, std::numeric_limits<std::int32_t>::max()));
    plan_.rank = narrow(integer(root, "rank", 0, plan_.world_size - 1));
    plan_.steady = flag(root, "steady");
    read_groups(root);
    each(root, "streams", [&](const At& at) {
      plan_.streams.push_back({word(at, "name", streams_), narrow(integer(at, "priority"))});
    });
    plan_.param_names = texts(root, "params");
    plan_.names = texts(root, "names");
    plan_.warnings = texts(root, "warnings");
    for (std::size_t i = 0; i < plan_.param_names.size(); ++i) params_.emplace(plan_.param_names[i], ParamId(i));
    for (std::size_t i = 0; i < plan_.names.size(); ++i) names_.emplace(plan_.names[i], NameId(i));
    each(root, "units", [&](const At& at) { read_unit(at); });
    for (std::size_t i = 0; i < plan_.units.size(); ++i) {
      if (!units_.emplace(plan_.units[i].name, UnitId(i)).second) {
        refuse(ErrorCode::Inconsistent, root, "units", "two units have one name", "distinct names",
               plan_.units[i].name);
      }
    }
    if (has(root, "communicators")) {
      each(root, "communicators", [&](const At& at) { read_communicator(at); });
    }
    each(root, "segments", [&](const At& at) { read_segment(at); });
    each(root, "iterations", [&](const At& at) { read_iteration(at); });
    each(root, "checks", [&](const At& at) {
      plan_.checks.push_back({text(at, "name"), word(at, "status", statuses_), text(at, "where"), text(at, "text")});
    });
    each(root, "traps", [&](const At& at) {
      plan_.traps.push_back({narrow(integer(at, "number")), text(at, "name"), text(at, "rules"), texts(at, "units"),
                             text(at, "text"), text(at, "remedy"), flag(at, "refused")});
    });
    if (const std::optional<At> failure = find(root, "failure"); failure && !failure->value->is_null()) {
      plan_.failure = PlanFailure{narrow(integer(*failure, "iteration")), text(*failure, "action"),
                                  text(*failure, "error_class"), text(*failure, "text")};
    }
    if (error_) return fail(std::move(*error_));
    return std::move(plan_);
  }

 private:
  bool ok() const { return !error_; }

  void refuse(ErrorCode code, const At& at, std::string_view key, std::string message, std::string expected,
              std::string got) {
    if (error_) return;
    const Json* value = at.value->is_object() && at.value->contains(key) ? &(*at.value)[std::string(key)] : nullptr;
    const At place{value, &at, key, 0};
    error_ = Error{.code = code,
                   .message = std::move(message),
                   .file = file_,
                   .place = place.path(),
                   .expected = std::move(expected),
                   .got = std::move(got),
                   .hint = "docs/formats/plan.md has the format"};
  }
  void wrong_type(const At& at, std::string_view key, std::string expected) {
    const std::optional<At> value = find(at, key);
    if (value) {
      refuse(ErrorCode::WrongType, at, key, "the value has the wrong type", std::move(expected),
             value->value->type_name());
    } else {
      refuse(ErrorCode::MissingKey, at, key, "a member is missing", std::move(expected), "nothing");
    }
  }

  std::optional<At> find(const At& at, std::string_view key) const {
    if (!at.value->is_object()) return std::nullopt;
    const auto found = at.value->find(key);
    if (found == at.value->end()) return std::nullopt;
    return At{&*found, &at, key, 0};
  }
  bool has(const At& at, std::string_view key) const { return find(at, key).has_value(); }

  std::string text(const At& at, std::string_view key) {
    const std::optional<At> value = find(at, key);
    if (value && value->value->is_string()) return value->value->get<std::string>();
    wrong_type(at, key, "a text");
    return {};
  }
  bool flag(const At& at, std::string_view key) {
    const std::optional<At> value = find(at, key);
    if (value && value->value->is_boolean()) return value->value->get<bool>();
    wrong_type(at, key, "true or false");
    return false;
  }
  double number(const At& at, std::string_view key) {
    const std::optional<At> value = find(at, key);
    if (value && value->value->is_number()) return value->value->get<double>();
    wrong_type(at, key, "a number");
    return 0.0;
  }
  std::int64_t integer(const At& at, std::string_view key, std::int64_t min = std::numeric_limits<std::int64_t>::min(),
                       std::int64_t max = std::numeric_limits<std::int64_t>::max()) {
    const std::optional<At> value = find(at, key);
    if (!value || !value->value->is_number_integer()) {
      wrong_type(at, key, "an integer");
      return min > 0 ? min : 0;
    }
    const bool beyond =
        value->value->is_number_unsigned() &&
        value->value->get<std::uint64_t>() > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
    const std::int64_t n = beyond ? 0 : value->value->get<std::int64_t>();
    if (beyond || n < min || n > max) {
      refuse(ErrorCode::OutOfRange, at, key, "the number is out of range", fmt::format("{} to {}", min, max),
             value->value->dump());
      return min > 0 ? min : 0;
    }
    return n;
  }
  /// Only values that were bounded, or that are small by nature, come here; others are clamped.
  static std::int32_t narrow(std::int64_t value) {
    const std::int64_t low = std::numeric_limits<std::int32_t>::min(), high = std::numeric_limits<std::int32_t>::max();
    return static_cast<std::int32_t>(std::min(std::max(value, low), high));
  }

  template <class E>
  E word(const At& at, std::string_view key, const NameMap<E>& words) {
    const std::string name = text(at, key);
    if (!ok()) return {};
    const auto found = words.find(name);
    if (found != words.end()) return found->second;
    refuse(ErrorCode::OutOfRange, at, key, "unknown word", "a word of docs/formats/plan.md", "\"" + name + "\"");
    return {};
  }
  DType dtype(const At& at, std::string_view key) {
    const std::optional<DType> value = parse_dtype(text(at, key));
    if (!value && ok())
      refuse(ErrorCode::OutOfRange, at, key, "unknown dtype", "float32, bfloat16, ...", text(at, key));
    return value.value_or(DType::Float32);
  }

  template <class Visit>
  void each(const At& at, std::string_view key, Visit visit) {
    if (!ok()) return;
    const std::optional<At> list = find(at, key);
    if (!list || !list->value->is_array()) return wrong_type(at, key, "a list");
    for (std::size_t i = 0; i < list->value->size() && ok(); ++i) visit(At{&(*list->value)[i], &*list, {}, i});
  }

  /// A list of plain values: `convert` gets each as the only member of a list.
  std::vector<std::string> texts(const At& at, std::string_view key) {
    std::vector<std::string> out;
    each(at, key, [&](const At& item) {
      if (item.value->is_string()) return out.push_back(item.value->get<std::string>());
      refuse(ErrorCode::WrongType, at, key, "the value has the wrong type", "a list of texts", item.value->type_name());
    });
    return out;
  }
  template <class T>
  std::vector<T> integers(const At& at, std::string_view key) {
    std::vector<T> out;
    each(at, key, [&](const At& item) {
      if (item.value->is_number_integer()) return out.push_back(item.value->get<T>());
      refuse(ErrorCode::WrongType, at, key, "the value has the wrong type", "a list of integers",
             item.value->type_name());
    });
    return out;
  }

  template <class Id>
  Id look_up(const At& at, std::string_view key, const std::unordered_map<std::string, Id>& map,
             const std::string& name, const char* what) {
    const auto found = map.find(name);
    if (found != map.end()) return found->second;
    refuse(ErrorCode::Inconsistent, at, key, fmt::format("there is no such {}", what),
           fmt::format("a {} of the plan", what), "\"" + name + "\"");
    return {};
  }
  UnitId unit(const At& at, std::string_view key) {
    const std::optional<At> value = find(at, key);
    if (!value || value->value->is_null()) return {};
    return look_up(at, key, units_, text(at, key), "unit");
  }
  std::vector<UnitId> unit_list(const At& at, std::string_view key) {
    std::vector<UnitId> out;
    for (const std::string& name : texts(at, key)) out.push_back(look_up(at, key, units_, name, "unit"));
    return out;
  }
  ParamId param(const At& at, std::string_view key) { return look_up(at, key, params_, text(at, key), "parameter"); }
  std::vector<ParamId> param_list(const At& at, std::string_view key) {
    std::vector<ParamId> out;
    for (const std::string& name : texts(at, key)) out.push_back(look_up(at, key, params_, name, "parameter"));
    return out;
  }
  EventId event(const At& at, std::string_view key, const std::string& name) {
    // "e" and a number that has at most nine digits.
    if (name.size() >= 2 && name.size() <= 10 && name[0] == 'e' &&
        name.find_first_not_of("0123456789", 1) == std::string::npos) {
      return EventId(static_cast<std::int32_t>(std::stol(name.substr(1))));
    }
    refuse(ErrorCode::OutOfRange, at, key, "this is no event", "e1, e2, ...", "\"" + name + "\"");
    return {};
  }

  void read_groups(const At& root) {
    if (const std::optional<At> groups = find(root, "groups")) {
      plan_.groups.shard = integers<std::int32_t>(*groups, "shard");
      plan_.groups.replicate = integers<std::int32_t>(*groups, "replicate");
    } else {
      wrong_type(root, "groups", "an object");
    }
    if (const std::optional<At> divide = find(root, "divide")) {
      plan_.pre_divide = number(*divide, "pre");
      plan_.post_divide = number(*divide, "post");
    } else {
      wrong_type(root, "divide", "an object");
    }
  }

  ReshardAfterForward reshard(const At& at) {
    const std::optional<At> value = find(at, "reshard_after_forward");
    if (value && value->value->is_boolean()) {
      using Kind = ReshardAfterForward::Kind;
      return {value->value->get<bool>() ? Kind::True : Kind::False, 0};
    }
    return {ReshardAfterForward::Kind::GroupSize, integer(at, "reshard_after_forward", 1)};
  }

  void read_unit(const At& at) {
    PlanUnit& u = plan_.units.emplace_back();
    u.name = text(at, "module");
    for (const std::int32_t id : integers<std::int32_t>(at, "module_ids")) u.modules.emplace_back(id);
    u.strategy = word(at, "strategy", strategies_);
    u.params = param_list(at, "params");
    u.numel = integer(at, "numel", 0);
    u.flat_numel = integer(at, "flat_numel", 0);
    u.padded_numel = integer(at, "padded_numel", 0);
    u.shard_numel = integer(at, "shard_numel", 0);
    u.shard_size = narrow(integer(at, "shard_size", 1, std::numeric_limits<std::int32_t>::max()));
    u.requires_grad = flag(at, "requires_grad");
    u.align_padding = integer(at, "align_padding", 0);
    u.world_padding = integer(at, "world_padding", 0);
    each(at, "shared", [&](const At& s) { u.shared.push_back({param(s, "fqn"), param(s, "of")}); });
    u.orig_dtype = dtype(at, "orig_dtype");
    u.param_dtype = dtype(at, "param_dtype");
    u.reduce_dtype = dtype(at, "reduce_dtype");
    u.keep_low_precision_grads = flag(at, "keep_low_precision_grads");
    u.reshard_after_forward = reshard(at);
    if (find(at, "wrapped_twice")) u.wrapped_twice = flag(at, "wrapped_twice");
    each(at, "flat", [&](const At& e) {
      const std::optional<At> fqn = find(e, "fqn");
      const ParamId id = fqn && fqn->value->is_null() ? ParamId() : param(e, "fqn");
      u.flat.push_back({id, integer(e, "offset", 0), integer(e, "numel", 0)});
    });
    each(at, "sharded", [&](const At& p) {
      u.sharded.push_back({param(p, "fqn"), narrow(integer(p, "shard_dim", 0, 63)),
                           integers<std::int64_t>(p, "local_shape"), integers<std::int64_t>(p, "padded_local_shape")});
    });
  }

  void read_segment(const At& at) {
    Segment& s = plan_.segments.emplace_back();
    s.label = text(at, "label");
    s.module = ModuleId(narrow(integer(at, "module_id", -1)));
    s.unit = unit(at, "unit");
    const std::vector<std::int32_t> ops = integers<std::int32_t>(at, "ops");
    if (ok() && (ops.size() != 2 || ops[0] < 0 || ops[1] < ops[0])) {
      refuse(ErrorCode::OutOfRange, at, "ops", "this is no range", "[first, one past the last]", "another list");
    }
    if (!ok()) return;
    s.op_begin = ops[0];
    s.op_end = ops[1];
    s.params = param_list(at, "params");
    s.checkpointed = flag(at, "checkpointed");
  }

  void read_iteration(const At& at) {
    PlanIteration& it = plan_.iterations.emplace_back();
    it.index = narrow(integer(at, "index", 0));
    it.micro_batches = narrow(integer(at, "micro_batch", 0));
    it.actions = texts(at, "actions");
    each(at, "instructions", [&](const At& i) { it.instructions.push_back(read_instruction(i)); });
    const std::optional<At> end = find(at, "end");
    if (!end) return wrong_type(at, "end", "an object");
    it.pre_order = unit_list(*end, "pre_forward");
    it.post_order = unit_list(*end, "post_forward");
    for (const std::string& name : texts(*end, "limiter_queue"))
      it.limiter_queue.push_back(event(*end, "limiter_queue", name));
  }

  Instruction read_instruction(const At& at) {
    Instruction i;
    const std::int64_t id = integer(at, "id", 0);
    if (ok() && id != next_id_++) {
      refuse(ErrorCode::Inconsistent, at, "id", "instructions are numbered through from 0",
             fmt::format("{}", next_id_ - 1), fmt::format("{}", id));
    }
    i.kind = word(at, "kind", kinds_);
    i.stream = word(at, "stream", streams_);
    i.unit = unit(at, "unit");
    i.phase = word(at, "phase", phases_);
    i.origin = word(at, "origin", origins_);
    if (has(at, "other")) i.other = word(at, "other", streams_);
    if (has(at, "event")) i.event = event(at, "event", text(at, "event"));
    if (has(at, "buffer")) read_buffer(at, i);
    if (has(at, "bytes")) i.bytes = integer(at, "bytes");
    if (has(at, "numel")) i.numel = integer(at, "numel");
    if (has(at, "dtype")) i.dtype = dtype(at, "dtype");
    if (has(at, "factor")) i.factor = number(at, "factor");
    if (has(at, "communicator")) {
      const auto last = static_cast<std::int64_t>(plan_.communicators.size()) - 1;
      i.communicator = CommunicatorId(narrow(integer(at, "communicator", 0, last)));
    } else if (is_collective(i.kind) && has(at, "group")) {
      i.communicator = by_group(at, i);
    }
    const std::string_view reduce_key = is_collective(i.kind) ? "op" : "reduce_op";
    if (has(at, reduce_key)) i.reduce_op = word(at, reduce_key, reduce_ops_);
    if (has(at, name_key(i.kind))) {
      i.name = look_up(at, name_key(i.kind), names_, text(at, name_key(i.kind)), "name");
    }
    if (has(at, "arg")) i.arg = narrow(integer(at, "arg"));
    if (has(at, "blocking")) i.blocking = flag(at, "blocking");
    if (has(at, "pinned")) i.pinned = flag(at, "pinned");
    if (has(at, "host")) i.on_host = flag(at, "host");
    if (has(at, "segment")) {
      i.segment = SegmentId(narrow(integer(at, "segment", 0, static_cast<std::int64_t>(plan_.segments.size()) - 1)));
    }
    return i;
  }

  void read_communicator(const At& at) {
    const std::int64_t id = integer(at, "id", 0);
    const auto next = static_cast<std::int64_t>(plan_.communicators.size());
    PlanCommunicator one{text(at, "name"), text(at, "kind"), integers<std::int32_t>(at, "ranks")};
    if (ok() && id != next) {
      refuse(ErrorCode::Inconsistent, at, "id", "communicators are numbered through from 0", fmt::format("{}", next),
             fmt::format("{}", id));
    }
    for (const PlanCommunicator& other : plan_.communicators) {
      if (ok() && other.name == one.name) {
        refuse(ErrorCode::Inconsistent, at, "name", "two communicators have one name", "distinct names", one.name);
      }
    }
    plan_.communicators.push_back(std::move(one));
  }

  /// Of a file that names groups by kind and size only: what this version would have called it.
  CommunicatorId by_group(const At& at, const Instruction& i) {
    const std::string kind = text(at, "group");
    const std::int32_t size = has(at, "group_size") ? narrow(integer(at, "group_size", 0)) : 0;
    CommunicatorId id;
    if (kind == kShardDimension) {
      id = size == 0 ? process_groups_.shard(plan_) : process_groups_.shard(plan_, size);
      if (!id.valid() && i.unit.valid()) id = process_groups_.post_forward(plan_, i.unit, size);
    } else if (kind == kReplicateDimension) {
      id = process_groups_.replicate(plan_);
    } else if (kind == kWorldDimension) {
      id = process_groups_.world(plan_);
    }
    if (!id.valid() || (size != 0 && plan_.communicators[id.index()].ranks.size() != static_cast<std::size_t>(size))) {
      refuse(ErrorCode::Inconsistent, at, "group", "a group that the plan's ranks do not make",
             "shard, replicate or world with as many ranks, or a communicator by id",
             fmt::format("\"{}\" of {} ranks", kind, size));
      return {};
    }
    return id;
  }

  void read_buffer(const At& at, Instruction& i) {
    const std::string name = text(at, "buffer");
    const std::size_t colon = name.find(':');
    const auto what = buffers_.find(std::string_view(name).substr(0, colon));
    if (colon == std::string::npos || what == buffers_.end()) {
      return refuse(ErrorCode::OutOfRange, at, "buffer", "unknown buffer", "<what>:<unit or parameter>",
                    "\"" + name + "\"");
    }
    i.buffer.what = what->second;
    const std::string owner = name.substr(colon + 1);
    if (const auto as_unit = units_.find(owner); as_unit != units_.end()) {
      i.buffer.unit = has(at, "buffer_unit") ? unit(at, "buffer_unit") : as_unit->second;
      return;
    }
    if (owner.empty()) return;
    i.buffer.param = look_up(at, "buffer", params_, owner, "unit or parameter");
    i.buffer.unit = has(at, "buffer_unit") ? unit(at, "buffer_unit") : i.unit;
  }

  std::string file_;
  Plan plan_;
  std::optional<Error> error_;
  std::int64_t next_id_ = 0;
  ProcessGroups process_groups_;  // of files that do not list theirs
  std::unordered_map<std::string, UnitId> units_;
  std::unordered_map<std::string, ParamId> params_;
  std::unordered_map<std::string, NameId> names_;

  const NameMap<Runtime> runtimes_ = names_of(Runtime::Planned, runtime_name);
  const NameMap<Strategy> strategies_ = names_of(Strategy::HybridShardZero2, strategy_name);
  const NameMap<Stream> streams_ = names_of(static_cast<Stream>(kStreamCount - 1), stream_name);
  const NameMap<InstructionKind> kinds_ = names_of(InstructionKind::Mark, instruction_kind_name);
  const NameMap<Phase> phases_ = names_of(Phase::Load, phase_name);
  const NameMap<BufferWhat> buffers_ = names_of(BufferWhat::StateCopy, buffer_what_name);
  const NameMap<ReduceOp> reduce_ops_ = names_of(ReduceOp::Max, reduce_op_name);
  const NameMap<CheckStatus> statuses_ = names_of(CheckStatus::NotApplicable, check_status_name);
  const NameMap<Origin> origins_{{"fsdp", Origin::Fsdp}, {"autograd", Origin::Autograd}};
};

}  // namespace

std::string_view reduce_op_name(ReduceOp op) {
  switch (op) {
    case ReduceOp::None: return "none";
    case ReduceOp::Sum: return "sum";
    case ReduceOp::Avg: return "avg";
    case ReduceOp::PremulSum: return "premul_sum";
    case ReduceOp::Max: return "max";
  }
  return {};
}

std::string_view check_status_name(CheckStatus status) {
  switch (status) {
    case CheckStatus::Pass: return "pass";
    case CheckStatus::Fail: return "fail";
    case CheckStatus::NotApplicable: return "not_applicable";
  }
  return {};
}

std::string event_name(EventId event) { return fmt::format("e{}", event.value); }

Result<Plan> read_plan(const Json& document, const std::string& file) { return PlanReader(file).read(document); }

}  // namespace foreshard::detail
