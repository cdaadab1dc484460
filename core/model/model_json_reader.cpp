// The reading half of core/model/model_json.h.
#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <unordered_map>
#include <utility>

#include "core/model/json_fields.h"
#include "core/model/json_input.h"
#include "core/model/model_json.h"
#include "core/model/model_json_calls.h"
#include "core/model/model_json_facts.h"

namespace foreshard {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kSchema = "foreshard.model/2", kOldSchema = "foreshard.model/1";
constexpr std::int64_t kMaxTokens = std::int64_t{1} << 52;

class Reader {
 public:
  Reader(const Json& document, const std::string& file) : document_(document) { problem_.file = file; }

  Result<Model> read() {
    const bool good = facts() && rows("mesh", &Reader::dimension) && rows("inputs", &Reader::input) &&
                      rows("modules", &Reader::module) && rooted() && rows("params", &Reader::param) &&
                      rows("buffers", &Reader::buffer) && rows("calls", &Reader::call) &&
                      rows("containers", &Reader::container) && calls_are_sound() && rows("ops", &Reader::op) &&
                      rows("module_calls", &Reader::module_call) && rows("regions", &Reader::region) && outputs() &&
                      facts_.check();
    if (!good || problem_.error) return fail(std::move(*problem_.error));
    return std::move(m_);
  }

 private:
  JsonFields root() {
    return {document_, "", problem_, {"schema",   "name",          "architecture", "block_class",  "tokens_per_batch",
                                      "has_loss", "compute_dtype", "loss_begin",   "lifetimes",    "choices",
                                      "job",      "inputs",        "modules",      "params",       "buffers",
                                      "calls",    "containers",    "ops",          "module_calls", "regions",
                                      "outputs",  "parallel",      "params_cast",  "mesh",         "optimizers"}};
  }

  bool facts() {
    JsonFields f = root();
    if (!f.good()) return false;
    const std::string schema = f.text("schema");
    if (f.good() && schema != kSchema && schema != kOldSchema) {
      return problem_.set(ErrorCode::Unsupported, "schema", "this version of the format is not known",
                          in_quotes(kSchema) + " or " + in_quotes(kOldSchema), in_quotes(schema));
    }
    calls_.told_by_class = schema == kOldSchema;
    m_.name = f.text_or("name", "");
    m_.architecture = f.text_or("architecture", "");
    m_.block_class = f.text_or("block_class", "");
    m_.tokens_per_batch = f.integer_or("tokens_per_batch", 0, 0, kMaxTokens);
    m_.has_loss = f.boolean_or("has_loss", false);
    m_.compute_dtype = f.dtype_or("compute_dtype", DType::Float32);
    m_.params_cast = f.boolean_or("params_cast", false);
    if (f.good() && !f.has("modules")) {
      return problem_.set(ErrorCode::MissingKey, "modules", "the key \"modules\" is missing", "the list of modules",
                          "nothing");
    }
    return f.good() && facts_.top(f);
  }

  bool rows(std::string_view key, bool (Reader::*read_row)(const Json&, const std::string&)) {
    const auto it = document_.find(key);
    if (it == document_.end() || it->is_null()) return true;
    if (!it->is_array()) {
      return problem_.set(ErrorCode::WrongType, std::string(key), in_quotes(key) + " is of another type", "a list",
                          describe_json(*it));
    }
    for (std::size_t i = 0; i < it->size(); ++i) {
      if (!(this->*read_row)((*it)[i], std::string(key) + "[" + std::to_string(i) + "]")) return false;
    }
    return true;
  }

  // --- structure ---

  bool dimension(const Json& row, const std::string& place) { return facts_.dimension(row, place); }

  bool input(const Json& row, const std::string& place) {
    JsonFields f(row, place, problem_,
                 {"name", "shape", "dtype", "requires_grad", "strides", "held_until", "held_by", "alias_of"});
    if (!f.good()) return false;
    ValueInfo value{f.text("name"), f.shape("shape"), f.dtype("dtype"), f.boolean_or("requires_grad", false)};
    return f.good() && facts_.value(f, value) && add_value(std::move(value), place, &m_.inputs);
  }

