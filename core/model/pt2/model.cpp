#include "core/model/pt2/model.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "core/model/pt2/ops.h"
#include "core/model/pt2/precision.h"
#include "core/model/pt2/tree.h"
#include "core/operators/program_writer.h"

namespace foreshard {
namespace {

using families::Dims;
using families::ProgramWriter;
using families::Tensor;

Error option_error(const std::string& file, const char* key, std::string message, std::string expected,
                   std::int64_t got) {
  return {ErrorCode::OutOfRange,
          std::move(message),
          file,
          key,
          std::move(expected),
          std::to_string(got),
          "export the model with the sizes you want, or with dynamic ones"};
}

/// Binds the symbols of the inputs: those that model.dims names; else first dimension to model.batch, second to
/// model.seq, the rest to the example. A symbol is named as in the archive ("s27") or by where it stands ("tokens.1").
class SymbolBinder {
 public:
  SymbolBinder(const Pt2Program& program, const std::string& file, const ModelOptions& options)
      : program_(program), file_(file), options_(options) {}

  Result<SymbolValues> run() {
    take_hints();
    if (!bind_named()) return fail(std::move(error_));
    const Pt2Graph& root = program_.graphs[0];
    bool batch_done = false, seq_done = false;
    for (const Pt2InputSpec& spec : program_.inputs) {
      const auto tensor = spec.kind == Pt2InputSpec::Kind::User ? root.tensors.find(spec.arg) : root.tensors.end();
      if (tensor == root.tensors.end() || tensor->second.sizes.empty()) continue;
      const auto& sizes = tensor->second.sizes;
      if (!batch_done && !bind(sizes[0], "model.batch", options_.batch, options_.batch != 1))
        return fail(std::move(error_));
      batch_done = true;
      const bool tokens = !is_floating(tensor->second.dtype) && sizes.size() == 2;
      if (tokens && !seq_done && !bind(sizes[1], "model.seq", options_.seq, options_.seq_given))
        return fail(std::move(error_));
      seq_done = seq_done || tokens;
    }
    return std::move(values_);
  }

 private:
  /// A symbolic size of an input.
  struct Place {
    std::string symbol, where;  // "s27", "tokens.1"
  };

  const std::string* symbol_of(const Pt2Dim& dim) const {
    if (dim.expr < 0) return nullptr;
    const SymExpr& expr = program_.exprs[static_cast<std::size_t>(dim.expr)];
    return expr.kind == SymExpr::Kind::Symbol ? &expr.name : nullptr;
  }

  std::vector<Place> places() const {
    std::vector<Place> found;
    const Pt2Graph& root = program_.graphs[0];
    for (const Pt2InputSpec& spec : program_.inputs) {
      const auto tensor = spec.kind == Pt2InputSpec::Kind::User ? root.tensors.find(spec.arg) : root.tensors.end();
      if (tensor == root.tensors.end()) continue;
      for (std::size_t d = 0; d < tensor->second.sizes.size(); ++d)
        if (const std::string* symbol = symbol_of(tensor->second.sizes[d]))
          found.push_back({*symbol, std::string(spec.arg) + "." + std::to_string(d)});
    }
    return found;
  }

  std::pair<std::int64_t, std::int64_t> range_of(const std::string& symbol) const {
    const auto range = program_.ranges.find(symbol);
    if (range == program_.ranges.end()) return {0, INT64_MAX};
    return {range->second.min.value_or(0), range->second.max.value_or(INT64_MAX)};
  }

  static std::string text_of(const std::pair<std::int64_t, std::int64_t>& range) {
    return std::to_string(range.first) +
           (range.second == INT64_MAX ? " or more" : " to " + std::to_string(range.second));
  }

  bool bind_named() {
    const std::vector<Place> all = places();
    for (const auto& [given, value] : options_.dims) {
      const std::string& name = given;  // Clang 14 captures no structured binding
      const auto at = std::find_if(all.begin(), all.end(),
                                   [&](const Place& place) { return place.symbol == name || place.where == name; });
      const std::string key = "model.dims." + name;
      if (at == all.end()) {
        std::string there;
        for (const Place& place : all)
          there += (there.empty() ? "" : ", ") + place.symbol + " (" + place.where + ": " +
                   text_of(range_of(place.symbol)) + ")";
        error_ = {
            ErrorCode::UnknownKey,
            "the archive has no symbolic size of that name",
            file_,
            key,
            there.empty() ? "no name: all of its sizes are fixed" : "one of " + there,
            name,
            there.empty() ? "export the model with dynamic shapes" : "name the symbol, or the input and its dimension"};
        return false;
      }
      const auto range = range_of(at->symbol);
      if (value < range.first || value > range.second) {
        error_ = option_error(file_, key.c_str(), "the size is outside the range that the archive was exported for",
                              text_of(range), value);
        return false;
      }
      values_.insert_or_assign(at->symbol, value);
      named_.insert(at->symbol);
    }
    return true;
  }

