#include "core/model/model_json_facts.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/model/json_input.h"
#include "core/model/mesh_dimension.h"
#include "core/model/op_keywords.h"

namespace foreshard {
namespace {

using Json = nlohmann::json;

constexpr std::int64_t kMaxAmount = std::int64_t{1} << 60;
constexpr std::string_view kScript = "(script)";  // no module's name

}  // namespace

bool FactsReader::module_of(const std::string& fqn, const std::string& place, ModuleId& id) {
  const auto it = module_ids_.find(fqn);
  if (it == module_ids_.end()) {
    return problem_.set(ErrorCode::Inconsistent, place, "no module " + in_quotes(fqn) + " is listed", "a listed module",
                        in_quotes(fqn), nearest_module_hint(m_, fqn));
  }
  id = it->second;
  return true;
}

bool FactsReader::value_of(const std::string& name, const std::string& place, ValueId& id) {
  const auto it = value_ids_.find(name.starts_with('%') ? name.substr(1) : name);
  if (it == value_ids_.end()) {
    return problem_.set(ErrorCode::Inconsistent, place, "nobody makes the value " + in_quotes(name),
                        "an input or the result of an operator", in_quotes(name));
  }
  id = it->second;
  return true;
}

bool FactsReader::values_of(JsonFields& f, std::string_view key, std::vector<ValueId>& ids) {
  for (const std::string& name : f.texts(key)) {
    if (!value_of(name, f.place(key), ids.emplace_back())) return false;
  }
  return f.good();
}

bool FactsReader::value(JsonFields& f, ValueInfo& value) {
  if (f.has("strides")) {
    const Json* strides = f.array("strides");
    for (std::size_t i = 0; strides != nullptr && i < strides->size(); ++i) {
      const Json& stride = (*strides)[i];
      if (!stride.is_number_integer() || stride < 0 || stride > kMaxAmount)
        return problem_.set(ErrorCode::OutOfRange, f.place("strides"), "a stride is out of range", "0 or more elements",
                            describe_json(stride));
      value.strides.push_back(stride.get<std::int64_t>());
    }
    if (f.good() && value.strides.size() != value.shape.size())
      return problem_.set(ErrorCode::Inconsistent, f.place("strides"), "strides and shape differ in length",
                          std::to_string(value.shape.size()) + " strides", std::to_string(value.strides.size()));
  }
  if (f.has("alias_of") && !value_of(f.text("alias_of"), f.place("alias_of"), value.alias_of)) return false;
  return held(f, value.held);
}

bool FactsReader::held(JsonFields& f, Hold& hold) {
  const Json* until = f.find("held_until");
  const std::string by = f.text_or("held_by", std::string(kScript));
  if (!f.good()) return false;
  if (f.has("held_by") && by != kScript && !module_of(by, f.place("held_by"), hold.by)) return false;
  if (until == nullptr) {
    if (!hold.by.valid()) return true;
    return problem_.set(ErrorCode::MissingKey, f.place("held_until"), "who holds a value says until when",
                        "\"held_until\"", "nothing");
  }
  const auto op = until->is_object() && until->size() == 1 ? until->find("op") : until->end();
  if (until->is_object() && op != until->end() && op->is_number_integer() && *op >= 0 && *op <= kMaxCount) {
    hold.until = Hold::Until::Op;
    hold.op = op->get<std::int32_t>();
    return true;
  }
  const auto exits = until->is_object() && until->size() == 1 ? until->find("autocast") : until->end();
  if (until->is_object() && exits != until->end() && exits->is_number_integer() && *exits >= 0 && *exits <= kMaxCount) {
    hold.until = Hold::Until::Autocast;
    hold.op = exits->get<std::int32_t>();
    return true;
  }
  const auto next = until->is_object() && until->size() == 1 ? until->find("next") : until->end();
  if (until->is_object() && next != until->end() && next->is_string()) {
    const auto named = [&](const BufferInfo& buffer) { return buffer.fqn == next->get<std::string>(); };
    const auto buffer = std::find_if(m_.buffers.begin(), m_.buffers.end(), named);
    if (buffer == m_.buffers.end())
      return problem_.set(ErrorCode::OutOfRange, f.place("held_until"), "no buffer has this name", "one of \"buffers\"",
                          next->get<std::string>());
    hold.until = Hold::Until::Next;
    hold.op = static_cast<std::int32_t>(buffer - m_.buffers.begin());
    return true;
  }
  const std::string word = until->is_string() ? until->get<std::string>() : std::string();
  if (word == "call") hold.until = Hold::Until::Call;
  if (word == "forward") hold.until = Hold::Until::Forward;
  if (word == "step") hold.until = Hold::Until::Step;
  if (word == "next") hold.until = Hold::Until::Next;
  if (word == "run") hold.until = Hold::Until::Run;
  if (hold.until != Hold::Until::LastUse) return true;
  return problem_.set(ErrorCode::OutOfRange, f.place("held_until"), "a value is not held until that",
                      R"({"op": K}, {"autocast": K}, {"next": BUFFER}, "call", "forward", "step", "next" or "run")",
                      describe_json(*until));
}

bool FactsReader::dimension(const Json& row, const std::string& place) {
  JsonFields f(row, place, problem_, {"name", "ranks", "place"});
  if (!f.good()) return false;
  MeshDimension made;
  made.name = f.text("name");
  const Json* ranks = f.array("ranks");
  for (std::size_t i = 0; ranks != nullptr && i < ranks->size(); ++i) {
    const Json& rank = (*ranks)[i];
    if (!rank.is_number_integer() || rank < 0 || rank > kMaxCount)
      return problem_.set(ErrorCode::OutOfRange, f.place("ranks"), "a rank is out of range", "0 or more",
                          describe_json(rank));
    made.ranks.push_back(rank.get<std::int32_t>());
  }
  const auto size = static_cast<std::int64_t>(made.ranks.size());
  if (f.good() && size < 2)
    return problem_.set(ErrorCode::OutOfRange, f.place("ranks"), "a dimension of a mesh has several ranks",
                        "two ranks or more", std::to_string(size));
  made.place = static_cast<std::int32_t>(f.integer_or("place", 0, 0, size - 1));
  m_.mesh.push_back(std::move(made));
  return f.good();
}

bool FactsReader::part(JsonFields& f, ParamInfo& info) {
  const Json* row = f.find("part");
  if (!f.good() || row == nullptr) return f.good();
  JsonFields g(*row, f.place("part"), problem_, {"mesh", "dim", "whole", "begin"});
  if (!g.good()) return false;
  const auto dimensions = static_cast<std::int64_t>(m_.mesh.size()),
             dims = static_cast<std::int64_t>(info.shape.size());
  info.part.dimension = static_cast<std::int32_t>(g.integer_or("mesh", -1, 0, dimensions - 1));
  info.part.dim = static_cast<std::int32_t>(g.integer_or("dim", -1, 0, dims - 1));
  info.part.whole = g.integer_or("whole", 0, 0, kMaxAmount);
  info.part.begin = g.integer_or("begin", 0, 0, kMaxAmount);
  if (g.good() && info.part.dimension < 0)
    return problem_.set(ErrorCode::MissingKey, g.place("mesh"), "a part is one of a dimension of \"mesh\"",
                        "the number of a dimension", "nothing");
  return g.good();
}

bool FactsReader::collectives(const JsonFields& f, const Op& op) {
  const auto exists = [&](const Arg& arg) {
    const auto* at = std::get_if<std::int64_t>(&arg.value);
    return at != nullptr && *at >= 0 && *at < static_cast<std::int64_t>(m_.mesh.size());
  };
  const auto is_met = [](const Arg& arg) {
    const auto* word = std::get_if<std::string>(&arg.value);
    return word != nullptr && std::find(kMetCollectives.begin(), kMetCollectives.end(), *word) != kMetCollectives.end();
  };
  const auto is_count = [](const Arg& arg) {
    const auto* count = std::get_if<std::int64_t>(&arg.value);
    return count != nullptr && *count >= 0;
  };
  bool good = op.name != "mesh.all_to_all" || (op.args.size() > 1 && exists(op.args[1]) && !op.out.empty());
  for (const NamedArg& named : op.kwargs) {
    if (named.name != "meets" && named.name != "meets_backward") continue;
    const auto* rows = std::get_if<ArgList>(&named.arg.value);
    good = good && rows != nullptr && op.name.starts_with("opaque.");
    for (std::size_t i = 0; good && i < rows->size(); ++i) {
      const auto* row = std::get_if<ArgList>(&(*rows)[i].value);
      good = row != nullptr && row->size() > 2 && is_met((*row)[0]) && exists((*row)[1]) && is_count((*row)[2]);
    }
  }
  return good || problem_.set(ErrorCode::Inconsistent, f.place("kwargs"), "a collective names whom it meets",
                              R"([KIND, DIMENSION, BYTES] in "meets": all_to_all, all_gather, reduce_scatter or )"
                              R"(all_reduce, and a dimension of "mesh")",
                              in_quotes(op.name));
}

bool FactsReader::releases(const JsonFields& f, const Op& op) {
  if (keyword(op, "releases") == nullptr) return true;
  const std::string place = f.place("kwargs");
  const ArgList* const names = keyword_list(op, "releases");
  if (names == nullptr)
    return problem_.set(ErrorCode::WrongType, place, "\"releases\" is of another type", "a list of values' names",
                        in_quotes(op.name));
  for (const Arg& arg : *names) {
    const auto* name = std::get_if<std::string>(&arg.value);
    ValueId id;
    if (!value_of(name == nullptr ? std::string() : *name, place, id)) return false;
  }
  return true;
}

bool FactsReader::op(JsonFields& f, Op& op) {
  if (!collectives(f, op) || !releases(f, op)) return false;
  op.region = static_cast<std::int32_t>(f.integer_or("region", -1, 0, kMaxCount));
  const bool named = op.name.starts_with("opaque.");
  const Json* body = f.find("opaque");
  if (!f.good() || (body == nullptr && !named)) return f.good();
  if (body == nullptr || !named) {
    return problem_.set(ErrorCode::Inconsistent, f.place("opaque"),
                        "opaque operators are named so, and say what they do", R"("op": "opaque.NAME" and "opaque")",
                        in_quotes(op.name));
  }
  JsonFields g(*body, f.place("opaque"), problem_,
               {"saved", "bytes_moved", "flops", "backward_flops", "workspace_bytes", "backward"});
  if (!g.good()) return false;
  OpaqueOp opaque;
  opaque.bytes_moved = g.integer_or("bytes_moved", 0, 0, kMaxAmount);
  opaque.flops = static_cast<Flops>(g.integer_or("flops", 0, 0, kMaxAmount));
  opaque.backward_flops = static_cast<Flops>(g.integer_or("backward_flops", -1, -1, kMaxAmount));
  opaque.workspace_bytes = g.integer_or("workspace_bytes", 0, 0, kMaxAmount);
  const Json* rows = g.array("saved");
  for (std::size_t i = 0; rows != nullptr && i < rows->size(); ++i) {
    if (!saved((*rows)[i], g.place("saved") + "[" + std::to_string(i) + "]", opaque)) return false;
  }
  rows = g.array("backward");
  for (std::size_t i = 0; rows != nullptr && i < rows->size(); ++i) {
    if (!gradient((*rows)[i], g.place("backward") + "[" + std::to_string(i) + "]", opaque)) return false;
  }
  if (!g.good()) return false;
  op.opaque = static_cast<std::int32_t>(m_.opaques.size());
  m_.opaques.push_back(std::move(opaque));
  return true;
}

bool FactsReader::saved(const Json& row, const std::string& place, OpaqueOp& opaque) {
  OpaqueOp::Saved saved;
  if (row.is_string()) {
    if (!value_of(row.get<std::string>(), place, saved.value)) return false;
  } else {
    JsonFields f(row, place, problem_, {"shape", "dtype"});
    if (!f.good()) return false;
    saved.shape = f.shape("shape");
    saved.dtype = f.dtype("dtype");
  }
  opaque.saved.push_back(std::move(saved));
  return !problem_.error;
}

bool FactsReader::gradient(const Json& row, const std::string& place, OpaqueOp& opaque) {
  OpaqueOp::Gradient gradient;
  gradient.made = !row.is_null();
  if (gradient.made) {
    JsonFields f(row, place, problem_, {"shape", "dtype", "over_saved", "over_given"});
    if (!f.good()) return false;
    gradient.shape = f.shape("shape");
    gradient.dtype = f.dtype("dtype");
    const auto saved = static_cast<std::int64_t>(opaque.saved.size());
    const std::int64_t over_saved = f.integer_or("over_saved", -1, -1, saved - 1);
    const std::int64_t over_given = f.integer_or("over_given", -1, -1, kMaxCount);
    if (over_saved >= 0) gradient.storage = OpaqueOp::Gradient::Storage::Saved;
    if (over_given >= 0) gradient.storage = OpaqueOp::Gradient::Storage::Given;
    gradient.of = static_cast<std::int32_t>(std::max<std::int64_t>(0, over_given >= 0 ? over_given : over_saved));
  }
  opaque.backward.push_back(std::move(gradient));
  return !problem_.error;
}

bool FactsReader::top(JsonFields& f) {
  m_.loss_begin = static_cast<std::int32_t>(f.integer_or("loss_begin", -1, -1, kMaxCount));
  const std::string choices = f.text_or("choices", "computed");
  m_.assumes_choices = choices == "assumed";
  if (f.good() && !m_.assumes_choices && choices != "computed")
    return problem_.set(ErrorCode::OutOfRange, f.place("choices"), "choices come from elsewhere", "computed or assumed",
                        in_quotes(choices));
  return f.good() && lifetimes(f) && job(f) && parallel(f) && optimizers(f);
}

bool FactsReader::lifetimes(JsonFields& f) {
  const auto* const ops = f.find("ops");
  const bool program = ops != nullptr && ops->is_array() && !ops->empty();
  const std::string word = f.text_or("lifetimes", program ? "assumed" : "built");
  if (word == "recorded") m_.lifetimes = Lifetimes::Recorded;
  if (word == "assumed") m_.lifetimes = Lifetimes::Assumed;
  if (!f.good() || m_.lifetimes != Lifetimes::Built || word == "built") return f.good();
  return problem_.set(ErrorCode::OutOfRange, f.place("lifetimes"), "lifetimes come from elsewhere",
                      "built, recorded or assumed", in_quotes(word));
}

bool FactsReader::job(JsonFields& f) {
  const Json* body = f.find("job");
  if (body == nullptr) return true;
  if (!body->is_object())
    return problem_.set(ErrorCode::WrongType, f.place("job"), "\"job\" is of another type",
                        "an object of job keys and values", describe_json(*body));
  for (const auto& [key, value] : body->items()) {
    const std::string where = f.place("job") + "." + key;
    if (!value.is_string() && !value.is_number() && !value.is_boolean())
      return problem_.set(ErrorCode::WrongType, where, "a job's default is one value", "a text, a number or a boolean",
                          describe_json(value));
    m_.job[key] = value.is_string() ? value.get<std::string>() : value.dump();
  }
  return true;
}

bool FactsReader::parallel(JsonFields& f) {
  const Json* body = f.find("parallel");
  if (body == nullptr) return true;
  const auto is_pair = [](const Json& row) {
    return row.is_array() && row.size() == 2 && row[0].is_string() && row[1].is_string();
  };
  if (!body->is_array() || !std::all_of(body->begin(), body->end(), is_pair))
    return problem_.set(ErrorCode::WrongType, f.place("parallel"), "\"parallel\" is of another type",
                        "a list of pairs [module pattern, style]", describe_json(*body));
  for (const Json& row : *body) m_.parallel.push_back({row[0].get<std::string>(), row[1].get<std::string>()});
  return true;
}

constexpr std::int64_t kMostThere = 1 << 22;  // tensors that an optimizer keeps

bool FactsReader::step(JsonFields& f, std::string_view key, WatchedStep& step) {
  const Json* row = f.find(key);
  if (row == nullptr) return true;
  JsonFields fields(*row, f.place(key), problem_, {"there", "events"});
  if (!fields.good()) return false;
  step.there = fields.integer_or("there", 0, 0, kMostThere);
  const Json* events = fields.array("events");
  std::vector<bool> is_there(static_cast<std::size_t>(step.there), true);
  for (std::size_t i = 0; events != nullptr && i < events->size(); ++i) {
    const Json& event = (*events)[i];
    const bool whole = event.is_number_integer() &&
                       !(event.is_number_unsigned() && event.get<std::uint64_t>() > std::uint64_t{kMaxAmount});
    const std::int64_t value = whole ? event.get<std::int64_t>() : 0;
    const bool takes = value > 0 && value <= kMaxAmount;
    const bool goes =
        value < 0 && -(value + 1) < std::ssize(is_there) && is_there[static_cast<std::size_t>(-(value + 1))];
    if (!takes && !goes)
      return problem_.set(ErrorCode::OutOfRange, fields.place("events") + "[" + std::to_string(i) + "]",
                          "this is no taking or giving back of memory",
                          "bytes, or -1 - the number of what is there and goes", describe_json(event));
    if (takes)
      is_there.push_back(true);
    else
      is_there[static_cast<std::size_t>(-(value + 1))] = false;
    step.events.push_back(value);
  }
  return fields.good();
}

bool FactsReader::optimizers(JsonFields& f) {
  if (!f.has("optimizers")) return true;
  const Json* rows = f.array("optimizers");
  for (std::size_t i = 0; rows != nullptr && i < rows->size(); ++i) {
    JsonFields fields((*rows)[i], f.place("optimizers") + "[" + std::to_string(i) + "]", problem_,
                      {"name", "params_bytes", "first", "steady"});
    if (!fields.good()) return false;
    WatchedOptimizer& optimizer = m_.optimizers.emplace_back();
    optimizer.name = fields.text("name");
    optimizer.params = fields.integer_or("params_bytes", 0, 0, kMaxAmount);
    if (!step(fields, "first", optimizer.first) || !step(fields, "steady", optimizer.steady)) return false;
  }
  return f.good();
}

bool FactsReader::module_call(const Json& row, const std::string& place) {
  JsonFields f(row, place, problem_, {"module", "call", "args"});
  if (!f.good()) return false;
  ModuleCall call;
  const std::string module = f.text("module");
  call.call = static_cast<std::int32_t>(f.integer_or("call", 0, 0, kMaxCount));
  if (!f.good() || !module_of(module, f.place("module"), call.module) || !values_of(f, "args", call.args)) return false;
  m_.module_calls.push_back(std::move(call));
  return true;
}

bool FactsReader::region(const Json& row, const std::string& place) {
  JsonFields f(row, place, problem_,
               {"id", "kind", "module", "call", "args", "save", "save_collectives", "early_stop"});
  if (!f.good()) return false;
  Region region;
  const auto next = static_cast<std::int64_t>(m_.regions.size());
  const std::int64_t id = f.integer_or("id", next, 0, kMaxCount);
  const std::string kind = f.text("kind"), module = f.text_or("module", "");
  region.call = static_cast<std::int32_t>(f.integer_or("call", 0, 0, kMaxCount));
  if (!f.good() || !module_of(module, f.place("module"), region.module) || !values_of(f, "args", region.args))
    return false;
  if (id != next)
    return problem_.set(ErrorCode::Inconsistent, f.place("id"), "regions are numbered in order", std::to_string(next),
                        std::to_string(id));
  region.early_stop = f.boolean_or("early_stop", true);
  if (kind == "reentrant") region.kind = Region::Kind::Reentrant;
  if (kind == "ops") region.kind = Region::Kind::Operators;
  if (region.kind == Region::Kind::NonReentrant && kind != "nonreentrant")
    return problem_.set(ErrorCode::OutOfRange, f.place("kind"), "this is no kind of checkpointed region",
                        "nonreentrant, reentrant or ops", in_quotes(kind));
  const Json* save = f.array("save");
  for (std::size_t i = 0; save != nullptr && i < save->size(); ++i) {
    const Json& op = (*save)[i];
    if (!op.is_number_integer() || op < 0 || op > kMaxCount)
      return problem_.set(ErrorCode::OutOfRange, f.place("save"), "this is no operator's number", "0 or more",
                          describe_json(op));
    region.save.push_back(op.get<std::int32_t>());
  }
  const Json* collectives = f.array("save_collectives");
  for (std::size_t i = 0; collectives != nullptr && i < collectives->size(); ++i) {
    const Json& name = (*collectives)[i];
    if (!name.is_string())
      return problem_.set(ErrorCode::WrongType, f.place("save_collectives"), "this is no collective's name",
                          "a string, as in \"_c10d_functional.all_reduce\"", describe_json(name));
    region.save_collectives.push_back(name.get<std::string>());
  }
  m_.regions.push_back(std::move(region));
  return f.good();
}

bool FactsReader::check() {
  const auto ops = static_cast<std::int32_t>(m_.ops.size());
  const auto in_program = [&](std::int32_t op, const std::string& place) {
    if (op < ops) return true;
    return problem_.set(ErrorCode::Inconsistent, place, "there is no such operator", "less than " + std::to_string(ops),
                        std::to_string(op));
  };
  if (!in_program(m_.loss_begin, "loss_begin")) return false;
  for (const ValueInfo& value : m_.values) {
    const bool numbered = value.held.until == Hold::Until::Op || value.held.until == Hold::Until::Autocast;
    if (numbered && !in_program(value.held.op, value.name + ".held_until")) return false;
  }
  for (std::size_t i = 0; i < m_.ops.size(); ++i) {
    if (m_.ops[i].region >= static_cast<std::int32_t>(m_.regions.size()))
      return problem_.set(ErrorCode::Inconsistent, "ops[" + std::to_string(i) + "].region", "there is no such region",
                          "one of " + std::to_string(m_.regions.size()) + " regions", std::to_string(m_.ops[i].region));
  }
  for (std::size_t r = 0; r < m_.regions.size(); ++r) {
    for (const std::int32_t op : m_.regions[r].save) {
      const std::string place = "regions[" + std::to_string(r) + "].save";
      if (!in_program(op, place)) return false;
      if (m_.ops[static_cast<std::size_t>(op)].region != static_cast<std::int32_t>(r))
        return problem_.set(ErrorCode::Inconsistent, place, "an operator outside the region is kept",
                            "operators of region " + std::to_string(r), std::to_string(op));
    }
  }
  return true;
}

}  // namespace foreshard
