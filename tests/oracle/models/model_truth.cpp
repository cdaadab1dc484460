// See model_truth.h.
#include "tests/oracle/models/model_truth.h"

#include <algorithm>
#include <filesystem>
#include <functional>
#include <map>
#include <set>

#include "core/model/families/config_model.h"
#include "core/model/inspect.h"

namespace foreshard::oracle {
namespace {

namespace fs = std::filesystem;

RowResult differs(std::string place, std::string expected, std::string got) {
  return {{}, Verdict::Fail, std::move(place), std::move(expected), std::move(got), {}};
}

std::string short_dtype(DType dtype) {
  static const std::map<DType, std::string> names{
      {DType::Float32, "f32"}, {DType::BFloat16, "bf16"}, {DType::Float16, "f16"},  {DType::Int64, "i64"},
      {DType::Int32, "i32"},   {DType::Bool, "b8"},       {DType::Complex64, "c64"}};
  const auto it = names.find(dtype);
  return it == names.end() ? std::string(dtype_name(dtype)) : it->second;
}

/// Longrope's second set of frequencies: a plain attribute of the library's module, which the first forward makes. The
/// Model holds it as a buffer and writes what every later forward does.
bool is_attribute(const std::string& buffer) { return buffer.ends_with(".long_inv_freq"); }

/// Called from Python, such tensors are detached before a script sees them.
bool is_made_like(const std::string& op) { return op == "aten.empty_like.default" || op == "aten.ones_like.default"; }

/// Compares one recorded operator list with the Model's, walking both and joining tensor ids.
class OpListComparison {
 public:
  OpListComparison(const Json& truth, const Model& model)
      : truth_(truth), tensors_(truth.at("tensors")), model_(model) {}

  /// Rows of the truth from `skipped` on against model.ops from `first` on. Nothing may be left over.
  RowResult run(std::size_t first, std::size_t last, std::size_t skipped = 0) {
    std::size_t at = first;
    bool keeps_result = false;
    std::size_t row_number = 0;
    for (const Json& row : truth_.at("ops")) {
      if (row_number < skipped || (at < last && makes_attribute(row, at))) {
        ++row_number;
        continue;
      }
      const std::string place = "op " + std::to_string(row_number++);
      if (row.contains("phase")) break;
      const std::string name = row.at("op");
      if (name == "aten.detach.default" && at > first && is_made_like(model_.ops[at - 1].name)) {
        join(row.at("out").at(0), joined_.at(row.at("args").at(0).at("t").get<int>()));  // called from Python
        continue;
      }
      if (name == "aten.detach.default") {
        if (!keeps_result) return differs(place, "no detach by the rule", "a recorded detach");
        keeps_result = false;
        join(row.at("out").at(0), joined_.at(row.at("args").at(0).at("t").get<int>()));
        continue;
      }
      if (keeps_result) return differs(place, name, "a detach by the rule");
      if (at >= last) return differs(place, name, "the end of the program");
      const Op& op = model_.ops[at++];
      if (op.name != name) return differs(place, name, op.name);
      if (model_.modules[op.module.index()].fqn != row.at("module").get<std::string>()) {
        return differs(place + " " + name + " module", row.at("module"), model_.modules[op.module.index()].fqn);
      }
      if (const std::string error = compare_args(row, op); !error.empty())
        return differs(place + " " + name, row.dump(), error);
      if (const std::string error = compare_outs(row.at("out"), op); !error.empty())
        return differs(place + " " + name, row.at("out").dump(), error);
      // torch.ones of Python, not at::ones of the attention's math form, which names its layout
      keeps_result = keeps_its_result(name) || (name == "aten.ones.default" && !row.contains("kwargs"));
    }
    if (at != last) return differs("length", std::to_string(row_number), model_.ops[at].name + " follows");
    return {{}, Verdict::Pass, {}, {}, {}, std::to_string(row_number) + " operators"};
  }

  /// A row of the first forward between the length asked for and its comparison.
  bool makes_attribute(const Json& row, std::size_t at) const {
    const Op& next = model_.ops[at];
    if (next.name != "aten.gt.Scalar" || at + 1 >= model_.ops.size() || row.at("op") == next.name) return false;
    const Op& choice = model_.ops[at + 1];
    if (choice.name != "aten.where.self") return false;
    const auto* chosen = std::get_if<BufferRef>(&choice.args.at(1).value);
    return chosen != nullptr && is_attribute(model_.buffers[static_cast<std::size_t>(chosen->index)].fqn);
  }

