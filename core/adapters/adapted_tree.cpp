#include "core/adapters/adapted_tree.h"

#include <algorithm>
#include <string_view>
#include <tuple>
#include <utility>

namespace foreshard::adapters {
namespace {

constexpr std::string_view kModelName = "base_model.model";  // PeftModel.base_model is a LoraModel, which holds `model`

std::string below(const std::string& fqn, std::string_view name) {
  return fqn.empty() ? std::string(name) : fqn + "." + std::string(name);
}

class TreeMaker {
 public:
  TreeMaker(const Model& base, const AdapterOptions& options, const std::vector<bool>& targets)
      : base_(base), options_(options), targets_(targets) {
    tree_.module.resize(base.modules.size());
    tree_.called.resize(base.modules.size());
    tree_.param.resize(base.params.size());
    tree_.layer.resize(base.modules.size());
  }

  AdaptedTree make() {
    Model& model = tree_.model;
    model.name = base_.name;
    model.architecture = base_.architecture;
    model.block_class = base_.block_class;
    model.tokens_per_batch = base_.tokens_per_batch;
    model.has_loss = base_.has_loss;
    model.compute_dtype = base_.compute_dtype;
    model.lifetimes = base_.lifetimes;
    model.job = base_.job;
    const bool language = base_.outputs.size() > 1 && base_.tokens_per_batch > 0;
    const ModuleId root = add({}, "", language ? "PeftModelForCausalLM" : "PeftModel", {"PeftModel", "Module"});
    const ModuleId tuner = add(root, "base_model", "LoraModel", {"BaseTuner", "Module"});
    for (std::size_t m = 0; m < base_.modules.size(); ++m) add_module(ModuleId(m), tuner);
    for (std::size_t m = 0; m < base_.modules.size(); ++m) {
      const ModuleId of = base_.modules[m].alias_of;
      if (of.valid()) model.modules[tree_.called[m].index()].alias_of = tree_.called[of.index()];
    }
    for (const BufferInfo& buffer : base_.buffers) {
      BufferInfo moved = buffer;
      moved.owner = tree_.module[buffer.owner.index()];
      moved.fqn = below(std::string(kModelName), buffer.fqn);
      model.buffers.push_back(std::move(moved));
    }
    return std::move(tree_);
  }

 private:
  ModuleId add(ModuleId parent, std::string_view name, std::string_view class_name, std::vector<std::string> bases) {
    Model& model = tree_.model;
    const ModuleId id(model.modules.size());
    ModuleInfo info;
    info.fqn = parent.valid() ? below(model.modules[parent.index()].fqn, name) : std::string();
    info.class_name = class_name;
    info.bases = std::move(bases);
    info.parent = parent;
    model.modules.push_back(std::move(info));
    if (parent.valid()) model.modules[parent.index()].children.push_back(id);
    return id;
  }

  ModuleId add(ModuleId parent, std::string_view name, std::string_view class_name) {
    return add(parent, name, class_name, {"Module"});
  }

  static std::string_view leaf_of(std::string_view fqn) { return fqn.substr(fqn.rfind('.') + 1); }

  void add_module(ModuleId from, ModuleId tuner) {
    const ModuleInfo& info = base_.modules[from.index()];
    const ModuleId parent = info.parent.valid() ? tree_.called[info.parent.index()] : tuner;
    const std::string_view name = info.parent.valid() ? leaf_of(info.fqn) : std::string_view("model");
    if (!targets_[from.index()]) {
      const ModuleId id = add(parent, name, info.class_name, info.bases);
      tree_.module[from.index()] = tree_.called[from.index()] = id;
      move_params(info, id);
      return;
    }
    AdaptedLayer layer;
    layer.layer = add(parent, name, "Linear", {"LoraLayer", "BaseTunerLayer", "Module"});
    layer.base = add(layer.layer, "base_layer", info.class_name, info.bases);
    tree_.called[from.index()] = layer.layer;
    tree_.module[from.index()] = layer.base;
    move_params(info, layer.base);
    add(add(layer.layer, "lora_dropout", "ModuleDict"), "default", "Identity");
    const LinearWidths widths = widths_of(base_, from);
    const DType dtype = options_.dtype.value_or(base_.params[info.params.front().index()].dtype);
    const auto linear = [&](const char* list, Shape shape) {
      const ModuleId id = add(add(layer.layer, list, "ModuleDict"), "default", "Linear");
      return std::pair{id, add_param(id, std::move(shape), dtype)};
    };
    std::tie(layer.down, layer.down_weight) = linear("lora_A", {options_.rank, widths.in});
    std::tie(layer.up, layer.up_weight) = linear("lora_B", {widths.out, options_.rank});
    add(layer.layer, "lora_embedding_A", "ParameterDict");
    add(layer.layer, "lora_embedding_B", "ParameterDict");
    add(layer.layer, "lora_magnitude_vector", "ModuleDict");
    tree_.layer[from.index()] = layer;
  }

  ParamId add_param(ModuleId owner, Shape shape, DType dtype) {
    Model& model = tree_.model;
    const ParamId id(model.params.size());
    ParamInfo info;
    info.fqn = below(model.modules[owner.index()].fqn, "weight");
    info.shape = std::move(shape);
    info.dtype = dtype;
    info.owner = owner;
    model.params.push_back(std::move(info));
    model.modules[owner.index()].params.push_back(id);
    return id;
  }

  /// In the order of the plain model's modules: that of named_parameters. An alias shows those of its object.
  void move_params(const ModuleInfo& from, ModuleId to) {
    Model& model = tree_.model;
    for (const ParamId old : from.params) {
      ParamId& known = tree_.param[old.index()];
      if (!known.valid()) {
        ParamInfo info = base_.params[old.index()];
        known = ParamId(model.params.size());
        info.fqn = below(model.modules[to.index()].fqn, leaf_of(info.fqn));
        info.owner = to;
        info.requires_grad = false;
        if (info.shares.valid()) info.shares = tree_.param[info.shares.index()];
        model.params.push_back(std::move(info));
      }
      model.modules[to.index()].params.push_back(known);
    }
  }

  const Model& base_;
  const AdapterOptions& options_;
  const std::vector<bool>& targets_;
  AdaptedTree tree_;
};

}  // namespace

LinearWidths widths_of(const Model& model, ModuleId linear) {
  const ModuleInfo& info = model.modules[linear.index()];
  const Shape& shape = model.params[info.params.front().index()].shape;
  const bool turned = info.class_name == "Conv1D";  // Transformers' own, which keeps [in, out]
  return turned ? LinearWidths{shape.front(), shape.back()} : LinearWidths{shape.back(), shape.front()};
}

AdaptedTree adapted_tree(const Model& base, const AdapterOptions& options, const std::vector<bool>& targets) {
  return TreeMaker(base, options, targets).make();
}

}  // namespace foreshard::adapters
