#include "core/model/inspect.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <unordered_map>

namespace foreshard {
namespace {

/// What the FLOP rules ask of an argument: its shape, and whether it needs a gradient.
struct Operand {
  const Shape* shape = nullptr;
  bool grad = false;
};

class FlopCounter {
 public:
  explicit FlopCounter(const Model& model) : m_(model), grad_(model.values.size(), false) {
    for (const ValueId id : m_.inputs) grad_[id.index()] = m_.values[id.index()].requires_grad;
  }

  OpFlops count(const Op& op) {
    operands_.clear();
    collect(op.args);
    for (const NamedArg& named : op.kwargs) collect(named.arg);
    const bool grad = std::any_of(operands_.begin(), operands_.end(), [](const Operand& o) { return o.grad; });
    for (const ValueId out : op.out) {
      if (out.valid() && is_floating(m_.values[out.index()].dtype))
        grad_[out.index()] = grad && op.name != "aten.detach.default";
    }
    return flops(op);
  }

 private:
  void collect(const ArgList& args) {
    for (const Arg& arg : args) collect(arg);
  }
  void collect(const Arg& arg) {
    if (const auto* list = std::get_if<ArgList>(&arg.value)) return collect(*list);
    if (const auto* value = std::get_if<ValueRef>(&arg.value)) {
      operands_.push_back({&m_.values[value->id.index()].shape, grad_[value->id.index()]});
    } else if (const auto* param = std::get_if<ParamRef>(&arg.value)) {
      const ParamInfo& info = m_.params[param->id.index()];
      operands_.push_back({&info.shape, info.requires_grad});
    }
  }

  static std::int64_t last(const Operand& o, std::size_t from_end) {
    return o.shape->size() >= from_end ? (*o.shape)[o.shape->size() - from_end] : 1;
  }

  /// a: [..., m, k], b: [..., k, n]
  static OpFlops product(const Operand& a, const Operand& b, std::int64_t n) {
    const Flops forward = 2 * numel_of(*a.shape) * n;
    return {forward, forward * ((a.grad ? 1 : 0) + (b.grad ? 1 : 0))};
  }

  OpFlops flops(const Op& op) const {
    const std::string_view name = op.name;
    const auto& o = operands_;
    if ((name == "aten.mm.default" || name == "aten.bmm.default" || name == "aten._grouped_mm.default") &&
        o.size() >= 2)
      return product(o[0], o[1], last(o[1], 1));
    if (name == "aten.matmul.default" && o.size() >= 2)
      return product(o[0], o[1], o[1].shape->size() == 1 ? 1 : last(o[1], 1));
    if ((name == "aten.addmm.default" || name == "aten.baddbmm.default") && o.size() >= 3)
      return product(o[1], o[2], last(o[2], 1));
    if (name == "aten.linear.default" && o.size() >= 2) return product(o[0], o[1], last(o[1], 2));
    if (name == "aten.convolution.default" && o.size() >= 2 && !op.out.empty() && op.out[0].valid()) {
      // every element of the result is a product over one filter; each gradient is as much work
      const Shape& filter = *o[1].shape;
      const Flops work = filter.empty() || filter[0] == 0
                             ? 0
                             : 2 * numel_of(m_.values[op.out[0].index()].shape) * (numel_of(filter) / filter[0]);
      // the counter takes every channel for the filters' gradient, whatever the groups
      const std::int64_t groups = last(o[1], filter.size() - 1) > 0 && o[0].shape->size() > 1 && filter.size() > 1
                                      ? (*o[0].shape)[1] / last(o[1], filter.size() - 1)
                                      : 1;
      return {work, (o[0].grad ? work : 0) + (o[1].grad ? work * groups : 0)};
    }
    if (name.starts_with("aten._scaled_dot_product_") && o.size() >= 3 && o[0].shape->size() == 4) {
      // scores and their product with the values; backward: both again for two gradients each, and the scores once more
      const Flops scores = 2 * numel_of(*o[0].shape) * last(o[1], 2);
      const Flops values = scores / std::max<std::int64_t>(last(o[0], 1), 1) * last(o[2], 1);
      const bool grad = o[0].grad || o[1].grad || o[2].grad;
      return {scores + values, grad ? 3 * scores + 2 * values : 0};
    }
    return {};
  }

