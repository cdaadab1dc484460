#include "core/adapters/adapted_tree.h"

#include <algorithm>
#include <string_view>
#include <tuple>
#include <utility>

#include "core/units.h"

namespace foreshard::adapters {
namespace {

constexpr std::int64_t kScaleBlock = 64, kNestedBlock = 256;  // bitsandbytes' blocksize; of its nested statistics

std::string below(const std::string& fqn, std::string_view name) {
  return fqn.empty() ? std::string(name) : fqn + "." + std::string(name);
}

class TreeMaker {
 public:
  TreeMaker(const Model& base, const Job& job, const ChosenLayers& chosen)
      : base_(base),
        options_(job.adapters),
        targets_(chosen.targets),
        packed_(chosen.packed),
        copied_(chosen.copied),
        loss_around_(job.model.loss.starts_with("chunked_")) {
    tree_.module.resize(base.modules.size());
    tree_.called.resize(base.modules.size());
    tree_.param.resize(base.params.size());
    frozen_.resize(base.params.size());
    in_copy_.resize(base.modules.size());
    tree_.layer.resize(base.modules.size());
    tree_.packed.resize(base.modules.size());
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
    model.assumes_choices = base_.assumes_choices;
    model.job = base_.job;
    std::size_t first = 0;
    if (loss_around_) tree_.module[0] = tree_.called[0] = add({}, "", base_.modules.front().class_name, {"Module"});
    if (loss_around_) first = 1;
    const bool language = loss_around_ || (base_.has_loss && base_.tokens_per_batch > 0);
    const ModuleId root = add(loss_around_ ? ModuleId(0) : ModuleId(), loss_around_ ? "model" : "",
                              language ? "PeftModelForCausalLM" : "PeftModel", {"PeftModel", "Module"});
    tuner_ = add(root, "base_model", "LoraModel", {"BaseTuner", "Module"});
    for (std::size_t m = first; m < base_.modules.size(); ++m)
      if (!tree_.called[m].valid()) add_module(ModuleId(m));
    for (std::size_t m = 0; m < base_.modules.size(); ++m) {
      const ModuleId of = base_.modules[m].alias_of;
      if (of.valid()) model.modules[tree_.called[m].index()].alias_of = tree_.called[of.index()];
    }
    for (const BufferInfo& buffer : base_.buffers) {
      BufferInfo moved = buffer;
      moved.owner = tree_.module[buffer.owner.index()];
      moved.fqn = below(model.modules[moved.owner.index()].fqn, leaf_of(buffer.fqn));
      model.buffers.push_back(std::move(moved));
    }
    model.buffers.insert(model.buffers.end(), quant_state_.begin(), quant_state_.end());  // operators count the others
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

  /// PeftModel.base_model is a LoraModel, which holds `model`.
  bool is_adapted_root(ModuleId from) const { return from.index() == (loss_around_ ? 1U : 0U); }

  void add_module(ModuleId from) {
    const ModuleInfo& info = base_.modules[from.index()];
    const bool root = is_adapted_root(from);
    const bool within = info.parent.valid() && in_copy_[info.parent.index()].valid();
    in_copy_[from.index()] = within ? in_copy_[info.parent.index()] : copied_[from.index()] ? from : ModuleId();
    const ModuleId parent = root     ? tuner_
                            : within ? tree_.module[info.parent.index()]
                                     : tree_.called[info.parent.index()];
    const std::string_view name = root ? std::string_view("model") : leaf_of(info.fqn);
    if (copied_[from.index()] && !within) return add_copied(from, parent, name);
    const bool packed = packed_[from.index()];
    const std::string_view stored = options_.base == "int8" ? "Linear8bitLt" : "Linear4bit";
    const std::string_view class_name = packed ? stored : std::string_view(info.class_name);
    if (!targets_[from.index()]) {
      const ModuleId id = add(parent, name, class_name, info.bases);
      tree_.module[from.index()] = tree_.called[from.index()] = id;
      move_params(info, id);
      if (packed) pack(from, id);
      return;
    }
    AdaptedLayer layer;
    layer.layer =
        add(parent, name, packed ? stored : std::string_view("Linear"), {"LoraLayer", "BaseTunerLayer", "Module"});
    layer.base = add(layer.layer, "base_layer", class_name, info.bases);
    tree_.called[from.index()] = layer.layer;
    tree_.module[from.index()] = layer.base;
    move_params(info, layer.base);
    if (packed) pack(from, layer.base);
    layer.dropout =
        add(add(layer.layer, "lora_dropout", "ModuleDict"), "default", options_.dropout > 0.0 ? "Dropout" : "Identity");
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

  /// ModulesToSaveWrapper (peft, utils/other.py): the module as it was, frozen, and a deep copy, which is called.
  void add_copied(ModuleId from, ModuleId parent, std::string_view name) {
    const ModuleInfo& info = base_.modules[from.index()];
    const ModuleId wrapper = add(parent, name, "ModulesToSaveWrapper", {"AuxiliaryTrainingWrapper", "Module"});
    add_original(from, wrapper, "original_module");
    tree_.called[from.index()] = wrapper;
    tree_.module[from.index()] =
        add(add(wrapper, "modules_to_save", "ModuleDict"), "default", info.class_name, info.bases);
    move_params(info, tree_.module[from.index()]);
  }

  void add_original(ModuleId from, ModuleId parent, std::string_view name) {
    const ModuleInfo& info = base_.modules[from.index()];
    const ModuleId id = add(parent, name, info.class_name, info.bases);
    for (const ParamId old : info.params) {
      frozen_[old.index()] = add_like(old, id);
      ParamInfo& made = tree_.model.params[frozen_[old.index()].index()];
      made.requires_grad = false;
      if (made.shares.valid()) made.shares = frozen_[made.shares.index()];
    }
    for (const ModuleId child : info.children)
      if (!base_.modules[child.index()].alias_of.valid())
        add_original(child, id, leaf_of(base_.modules[child.index()].fqn));
  }

  /// As in the plain model; `shares` is still its ParamId.
  ParamId add_like(ParamId old, ModuleId owner) {
    Model& model = tree_.model;
    ParamInfo info = base_.params[old.index()];
    const ParamId id(model.params.size());
    info.fqn = below(model.modules[owner.index()].fqn, leaf_of(info.fqn));
    info.owner = owner;
    model.params.push_back(std::move(info));
    model.modules[owner.index()].params.push_back(id);
    return id;
  }

  /// Params4bit: two elements a byte, in words of the base's dtype, which is what FSDP flattens, shards and gathers.
  /// What says how to read them (scales of 64 elements, themselves in a byte each) no FSDP knows of: every rank has all
  /// of it.
  void pack(ModuleId from, ModuleId id) {
    Model& model = tree_.model;
    const ParamId weight = tree_.param[base_.modules[from.index()].params.front().index()];
    ParamInfo& info = model.params[weight.index()];
    tree_.packed[from.index()] = weight;
    if (options_.base == "int8") {  // Int8Params: an element a byte, and a scale for each row
      info.dtype = DType::Int8;
      quant_state_.push_back(
          {below(model.modules[id.index()].fqn, "SCB"), {info.shape.front()}, DType::Float32, id, false});
      return;
    }
    const Numel numel = numel_of(info.shape);
    info.shape = {ceil_div(numel, 2 * itemsize(info.dtype)), 1};
    const std::int64_t scales = ceil_div(numel, kScaleBlock);
    const auto state = [&](std::string_view name, std::int64_t count, DType dtype) {
      quant_state_.push_back({below(model.modules[id.index()].fqn, name), {count}, dtype, id, false});
    };
    state("quant_state.absmax", scales, DType::UInt8);
    state("quant_state.nested_absmax", ceil_div(scales, kNestedBlock), DType::Float32);
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
      if (known.valid()) {
        model.modules[to.index()].params.push_back(known);
        continue;
      }
      known = add_like(old, to);
      ParamInfo& made = model.params[known.index()];
      const ModuleId copy = in_copy_[base_.params[old.index()].owner.index()];
      made.requires_grad = copy.valid();
      if (!copy.valid()) frozen_[old.index()] = known;
      if (!made.shares.valid()) continue;
      // A deep copy shares with what was copied with it alone.
      const bool apart = copy.valid() && in_copy_[base_.params[made.shares.index()].owner.index()] != copy;
      const ParamId of = copy.valid() ? tree_.param[made.shares.index()] : frozen_[made.shares.index()];
      made.shares = apart ? ParamId() : of;
    }
  }

  const Model& base_;
  const AdapterOptions& options_;
  const std::vector<bool>&targets_, &packed_, &copied_;
  std::vector<ParamId> frozen_;    // by the plain model's ParamId: as it was
  std::vector<ModuleId> in_copy_;  // by the plain model's ModuleId: the copied module that it is, or lies in
  const bool loss_around_;         // the script's wrapper is the root, PEFT's model its child
  ModuleId tuner_;
  std::vector<BufferInfo> quant_state_;
  AdaptedTree tree_;
};

}  // namespace

LinearWidths widths_of(const Model& model, ModuleId linear) {
  const ModuleInfo& info = model.modules[linear.index()];
  const Shape& shape = model.params[info.params.front().index()].shape;
  const bool turned = info.class_name == "Conv1D";  // Transformers' own, which keeps [in, out]
  return turned ? LinearWidths{shape.front(), shape.back()} : LinearWidths{shape.back(), shape.front()};
}

AdaptedTree adapted_tree(const Model& base, const Job& job, const ChosenLayers& chosen) {
  return TreeMaker(base, job, chosen).make();
}

}  // namespace foreshard::adapters