  void take_hints() {
    const auto take = [&](const Pt2Dim& dim) {
      if (dim.expr < 0 || dim.value < 0) return;
      const SymExpr& expr = program_.exprs[static_cast<std::size_t>(dim.expr)];
      if (expr.kind == SymExpr::Kind::Symbol) values_.emplace(expr.name, dim.value);
    };
    for (const Pt2Graph& graph : program_.graphs) {
      std::map<std::string_view, const Pt2Tensor*> in_order;  // equal inputs, equal answers
      for (const auto& [name, tensor] : graph.tensors) in_order.emplace(name, &tensor);
      for (const auto& [name, tensor] : in_order) {
        for (const Pt2Dim& dim : tensor->sizes) take(dim);
      }
    }
  }

  /// `asked` is false where the option only has its default, which then gives way.
  bool bind(const Pt2Dim& dim, const char* key, std::int64_t value, bool asked) {
    if (dim.expr < 0) {
      if (!asked || value == dim.value) return true;
      error_ =
          option_error(file_, key, "the archive was exported with a fixed size here", std::to_string(dim.value), value);
      return false;
    }
    const SymExpr& expr = program_.exprs[static_cast<std::size_t>(dim.expr)];
    if (expr.kind != SymExpr::Kind::Symbol || named_.count(expr.name) > 0) return true;
    const auto range = range_of(expr.name);
    if (value >= range.first && value <= range.second) {
      if (asked || value == 1) values_.insert_or_assign(expr.name, value);
      return true;
    }
    if (!asked) return true;
    error_ = option_error(file_, key, "the size is outside the range that the archive was exported for", text_of(range),
                          value);
    return false;
  }