  /// A tail speaks of tensors made before: known by what they are.
  void join(const Json& id, ValueId value) {
    if (id.is_number_integer()) joined_[id.get<int>()] = value;
  }

 private:
  static bool keeps_its_result(const std::string& name) {
    static const std::set<std::string> names{"aten.arange.default",
                                             "aten.relu.default",
                                             "aten.full_like.default",
                                             "aten.zeros.default",
                                             "aten.zeros_like.default",
                                             "aten.rsqrt.default",
                                             "aten.tanh.default",
                                             "aten.sigmoid.default",
                                             "aten._safe_softmax.default",
                                             "aten._softmax.default",
                                             "aten._log_softmax.default",
                                             "aten._scaled_dot_product_flash_attention.default",
                                             "aten._scaled_dot_product_efficient_attention.default",
                                             "aten._scaled_dot_product_flash_attention_for_cpu.default"};
    return names.count(name) > 0;
  }

  const Json& tensor(int id) const {
    return tensors_.is_array() ? tensors_.at(static_cast<std::size_t>(id)) : tensors_.at(std::to_string(id));
  }

  std::string compare_tensor(int id, ValueId value) const {
    const Json& expected = tensor(id);
    const ValueInfo& got = model_.values[value.index()];
    std::string dtype = expected.at("dtype");
    if (dtype == "u64") dtype = "i64";  // random state; the Model has no unsigned type of this width
    if (expected.at("shape").get<Shape>() != got.shape || dtype != short_dtype(got.dtype)) {
      return got.name + " " + short_dtype(got.dtype) + Json(got.shape).dump() + ", not " + expected.dump();
    }
    return {};
  }

  std::string compare_reference(const Json& expected, const Arg& got) {
    const int id = expected.at("t");
    const std::string name = tensor(id).value("name", std::string());
    if (const auto* param = std::get_if<ParamRef>(&got.value)) {
      const std::string ours = "param:" + model_.params[model_.storage_of(param->id).index()].fqn;
      return ours == name ? "" : ours;
    }
    if (const auto* buffer = std::get_if<BufferRef>(&got.value)) {
      const std::string ours = "buffer:" + model_.buffers[static_cast<std::size_t>(buffer->index)].fqn;
      return ours == name || (name.empty() && is_attribute(ours)) ? "" : ours;
    }
    const auto* value = std::get_if<ValueRef>(&got.value);
    if (value == nullptr) return "a constant where a tensor is expected";
    if (!joined_.contains(id)) {
      if (const std::string error = compare_tensor(id, value->id); !error.empty()) return error;
      const bool input = value->id.index() < model_.inputs.size();
      if (input && "input:" + model_.values[value->id.index()].name != name)
        return model_.values[value->id.index()].name;
      joined_[id] = value->id;
    }
    return joined_.at(id) == value->id ? "" : "another tensor: " + model_.values[value->id.index()].name;
  }

  std::string compare_value(const Json& expected, const Arg& got) {
    if (expected.is_object() && expected.contains("t")) return compare_reference(expected, got);
    if (expected.is_object() && expected.contains("dtype")) {
      const auto* dtype = std::get_if<DType>(&got.value);
      return dtype != nullptr && short_dtype(*dtype) == expected.at("dtype").get<std::string>() ? "" : "another dtype";
    }
    if (expected.is_object() && expected.contains("float")) {
      const auto* number = std::get_if<double>(&got.value);
      return number != nullptr && std::to_string(*number) == expected.at("float").get<std::string>() ? ""
                                                                                                     : "another number";
    }
    if (expected.is_object()) {
      const auto* text = std::get_if<std::string>(&got.value);
      return text != nullptr && *text == expected.at("other").get<std::string>() ? "" : "another constant";
    }
    if (expected.is_array()) {
      const auto* list = std::get_if<ArgList>(&got.value);
      if (list == nullptr || list->size() != expected.size()) return "another list";
      for (std::size_t i = 0; i < list->size(); ++i) {
        if (const std::string error = compare_value(expected.at(i), (*list)[i]); !error.empty()) return error;
      }
      return {};
    }
    bool same = false;
    if (expected.is_null()) same = std::holds_alternative<std::monostate>(got.value);
    if (expected.is_boolean())
      same = std::holds_alternative<bool>(got.value) && std::get<bool>(got.value) == expected.get<bool>();
    if (expected.is_number_integer())
      same = std::holds_alternative<std::int64_t>(got.value) &&
             std::get<std::int64_t>(got.value) == expected.get<std::int64_t>();
    if (expected.is_number_float())
      same = std::holds_alternative<double>(got.value) && std::get<double>(got.value) == expected.get<double>();
    if (expected.is_string())
      same = std::holds_alternative<std::string>(got.value) &&
             std::get<std::string>(got.value) == expected.get<std::string>();
    return same ? "" : "another constant than " + expected.dump();
  }