  bool add_value(ValueInfo value, const std::string& place, std::vector<ValueId>* list) {
    const ValueId id(m_.values.size());
    if (!value_ids_.emplace(value.name, id).second) {
      return problem_.set(ErrorCode::Inconsistent, place, "the value " + in_quotes(value.name) + " is made twice",
                          "a new name", in_quotes(value.name));
    }
    m_.values.push_back(std::move(value));
    list->push_back(id);
    return true;
  }

  bool module(const Json& row, const std::string& place) {
    JsonFields f(row, place, problem_, {"fqn", "class", "bases", "alias_of"});
    if (!f.good()) return false;
    ModuleInfo info;
    info.fqn = f.text("fqn");
    info.class_name = f.text("class");
    info.bases = f.texts("bases");
    const std::string original = f.text_or("alias_of", "");
    if (!f.good()) return false;
    const ModuleId id(m_.modules.size());
    if (!module_ids_.emplace(info.fqn, id).second) {
      return problem_.set(ErrorCode::Inconsistent, f.place("fqn"),
                          "the module " + in_quotes(info.fqn) + " is listed twice", "a new name", in_quotes(info.fqn));
    }
    if (f.has("alias_of") && !alias(original, info, f.place("alias_of"))) return false;
    if (id.index() > 0) {
      info.parent = parent_of(info.fqn);
      if (!info.parent.valid()) {
        return problem_.set(ErrorCode::Inconsistent, f.place("fqn"),
                            "the parent of this module is not listed before it", "parents before children",
                            in_quotes(info.fqn), "the root, with the fqn \"\", comes first");
      }
      ModuleInfo& parent = m_.modules[info.parent.index()];
      if (parent.alias_of.valid()) {
        return problem_.set(ErrorCode::Inconsistent, f.place("fqn"),
                            "the parent " + in_quotes(parent.fqn) + " is an alias, which has no modules of its own",
                            "children listed once, under the first registration", in_quotes(info.fqn));
      }
      parent.children.push_back(id);
    }
    m_.modules.push_back(std::move(info));
    return true;
  }

  bool alias(const std::string& original, ModuleInfo& info, const std::string& place) {
    const auto it = module_ids_.find(original);
    if (it == module_ids_.end() || it->second.index() >= m_.modules.size()) {
      return problem_.set(ErrorCode::Inconsistent, place,
                          original == info.fqn ? "cyclic sharing: a module is its own alias"
                                               : "an alias names a module that does not stand before it",
                          "a module listed earlier", in_quotes(original));
    }
    const ModuleId target = it->second;
    if (m_.modules[target.index()].alias_of.valid()) {
      return problem_.set(ErrorCode::Inconsistent, place, "an alias of an alias", "the first registration",
                          in_quotes(original),
                          "name " + in_quotes(m_.modules[m_.modules[target.index()].alias_of.index()].fqn));
    }
    if (info.fqn.starts_with(original + ".") || original.empty()) {
      return problem_.set(ErrorCode::Inconsistent, place, "cyclic sharing: a module inside itself",
                          "a module that does not contain the alias", in_quotes(original));
    }
    info.alias_of = target;
    return true;
  }

  /// The nearest listed ancestor by name; invalid if even the root is missing.
  ModuleId parent_of(std::string_view fqn) const {
    while (true) {
      const std::size_t dot = fqn.rfind('.');
      fqn = dot == std::string_view::npos ? std::string_view() : fqn.substr(0, dot);
      const auto it = module_ids_.find(std::string(fqn));
      if (it != module_ids_.end() && it->second.index() < m_.modules.size()) return it->second;
      if (fqn.empty()) return {};
    }
  }

