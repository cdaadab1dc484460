#include "core/model/module_kind.h"

#include <algorithm>
#include <array>
#include <string_view>

namespace foreshard {
namespace {

struct Named {
  std::string_view name;
  ModuleKind kind;
};

// Sources that know bases give them; a convolution's is _ConvNd. Conv1D is the linear layer of GPT-2.
constexpr std::array kNamed = {
    Named{"Linear", ModuleKind::Linear},
    Named{"Conv1D", ModuleKind::Linear},
    Named{"_ConvNd", ModuleKind::Convolution},
    Named{"Conv1d", ModuleKind::Convolution},
    Named{"Conv2d", ModuleKind::Convolution},
    Named{"Conv3d", ModuleKind::Convolution},
    Named{"ConvTranspose1d", ModuleKind::Convolution},
    Named{"ConvTranspose2d", ModuleKind::Convolution},
    Named{"ConvTranspose3d", ModuleKind::Convolution},
    Named{"Embedding", ModuleKind::Embedding},
    Named{"LayerNorm", ModuleKind::LayerNorm},
};

ModuleKind kind_of_name(std::string_view name) {
  const auto at = std::find_if(kNamed.begin(), kNamed.end(), [&](const Named& known) { return known.name == name; });
  return at == kNamed.end() ? ModuleKind::Other : at->kind;
}

}  // namespace

ModuleKind kind_of(const ModuleInfo& module) {
  ModuleKind kind = kind_of_name(module.class_name);
  for (const std::string& base : module.bases) {
    if (kind == ModuleKind::Other) kind = kind_of_name(base);
  }
  return kind;
}

ModuleId output_head(const Model& model) {
  if (model.modules.empty()) return {};
  ModuleId root(0);
  const auto children = [&](ModuleId of) -> const std::vector<ModuleId>& { return model.modules[of.index()].children; };
  while (children(root).size() == 1) root = children(root).front();
  const auto child = [&](ModuleId of, std::string_view name) {
    for (const ModuleId id : children(of)) {
      const std::string& fqn = model.modules[id.index()].fqn;
      if (fqn == name || (fqn.size() > name.size() && fqn.ends_with(name) && fqn[fqn.size() - name.size() - 1] == '.'))
        return id;
    }
    return ModuleId();
  };
  for (const std::string_view name : {"output", "lm_head"})
    if (const ModuleId head = child(root, name); head.valid()) return head;
  if (const ModuleId decoder = child(root, "decoder"); decoder.valid()) {
    for (const std::string_view name : {"output", "lm_head"})
      if (const ModuleId head = child(decoder, name); head.valid()) return head;
    return {};
  }
  for (const std::string_view name : {"final_layer_norm", "ln_f", "head"})
    if (const ModuleId head = child(root, name); head.valid()) return head;
  return {};
}

const std::vector<std::string>& base_class_names() {
  static const std::vector<std::string> kNames{"Module"};
  return kNames;
}

const std::vector<std::string>& container_class_names() {
  static const std::vector<std::string> kNames{"ModuleList", "ModuleDict"};
  return kNames;
}

bool is_stack(const Model& model, ModuleId id) {
  const ModuleInfo& module = model.modules[id.index()];
  const auto is_one_of = [&](const std::vector<std::string>& names) {
    const auto is = [&](const std::string& name) { return std::find(names.begin(), names.end(), name) != names.end(); };
    return is(module.class_name) || std::any_of(module.bases.begin(), module.bases.end(), is);
  };
  const auto is_like_first = [&](ModuleId child) {
    return model.modules[child.index()].class_name == model.modules[module.children.front().index()].class_name;
  };
  if (module.children.empty()) return false;
  if (is_one_of({"ModuleList"})) return true;
  return is_one_of({"ModuleDict", "Sequential"}) &&
         std::all_of(module.children.begin(), module.children.end(), is_like_first);
}

const std::vector<std::string>& unsplit_class_names() {
  static const std::vector<std::string> kNames{"MultiheadAttention"};
  return kNames;
}

const std::vector<std::string>& batch_norm_class_names() {
  // Every one derives from _BatchNorm; models whose source gives no bases are known by name.
  static const std::vector<std::string> kNames{"_BatchNorm",      "BatchNorm1d",    "BatchNorm2d",
                                               "BatchNorm3d",     "SyncBatchNorm",  "LazyBatchNorm1d",
                                               "LazyBatchNorm2d", "LazyBatchNorm3d"};
  return kNames;
}

LeafAutograd autograd_of(const ModuleInfo& module) {
  // By the class itself: a subclass has a forward of its own.
  switch (kind_of_name(module.class_name)) {
    case ModuleKind::Linear: return module.class_name == "Linear" ? LeafAutograd::Linear : LeafAutograd::Opaque;
    case ModuleKind::Embedding: return LeafAutograd::Embedding;
    case ModuleKind::LayerNorm: return LeafAutograd::LayerNorm;
    default: return LeafAutograd::Opaque;
  }
}

}  // namespace foreshard