  std::string compare_args(const Json& row, const Op& op) {
    const Json& args = row.at("args");
    if (args.size() != op.args.size()) return std::to_string(op.args.size()) + " arguments";
    for (std::size_t i = 0; i < args.size(); ++i) {
      if (std::string error = compare_value(args.at(i), op.args[i]); !error.empty())
        return "argument " + std::to_string(i) + ": " + error;
    }
    const Json none = Json::object();
    const Json& kwargs = row.contains("kwargs") ? row.at("kwargs") : none;
    if (kwargs.size() != op.kwargs.size()) return std::to_string(op.kwargs.size()) + " keyword arguments";
    for (const NamedArg& named : op.kwargs) {
      if (!kwargs.contains(named.name)) return "keyword " + named.name;
      if (std::string error = compare_value(kwargs.at(named.name), named.arg); !error.empty())
        return named.name + ": " + error;
    }
    return {};
  }

  std::string compare_outs(const Json& outs, const Op& op) {
    if (outs.size() != op.out.size()) return std::to_string(op.out.size()) + " results";
    for (std::size_t i = 0; i < outs.size(); ++i) {
      if (!op.out[i].valid()) continue;  // None, or a number (the recording does not tell numbers from tensor ids)
      if (!outs.at(i).is_number_integer()) return "a tensor where none is expected";
      const int id = outs.at(i);
      if (std::string error = compare_tensor(id, op.out[i]); !error.empty()) return error;
      joined_[id] = op.out[i];
    }
    return {};
  }