  bool rooted() {
    if (!m_.modules.empty() && m_.modules[0].fqn.empty() && !m_.modules[0].alias_of.valid()) return true;
    return problem_.set(ErrorCode::Inconsistent, "modules[0]", "the first module must be the root",
                        "{\"fqn\": \"\", ...}", m_.modules.empty() ? "no modules" : in_quotes(m_.modules[0].fqn));
  }

  bool owner_of(const std::string& fqn, const std::string& place, ModuleId& owner) {
    const std::size_t dot = fqn.rfind('.');
    const std::string name = dot == std::string::npos ? std::string() : fqn.substr(0, dot);
    const auto it = module_ids_.find(name);
    if (it == module_ids_.end()) {
      return problem_.set(ErrorCode::Inconsistent, place, "no module " + in_quotes(name) + " is listed",
                          "a listed module", in_quotes(fqn), nearest_module_hint(m_, name));
    }
    owner = it->second;
    return true;
  }

  bool param(const Json& row, const std::string& place) {
    JsonFields f(row, place, problem_, {"fqn", "shape", "dtype", "requires_grad", "shares", "gathered", "part"});
    if (!f.good()) return false;
    ParamInfo info;
    info.fqn = f.text("fqn");
    info.shape = f.shape("shape");
    info.dtype = f.dtype("dtype");
    if (f.has("gathered")) info.gathered = f.dtype("gathered");
    const std::string of = f.text_or("shares", "");
    if (!f.good() || !owner_of(info.fqn, f.place("fqn"), info.owner)) return false;
    const ParamId id(m_.params.size());
    if (!param_ids_.emplace(info.fqn, id).second) {
      return problem_.set(ErrorCode::Inconsistent, f.place("fqn"),
                          "the parameter " + in_quotes(info.fqn) + " is listed twice", "a new name",
                          in_quotes(info.fqn));
    }
    if (f.has("shares") && !share(of, info, f)) return false;
    if (!facts_.part(f, info)) return false;
    info.requires_grad =
        f.boolean_or("requires_grad", info.shares.valid() ? m_.params[info.shares.index()].requires_grad : true);
    if (!f.good()) return false;
    if (info.shares.valid() && info.requires_grad != m_.params[info.shares.index()].requires_grad) {
      return problem_.set(ErrorCode::Inconsistent, f.place("requires_grad"),
                          "one tensor cannot both require a gradient and not", "the same for both names",
                          in_quotes(info.fqn) + " and " + in_quotes(of));
    }
    if (info.requires_grad && !is_floating(info.dtype)) {
      return problem_.set(ErrorCode::Inconsistent, f.place("dtype"),
                          "only floating point parameters can require a gradient", "\"requires_grad\": false",
                          std::string(dtype_name(info.dtype)));
    }
    m_.modules[info.owner.index()].params.push_back(id);
    m_.params.push_back(std::move(info));
    return true;
  }

  bool share(const std::string& of, ParamInfo& info, const JsonFields& f) {
    const auto it = param_ids_.find(of);
    if (it == param_ids_.end() || it->second.index() >= m_.params.size()) {
      const bool cycle = shares_lead_back(info.fqn);
      return problem_.set(
          ErrorCode::Inconsistent, f.place("shares"),
          cycle ? "cyclic sharing: following \"shares\" from " + in_quotes(info.fqn) + " leads back to it"
                : "\"shares\" names a parameter that does not stand before it",
          "a parameter listed earlier", in_quotes(of), "the first registration holds the tensor, the others share it");
    }
    info.shares = m_.storage_of(it->second);
    const ParamInfo& first = m_.params[info.shares.index()];
    if (first.shape == info.shape && first.dtype == info.dtype) return true;
    const auto shown = [](const ParamInfo& p) { return std::string(dtype_name(p.dtype)) + " " + Json(p.shape).dump(); };
    return problem_.set(ErrorCode::Inconsistent, f.place("shape"),
                        in_quotes(info.fqn) + " shares " + in_quotes(of) + " but differs in shape or dtype",
                        shown(first), shown(info));
  }