  const Pt2Program& program_;
  const std::string& file_;
  const ModelOptions& options_;
  SymbolValues values_;
  std::set<std::string> named_;  // by model.dims, before which batch and seq give way
  Error error_;
};

/// The class of the repeated block: children of one list, of one class, with the most parameters in all.
std::string repeated_class(const Model& model) {
  std::vector<Numel> subtree(model.modules.size(), 0);
  for (const ParamInfo& param : model.params) subtree[param.owner.index()] += numel_of(param.shape);
  for (std::size_t m = model.modules.size(); m-- > 1;) subtree[model.modules[m].parent.index()] += subtree[m];
  std::map<std::string, Numel> total;
  for (const ModuleInfo& module : model.modules) {
    const auto& children = module.children;
    const bool list = children.size() > 1 && std::all_of(children.begin(), children.end(), [&](ModuleId child) {
                        const ModuleInfo& c = model.modules[child.index()];
                        return c.class_name == model.modules[children[0].index()].class_name && !c.children.empty() &&
                               c.fqn.find_last_not_of("0123456789") == c.fqn.rfind('.');
                      });
    if (!list) continue;
    for (const ModuleId child : children) total[model.modules[child.index()].class_name] += subtree[child.index()];
  }
  const auto most =
      std::max_element(total.begin(), total.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
  return most == total.end() || most->second == 0 ? std::string{} : most->first;
}

/// Cross entropy behind logits of two or three dimensions; labels become an input.
Result<void> add_loss(Model& model, const std::string& file, const std::string& kind) {
  if (kind == "none" || model.has_loss) return {};
  const bool possible = !model.outputs.empty() && [&] {
    const ValueInfo& logits = model.values[model.outputs[0].index()];
    return is_floating(logits.dtype) && (logits.shape.size() == 2 || logits.shape.size() == 3) &&
           numel_of(logits.shape) > 0;
  }();
  if (!possible) {
    if (kind == "auto") return {};
    return fail({ErrorCode::Unsupported, "a loss cannot be put behind this model's outputs", file, "model.loss",
                 "a first output with two or three dimensions, the last one the classes", "another output",
                 "export the model with its loss inside"});
  }
  const ValueInfo logits = model.values[model.outputs[0].index()];
  ProgramWriter writer(model, model.compute_dtype, {});
  writer.enter(ModuleId(0));
  model.loss_begin = static_cast<std::int32_t>(model.ops.size());
  const Dims sizes = Dims::of(logits.shape);
  Tensor rows{Tensor::Kind::Value, logits.dtype, model.outputs[0].value, sizes,
              ProgramWriter::contiguous_strides(sizes)};
  const std::int64_t classes = sizes[-1];
  Dims label_sizes = sizes;
  label_sizes.erase(sizes.rank() - 1);
  std::string label_name = "labels";
  while (
      std::any_of(model.values.begin(), model.values.end(), [&](const ValueInfo& v) { return v.name == label_name; }))
    label_name += "_";
  Tensor labels = writer.input(label_name, label_sizes, DType::Int64);
  if (kind == "cross_entropy_fp32" || kind == "cross_entropy_flat" || logits.dtype != DType::Float32)
    rows = writer.to(rows, DType::Float32);
  if (sizes.rank() == 3) {
    rows = writer.view(rows, {-1, classes});
    labels = writer.view(labels, {-1});
  }
  const Tensor loss =
      writer.nll_loss(writer.softmax("aten._log_softmax.default", rows, {Arg{std::int64_t{1}}, Arg{false}}), labels);
  model.outputs.insert(model.outputs.begin(), ValueId(loss.index));
  model.has_loss = true;
  return {};
}

/// torch.export gives every use of a tied parameter one of its names, whichever it met last. Each use gets the name
/// that its module registers, else the first, which holds the tensor.
void name_tied_uses(Model& model) {
  std::map<ParamId, std::vector<ParamId>> names;  // by storage
  for (std::size_t p = 0; p < model.params.size(); ++p)
    if (model.params[p].shares.valid()) names[model.params[p].shares].push_back(ParamId(p));
  if (names.empty()) return;
  const auto rename = [&](const auto& self, Arg& arg, ModuleId module) -> void {
    if (auto* list = std::get_if<ArgList>(&arg.value))
      for (Arg& item : *list) self(self, item, module);
    auto* param = std::get_if<ParamRef>(&arg.value);
    if (param == nullptr || model.params[param->id.index()].owner == module) return;
    const ParamId storage = model.storage_of(param->id);
    const auto tied = names.find(storage);
    if (tied == names.end()) return;
    const auto own = std::find_if(tied->second.begin(), tied->second.end(),
                                  [&](ParamId id) { return model.params[id.index()].owner == module; });
    param->id = own == tied->second.end() ? storage : *own;
  };
  for (Op& op : model.ops) {
    for (Arg& arg : op.args) rename(rename, arg, op.module);
    for (NamedArg& named : op.kwargs) rename(rename, named.arg, op.module);
  }
}

}  // namespace

Result<Model> model_from_pt2_program(const Pt2Program& archive, const std::string& file, const ModelOptions& options,
                                     const ProgramOptions& program) {
  Result<SymbolValues> symbols = SymbolBinder(archive, file, options).run();
  if (!symbols) return fail(std::move(symbols.error()));
  Model model;
  model.name = std::filesystem::path(file).stem().string();
  Result<Pt2Tree> tree = build_pt2_tree(archive, file, model);
  if (!tree) return fail(std::move(tree.error()));
  for (const ParamInfo& param : model.params) {
    if (!is_floating(param.dtype)) continue;
    model.compute_dtype = param.dtype;
    break;
  }
  model.block_class = repeated_class(model);
  std::optional<Pt2Program> cast;
  if (program.compute_dtype && *program.compute_dtype != model.compute_dtype) {
    cast = with_mixed_precision(archive, *program.compute_dtype, program.buffer_dtype);
    model.compute_dtype = *program.compute_dtype;
    for (BufferInfo& buffer : model.buffers)
      if (program.buffer_dtype && is_floating(buffer.dtype) && !is_complex(buffer.dtype))
        buffer.dtype = *program.buffer_dtype;  // FSDP1 asks is_floating_point, which complex numbers are not
  }
  if (Result<void> written = write_pt2_ops(cast ? *cast : archive, archive, file, *tree, *symbols, program, model);
      !written)
    return fail(std::move(written.error()));
  name_tied_uses(model);
  for (const ValueId id : model.inputs) {
    const ValueInfo& value = model.values[id.index()];
    const bool tokens = !is_floating(value.dtype) && value.shape.size() == 2;
    if (tokens && model.tokens_per_batch == 0) model.tokens_per_batch = numel_of(value.shape);
  }
  if (Result<void> added = add_loss(model, file, options.loss); !added) return fail(std::move(added.error()));
  if (program.compute_dtype && options.dtype && itemsize(*options.dtype) > itemsize(*program.compute_dtype)) {
    for (ParamInfo& param : model.params)  // the archive holds what FSDP casts to
      if (param.dtype == *program.compute_dtype) param.dtype = *options.dtype;
  }
  return model;
}

Result<Model> model_from_pt2(const std::string& path, const ModelOptions& options, const ProgramOptions& program) {
  const Pt2Limits limits;
  Result<Pt2Members> members = read_pt2_archive(path, options.program, limits);
  if (!members) return fail(std::move(members.error()));
  const Result<Pt2Program> archive = parse_pt2_program(std::move(*members), path, limits);
  if (!archive) return fail(archive.error());
  return model_from_pt2_program(*archive, path, options, program);
}

}  // namespace foreshard