  const Model& m_;
  std::vector<bool> grad_;
  std::vector<Operand> operands_;
};

void add(OpFlops& sum, const OpFlops& more) {
  sum.forward += more.forward;
  sum.backward += more.backward;
}

std::string amount(double value, std::string_view unit) {
  static constexpr const char* kPrefixes[] = {"", "K", "M", "G", "T", "P", "E"};
  std::size_t prefix = 0;
  while (value >= 1000.0 && prefix + 1 < std::size(kPrefixes)) {
    value /= 1000.0;
    ++prefix;
  }
  return prefix == 0 ? fmt::format("{:.0f} {}", value, unit)
                     : fmt::format("{:.2f} {}{}", value, kPrefixes[prefix], unit);
}

/// Parameters are counted in thousands, millions and billions.
std::string count_text(Numel count) {
  const auto value = static_cast<double>(count);
  if (count < 1000) return std::to_string(count);
  if (count < 1'000'000) return fmt::format("{:.1f} K", value / 1e3);
  if (count < 1'000'000'000) return fmt::format("{:.1f} M", value / 1e6);
  return fmt::format("{:.2f} B", value / 1e9);
}

class TreeWriter {
 public:
  TreeWriter(const Model& model, const InspectReport& report, int depth) : m_(model), report_(report), depth_(depth) {
    kinds_.resize(m_.modules.size());
    for (std::size_t i = m_.modules.size(); i-- > 0;) kinds_[i] = kind_of(m_.modules[i]);
  }

  std::string write() {
    line(ModuleId(0), 0, m_.name.empty() ? "(root)" : m_.name, 1);
    children(ModuleId(0), 1);
    return std::move(text_);
  }

 private:
  /// Equal numbers: the same tree of classes and parameter shapes.
  int kind_of(const ModuleInfo& info) {
    std::string key = info.class_name;
    for (const ParamId p : info.params) {
      const ParamInfo& param = m_.params[p.index()];
      key += '|' + leaf(param.fqn) + (param.shares.valid() ? "=" : ":");
      for (const std::int64_t size : param.shape) key += std::to_string(size) + ",";
    }
    for (const ModuleId child : info.children) {
      key += '/' + leaf(m_.modules[child.index()].fqn) + '#' + std::to_string(kinds_[child.index()]);
    }
    return numbers_.emplace(std::move(key), static_cast<int>(numbers_.size())).first->second;
  }

  static std::string leaf(const std::string& fqn) { return fqn.substr(fqn.rfind('.') + 1); }

  /// Entries of a ModuleList or Sequential that are alike.
  bool foldable(ModuleId first, ModuleId next) const {
    const auto numbered = [&](ModuleId id) {
      const std::string name = leaf(m_.modules[id.index()].fqn);
      return std::all_of(name.begin(), name.end(), [](char c) { return c >= '0' && c <= '9'; });
    };
    return kinds_[first.index()] == kinds_[next.index()] && numbered(first) && numbered(next) &&
           !m_.modules[first.index()].alias_of.valid() && !m_.modules[next.index()].alias_of.valid();
  }

  void children(ModuleId parent, int level) {
    if (depth_ > 0 && level > depth_) return;
    const std::vector<ModuleId>& list = m_.modules[parent.index()].children;
    for (std::size_t i = 0; i < list.size();) {
      std::size_t end = i + 1;
      while (end < list.size() && foldable(list[i], list[end])) ++end;
      std::string name = leaf(m_.modules[list[i].index()].fqn);
      const auto count = static_cast<std::int64_t>(end - i);
      if (count > 1) name.append("-").append(leaf(m_.modules[list[end - 1].index()].fqn));
      line(list[i], level, name, count);
      children(list[i], level + 1);
      i = end;
    }
  }

  void line(ModuleId id, int level, const std::string& name, std::int64_t count) {
    const ModuleInfo& info = m_.modules[id.index()];
    const ModuleNumbers& numbers = report_.modules[id.index()];
    std::string left = std::string(static_cast<std::size_t>(2 * level), ' ') + name + ": " + info.class_name;
    if (count > 1) left += " x " + std::to_string(count);
    if (info.alias_of.valid()) left += " = " + m_.modules[info.alias_of.index()].fqn;
    std::string right;
    if (numbers.params_all_names > 0) {
      right = count_text(numbers.params_all_names) + (count > 1 ? " each" : "");
      if (numbers.params != numbers.params_all_names)
        right += fmt::format(" ({} distinct)", count_text(numbers.params));
    }
    if (numbers.flops.forward > 0)
      right += "  " + amount(static_cast<double>(numbers.flops.forward), "FLOP") + (count > 1 ? " each" : "");
    text_ += right.empty() ? left + "\n" : fmt::format("{:<52} {}\n", left, right);
  }

  const Model& m_;
  const InspectReport& report_;
  int depth_;
  std::vector<int> kinds_;
  std::unordered_map<std::string, int> numbers_;
  std::string text_;
};

}  // namespace

std::vector<OpFlops> count_flops(const Model& model) {
  FlopCounter counter(model);
  std::vector<OpFlops> flops;
  flops.reserve(model.ops.size());
  for (const Op& op : model.ops) flops.push_back(counter.count(op));
  return flops;
}

InspectReport inspect_model(const Model& model) {
  InspectReport report;
  report.modules.resize(model.modules.size());
  std::unordered_map<std::string_view, std::size_t> class_rows;
  std::vector<std::size_t> class_of;
  for (const ModuleInfo& info : model.modules) {
    const auto [row, fresh] = class_rows.emplace(info.class_name, report.classes.size());
    if (fresh) report.classes.push_back({info.class_name, 0, 0, {}});
    ++report.classes[row->second].modules;
    class_of.push_back(row->second);
  }
  for (const ParamInfo& param : model.params) {
    const Numel numel = numel_of(param.shape);
    ModuleNumbers& owner = report.modules[param.owner.index()];
    owner.params_all_names += numel;
    report.classes[class_of[param.owner.index()]].own_params += numel;
    if (param.shares.valid()) continue;
    owner.params += numel;
    owner.param_bytes += numel * itemsize(param.dtype);
    ++report.param_tensors;
    if (param.requires_grad) report.trainable_params += numel;
  }
  for (const BufferInfo& buffer : model.buffers) report.buffer_bytes += numel_of(buffer.shape) * itemsize(buffer.dtype);
  const std::vector<OpFlops> flops = count_flops(model);
  std::unordered_map<std::string_view, std::size_t> op_rows;
  for (std::size_t i = 0; i < flops.size(); ++i) {
    const Op& op = model.ops[i];
    if (flops[i] == OpFlops{}) continue;
    add(report.modules[op.module.index()].flops, flops[i]);
    add(report.classes[class_of[op.module.index()]].flops, flops[i]);
    const auto [row, fresh] = op_rows.emplace(op.name, report.forward_by_op.size());
    if (fresh) report.forward_by_op.emplace_back(op.name, 0);
    report.forward_by_op[row->second].second += flops[i].forward;
  }
  for (std::size_t i = model.modules.size(); i-- > 1;) {  // children stand behind their parents
    ModuleNumbers& parent = report.modules[model.modules[i].parent.index()];
    const ModuleNumbers& child = report.modules[i];
    parent.params += child.params;
    parent.params_all_names += child.params_all_names;
    parent.param_bytes += child.param_bytes;
    add(parent.flops, child.flops);
  }
  if (!report.modules.empty()) report.total = report.modules[0];
  return report;
}

namespace {

nlohmann::json shares(const std::vector<std::pair<std::string, Bytes>>& kept) {
  nlohmann::json rows = nlohmann::json::array();
  for (const auto& [name, bytes] : kept) rows.push_back({{"name", name}, {"bytes", bytes}});
  return rows;
}

}  // namespace

std::string write_inspect_json(const Model& model, const InspectReport& report) {
  using Json = nlohmann::ordered_json;
  Json classes = Json::array(), modules = Json::array(), by_op = Json::object();
  for (const ClassNumbers& row : report.classes) {
    classes.push_back({{"class", row.class_name},
                       {"modules", row.modules},
                       {"own_params", row.own_params},
                       {"flops_forward", row.flops.forward},
                       {"flops_backward", row.flops.backward}});
  }
  for (std::size_t i = 0; i < report.modules.size(); ++i) {
    const ModuleNumbers& row = report.modules[i];
    modules.push_back({{"fqn", model.modules[i].fqn},
                       {"class", model.modules[i].class_name},
                       {"params", row.params},
                       {"params_all_names", row.params_all_names},
                       {"flops_forward", row.flops.forward},
                       {"flops_backward", row.flops.backward}});
  }
  for (const auto& [name, flops] : report.forward_by_op) by_op[name] = flops;
  const Json document = {
      {"schema", "foreshard.inspect/1"},
      {"name", model.name},
      {"architecture", model.architecture},
      {"block_class", model.block_class},
      {"params",
       {{"distinct", report.total.params},
        {"all_names", report.total.params_all_names},
        {"tensors", report.param_tensors},
        {"trainable", report.trainable_params},
        {"bytes", report.total.param_bytes}}},
      {"buffer_bytes", report.buffer_bytes},
      {"tokens_per_batch", model.tokens_per_batch},
      {"operators", model.ops.size()},
      {"flops",
       {{"forward", report.total.flops.forward}, {"backward", report.total.flops.backward}, {"forward_by_op", by_op}}},
      {"activation_bytes", report.activation_bytes ? Json(*report.activation_bytes) : Json()},
      {"kept_by_class", shares(report.kept_by_class)},
      {"kept_by_operator", shares(report.kept_by_operator)},
      {"unknown_ops", report.unknown_ops},
      {"classes", classes},
      {"modules", modules}};
  return document.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::string write_module_tree(const Model& model, const InspectReport& report, int depth) {
  if (model.modules.empty()) return {};
  return TreeWriter(model, report, depth).write();
}

}  // namespace foreshard