  const Json& truth_;
  const Json& tensors_;
  const Model& model_;
  std::map<int, ValueId> joined_;
};

Result<Model> build(const fs::path& folder, const Json& truth, const std::string& route, const std::string& dtype,
                    const std::string& loss) {
  ModelOptions options;
  options.batch = truth.at("batch");
  options.seq_given = truth.at("seq").is_number();  // images have their own size
  if (options.seq_given) options.seq = truth.at("seq");
  options.loss = loss;
  ProgramOptions program;
  options.dtype = parse_dtype(dtype);  // as the recorded model was made
  program.device = route == "cuda" ? ProgramDevice::Cuda : route == "cpu" ? ProgramDevice::Cpu : ProgramDevice::Meta;
  program.recorded = true;
  return model_from_config((folder / "config.json").string(), options, program);
}

}  // namespace

RowResult compare_route(const std::string& folder_name, const std::string& route, const std::string& dtype) {
  const fs::path folder(folder_name);
  const fs::path file = folder / ("ops." + route + "." + dtype + ".json.gz");
  if (!fs::exists(file)) return {{}, Verdict::Skip, {}, {}, {}, "not recorded"};
  const Json truth = Json::parse(read_text(file.string()));
  const Result<Model> model = build(folder, truth, route, dtype, "none");
  if (!model) return differs("config.json", "a model", to_text(model.error()));
  return OpListComparison(truth, *model).run(0, model->ops.size() - 1);  // the sum at the end is the loss "none"
}

RowResult compare_loss_tail(const std::string& folder_name) {
  const fs::path folder(folder_name);
  const fs::path file = folder / "ops.loss_tail.bf16.json.gz";
  if (!fs::exists(file)) return {{}, Verdict::Skip, {}, {}, {}, "not recorded"};
  const Json truth = Json::parse(read_text(file.string()));
  const Result<Model> with = build(folder, truth, "cuda", "bf16", "auto");
  const Result<Model> without = build(folder, truth, "cuda", "bf16", "none");
  if (!with || !without) return differs("config.json", "a model", to_text((with ? without : with).error()));
  const std::size_t first = without->ops.size() - 1;
  RowResult result = OpListComparison(truth, *with).run(first, with->ops.size());
  // The forward with a loss was not the first one: what only the first one does ends the common part early.
  if (result.verdict == Verdict::Pass || truth.at("common_prefix_ops") >= truth.at("forward_ops_without_loss"))
    return result;
  const Json& rows = truth.at("ops");
  for (std::size_t at = 1; at < rows.size(); ++at) {
    if (rows.at(at).at("op") != with->ops[first].name) continue;
    const RowResult later = OpListComparison(truth, *with).run(first, with->ops.size(), at);
    if (later.verdict == Verdict::Pass) return later;
  }
  return result;
}

RowResult compare_structure(const std::string& folder_name) {
  const fs::path folder(folder_name);
  const Json truth = Json::parse(read_text((folder / "structure.json.gz").string()));
  ModelOptions options;
  options.dtype = parse_dtype(truth.at("parameter_dtype_as_built").at(0).get<std::string>());
  const Result<Model> built = model_from_config((folder / "config.json").string(), options);
  if (!built) return differs("config.json", "a model", to_text(built.error()));
  const Model& model = *built;
  Json modules = Json::array(), params = Json::array(), buffers = Json::array(), blocks = Json::array();
  for (const ModuleInfo& m : model.modules) {
    modules.push_back({{"name", m.fqn}, {"class", m.class_name}});
    const bool derived = std::find(m.bases.begin(), m.bases.end(), model.block_class) != m.bases.end();
    if (m.class_name == model.block_class || derived) blocks.push_back(m.fqn);
  }
  Numel total = 0, distinct = 0;
  for (const ParamInfo& p : model.params) {
    const Numel numel = numel_of(p.shape);
    total += numel;
    if (!p.shares.valid()) distinct += numel;
    params.push_back({{"name", p.fqn},
                      {"shape", p.shape},
                      {"numel", numel},
                      {"requires_grad", p.requires_grad},
                      {"shared_with", p.shares.valid() ? Json(model.params[p.shares.index()].fqn) : Json()}});
  }
  for (const BufferInfo& b : model.buffers) {
    if (is_attribute(b.fqn)) continue;
    buffers.push_back(
        {{"name", b.fqn}, {"shape", b.shape}, {"dtype", short_dtype(b.dtype)}, {"persistent", b.persistent}});
  }
  const Json ours = {{"modules", modules}, {"parameters", params},      {"buffers", buffers},
                     {"blocks", blocks},   {"parameters_total", total}, {"parameters_distinct", distinct}};
  for (const auto& [key, value] : ours.items()) {
    const Json& expected = truth.at(key);
    if (expected == value) continue;
    if (!value.is_array()) return differs(key, expected.dump(), value.dump());
    for (std::size_t i = 0; i < std::max(value.size(), expected.size()); ++i) {
      const Json left = i < expected.size() ? expected.at(i) : Json(), right = i < value.size() ? value.at(i) : Json();
      if (left != right) return differs(key + "[" + std::to_string(i) + "]", left.dump(), right.dump());
    }
  }
  return {
      {}, Verdict::Pass,
      {}, {},
      {}, std::to_string(model.modules.size()) + " modules, " + std::to_string(model.params.size()) + " parameters"};
}

RowResult compare_flops(const std::string& folder_name) {
  const fs::path folder(folder_name);
  const Json summary = Json::parse(read_text((folder / "summary.json").string()));
  int compared = 0;
  for (const Json& shape : summary.at("flops")) {
    for (const std::string route : {"meta_math", "cuda"}) {
      const Json& expected = shape.at(route);
      if (expected.contains("error")) continue;
      const Result<Model> model = build(folder, shape, route, "bf16", "none");
      if (!model) return differs("config.json", "a model", to_text(model.error()));
      const InspectReport report = inspect_model(*model);
      Json by_op = Json::object();
      for (const auto& [name, flops] : report.forward_by_op) by_op[name.substr(0, name.rfind('.'))] = flops;
      // PyTorch's counter knows no grouped product; both of its gradients are as much work again.
      const Flops grouped = by_op.value("aten._grouped_mm", Flops{0});
      const std::string place = "flops " + shape.at("batch").dump() + "x" + shape.at("seq").dump() + " " + route;
      if (report.total.flops.forward - grouped != expected.at("forward").get<Flops>()) {
        return differs(place + " forward", expected.at("forward").dump(), std::to_string(report.total.flops.forward));
      }
      if (report.total.flops.backward - 2 * grouped != expected.at("backward").get<Flops>()) {
        return differs(place + " backward", expected.at("backward").dump(),
                       std::to_string(report.total.flops.backward));
      }
      for (const auto& [name, flops] : expected.at("forward_by_op").items()) {
        if (by_op.value(name, Flops{0}) != flops.get<Flops>())
          return differs(place + " " + name, flops.dump(), by_op.dump());
      }
      ++compared;
    }
  }
  return {{}, Verdict::Pass, {}, {}, {}, std::to_string(compared) + " counts"};
}

}  // namespace foreshard::oracle