  /// Follows "shares" through the whole document. Only asked once something is wrong.
  bool shares_lead_back(const std::string& start) const {
    std::unordered_map<std::string, std::string> shares;
    for (const Json& row : document_.at("params")) {
      if (!row.is_object() || !row.contains("fqn") || !row.contains("shares") || !row["fqn"].is_string() ||
          !row["shares"].is_string())
        continue;
      shares[row["fqn"].get<std::string>()] = row["shares"].get<std::string>();
    }
    std::string at = start;
    for (std::size_t step = 0; step <= shares.size(); ++step) {
      const auto it = shares.find(at);
      if (it == shares.end()) return false;
      at = it->second;
      if (at == start) return true;
    }
    return true;  // leads into a circle further on
  }

  bool buffer(const Json& row, const std::string& place) {
    JsonFields f(row, place, problem_, {"fqn", "shape", "dtype", "persistent"});
    if (!f.good()) return false;
    BufferInfo info{f.text("fqn"), f.shape("shape"), f.dtype("dtype"), {}, f.boolean_or("persistent", true)};
    if (!f.good() || !owner_of(info.fqn, f.place("fqn"), info.owner)) return false;
    const bool fresh = !param_ids_.contains(info.fqn) &&
                       buffer_ids_.emplace(info.fqn, static_cast<std::int32_t>(m_.buffers.size())).second;
    if (!fresh) {
      return problem_.set(ErrorCode::Inconsistent, f.place("fqn"), "the name " + in_quotes(info.fqn) + " is taken",
                          "a new name", in_quotes(info.fqn));
    }
    m_.buffers.push_back(std::move(info));
    return true;
  }

  bool call(const Json& row, const std::string& place) { return calls_.call(row, place); }
  bool container(const Json& row, const std::string& place) { return calls_.container(row, place); }
  bool calls_are_sound() { return calls_.check(); }

  // --- operators ---

  bool op(const Json& row, const std::string& place) {
    JsonFields f(row, place, problem_, {"op", "module", "call", "args", "kwargs", "out", "region", "opaque"});
    if (!f.good()) return false;
    Op op;
    op.name = f.text("op");
    if (op.name.starts_with("mesh.") && op.name != "mesh.all_to_all") {  // the others are made from the job's mesh
      return problem_.set(ErrorCode::Unsupported, f.place("op"), "collectives of a mesh are made from the job's mesh",
                          "the operators of the whole model, or mesh.all_to_all of one rank's", in_quotes(op.name));
    }
    const std::string module = f.text_or("module", "");
    op.call = static_cast<std::int32_t>(f.integer_or("call", 0, 0, kMaxCount));
    if (!f.good()) return false;
    const auto it = module_ids_.find(module);
    if (it == module_ids_.end()) {
      return problem_.set(ErrorCode::Inconsistent, f.place("module"), "no module " + in_quotes(module) + " is listed",
                          "a listed module", in_quotes(module), nearest_module_hint(m_, module));
    }
    op.module = it->second;
    if (const Json* args = f.array("args")) {
      if (!arguments(*args, f.place("args"), op.args)) return false;
    }
    if (const Json* kwargs = f.find("kwargs")) {
      if (!kwargs->is_object()) {
        return problem_.set(ErrorCode::WrongType, f.place("kwargs"), "\"kwargs\" is of another type", "an object",
                            describe_json(*kwargs));
      }
      for (const auto& [name, value] : kwargs->items()) {
        if (!argument(value, f.place("kwargs"), op.kwargs.emplace_back(NamedArg{name, {}}).arg)) return false;
      }
    }
    const Json* out = f.array("out");
    for (std::size_t i = 0; out != nullptr && i < out->size(); ++i) {
      if (!result((*out)[i], place + ".out[" + std::to_string(i) + "]", op)) return false;
    }
    if (!f.good() || !facts_.op(f, op)) return false;
    m_.ops.push_back(std::move(op));
    return true;
  }

  bool module_call(const Json& row, const std::string& place) { return facts_.module_call(row, place); }
  bool region(const Json& row, const std::string& place) { return facts_.region(row, place); }

  bool arguments(const Json& list, const std::string& place, ArgList& args) {
    args.reserve(list.size());
    for (std::size_t i = 0; i < list.size(); ++i) {
      if (!argument(list[i], place + "[" + std::to_string(i) + "]", args.emplace_back())) return false;
    }
    return true;
  }

  bool argument(const Json& value, const std::string& place, Arg& arg) {
    switch (value.type()) {
      case Json::value_t::null: return true;
      case Json::value_t::boolean: arg.value = value.get<bool>(); return true;
      case Json::value_t::number_float: arg.value = value.get<double>(); return true;
      case Json::value_t::number_integer: arg.value = value.get<std::int64_t>(); return true;
      case Json::value_t::number_unsigned:
        if (value.get<std::uint64_t>() > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
          return problem_.set(ErrorCode::TooLarge, place, "this integer does not fit 64 bits", "at most 2^63 - 1",
                              describe_json(value));
        }
        arg.value = value.get<std::int64_t>();
        return true;
      case Json::value_t::string: return reference(value.get_ref<const std::string&>(), place, arg);
      case Json::value_t::array: return arguments(value, place, arg.value.emplace<ArgList>());
      default: return special(value, place, arg);
    }
  }

  bool special(const Json& value, const std::string& place, Arg& arg) {
    JsonFields f(value, place, problem_, {"dtype", "float", "text"});
    if (!f.good()) return false;
    if (value.size() != 1) {
      return problem_.set(ErrorCode::Inconsistent, place, "a constant object has one key",
                          "{\"dtype\": ...}, {\"float\": ...} or {\"text\": ...}",
                          std::to_string(value.size()) + " keys");
    }
    if (f.has("dtype")) arg.value = f.dtype("dtype");
    if (f.has("text")) arg.value = f.text("text");
    if (f.has("float")) {
      const std::string word = f.text("float");
      const double infinity = std::numeric_limits<double>::infinity();
      if (word != "inf" && word != "-inf" && word != "nan") {
        return f.good() && problem_.set(ErrorCode::OutOfRange, f.place("float"), "this is no special number",
                                        "inf, -inf or nan", in_quotes(word));
      }
      arg.value = word == "inf" ? infinity : word == "-inf" ? -infinity : std::numeric_limits<double>::quiet_NaN();
    }
    return f.good();
  }

  bool reference(const std::string& word, const std::string& place, Arg& arg) {
    const std::string name = word.empty() ? std::string() : word.substr(1);
    if (word.starts_with('%')) {
      const auto it = value_ids_.find(name);
      if (it != value_ids_.end()) {
        arg.value = ValueRef{it->second};
        return true;
      }
      return problem_.set(ErrorCode::Inconsistent, place,
                          made_later(name) ? "the value " + in_quotes(name) + " is used before it is made"
                                           : "nobody makes the value " + in_quotes(name),
                          "an input or the result of an earlier operator", in_quotes(word));
    }
    if (word.starts_with('@')) {
      const auto param = param_ids_.find(name);
      const auto buffer = buffer_ids_.find(name);
      if (param != param_ids_.end()) {
        arg.value = ParamRef{param->second};
      } else if (buffer != buffer_ids_.end()) {
        arg.value = BufferRef{buffer->second};
      } else {
        return problem_.set(ErrorCode::Inconsistent, place, "no parameter or buffer " + in_quotes(name) + " is listed",
                            "a listed parameter or buffer", in_quotes(word));
      }
      return true;
    }
    arg.value = word;
    return true;
  }

  /// Only asked once something is wrong.
  bool made_later(const std::string& name) const {
    for (const Json& row : document_.at("ops")) {
      if (!row.is_object() || !row.contains("out") || !row["out"].is_array()) continue;
      for (const Json& out : row["out"]) {
        if (out.is_object() && out.contains("name") && out["name"] == name) return true;
      }
    }
    return false;
  }

  static bool uses(const ArgList& args, ValueId id) {
    return std::any_of(args.begin(), args.end(), [id](const Arg& arg) {
      const auto* list = std::get_if<ArgList>(&arg.value);
      const auto* value = std::get_if<ValueRef>(&arg.value);
      return (list != nullptr && uses(*list, id)) || (value != nullptr && value->id == id);
    });
  }

  /// A new value, null, or the name of an argument that the operator changes in place.
  bool result(const Json& row, const std::string& place, Op& op) {
    if (row.is_null()) {
      op.out.emplace_back();
      return true;
    }
    JsonFields f(row, place, problem_, {"name", "shape", "dtype", "requires_grad", "strides", "held_until", "held_by"});
    if (!f.good()) return false;
    const std::string name = f.text("name");
    const auto it = value_ids_.find(name);
    if (it != value_ids_.end() && f.good() && !f.has("shape") && !f.has("dtype")) {
      const bool in_place = uses(op.args, it->second) ||
                            std::any_of(op.kwargs.begin(), op.kwargs.end(),
                                        [&](const NamedArg& named) { return uses({named.arg}, it->second); });
      if (!in_place) {
        return problem_.set(ErrorCode::Inconsistent, place,
                            "a result without a shape must be an argument changed in place",
                            "an argument of the operator", in_quotes(name));
      }
      op.out.push_back(it->second);
      return true;
    }
    ValueInfo value{name, f.shape("shape"), f.dtype("dtype"), f.boolean_or("requires_grad", false)};
    return f.good() && facts_.value(f, value) && add_value(std::move(value), place, &op.out);
  }

  // --- results ---

  bool outputs() {
    JsonFields f = root();
    const std::vector<std::string> names = f.texts("outputs");
    if (!f.good()) return false;
    std::vector<ValueId> from_ops;
    for (const std::string& name : names) {
      const auto it = value_ids_.find(name);
      if (it != value_ids_.end()) from_ops.push_back(it->second);
    }
    if (!calls_.set_outputs(names, m_.ops.empty())) return false;
    if (m_.ops.empty() && !m_.calls.empty()) return true;
    if (from_ops.size() == names.size()) {
      m_.outputs = std::move(from_ops);
      return true;
    }
    if (calls_.root() != nullptr) return ops_are_partial(names);
    const auto missing =
        std::find_if(names.begin(), names.end(), [&](const std::string& name) { return !value_ids_.contains(name); });
    return problem_.set(ErrorCode::Inconsistent, "outputs", "nobody makes the output " + in_quotes(*missing),
                        "an input or a result of an operator", in_quotes(*missing));
  }

  /// Operators that do not reach the outputs are an excerpt: the calls say what runs.
  bool ops_are_partial(const std::vector<std::string>& names) {
    m_.ops.clear();
    m_.values.resize(m_.inputs.size());
    m_.module_calls.clear();
    m_.regions.clear();
    m_.opaques.clear();
    m_.loss_begin = -1;
    return calls_.set_outputs(names, true);
  }

  const Json& document_;
  JsonProblem problem_;
  Model m_;
  ModuleNames module_ids_;
  std::unordered_map<std::string, ParamId> param_ids_;
  std::unordered_map<std::string, std::int32_t> buffer_ids_;
  ValueNames value_ids_;
  CallsReader calls_{m_, module_ids_, problem_};
  FactsReader facts_{m_, module_ids_, value_ids_, problem_};
};

}  // namespace

Result<Model> model_from_json(const Json& document, const std::string& file) { return Reader(document, file).read(); }

Result<Model> parse_model_json(std::string_view text, const std::string& file) {
  Result<Json> document = parse_json(text, file);
  if (!document) return fail(std::move(document.error()));
  return model_from_json(*document, file);
}

}  // namespace foreshard
