#include "core/model/pt2/tree.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <utility>

#include "core/model/json_input.h"

namespace foreshard {
namespace {

constexpr std::size_t kMaxModules = 200'000;
constexpr std::size_t kLongestName = 4096;

struct Split {
  std::string owner, leaf;
};
Split split_fqn(const std::string& fqn) {
  const std::size_t dot = fqn.rfind('.');
  return dot == std::string::npos ? Split{"", fqn} : Split{fqn.substr(0, dot), fqn.substr(dot + 1)};
}

std::string short_class(std::string_view qualified) {
  return std::string(qualified.substr(qualified.rfind('.') + 1));  // npos + 1 = 0
}

/// A parameter of the archive, with its registrations in the model's order still to be found.
struct Registered {
  std::string fqn, graph_name;
  Shape shape;
  DType dtype = DType::Float32;
  bool requires_grad = true;
  std::string storage;  // path_name and offset where weights are real
};

class TreeBuilder {
 public:
  TreeBuilder(const Pt2Program& program, const std::string& file, Model& model)
      : program_(program), file_(file), model_(model) {}

  Result<Pt2Tree> run() {
    collect_params();
    collect_modules();
    if (nodes_.size() > kMaxModules || longest_ > kLongestName) {
      return fail({ErrorCode::TooLarge,
                   "the archive names too many modules",
                   file_,
                   "module_call_graph",
                   "at most " + std::to_string(kMaxModules),
                   std::to_string(nodes_.size()),
                   {}});
    }
    emit_modules();
    emit_params();
    mark_shared();
    mark_aliases();
    emit_buffers();
    return std::move(tree_);
  }

 private:
  struct TreeNode {
    std::string fqn;
    std::size_t parent = 0;
    std::vector<std::size_t> children;
    std::string class_name;
  };

  // --- parameters ---

  void collect_params() {
    const Pt2Graph& root = program_.graphs[0];
    std::map<std::string, const Pt2Weight*, std::less<>> weights;
    for (const Pt2Weight& weight : program_.weights) weights.emplace(weight.fqn, &weight);
    const auto storage_of = [&](const Pt2Weight* weight) -> std::string {
      if (weight == nullptr) return {};
      const auto payload = program_.payload_bytes.find(weight->path_name);
      if (payload == program_.payload_bytes.end() || payload->second == 0) return {};  // meta and fake tensors
      return weight->path_name + "+" + std::to_string(weight->offset);
    };
    std::set<std::string> specified;
    for (const Pt2InputSpec& spec : program_.inputs) {
      if (spec.kind != Pt2InputSpec::Kind::Parameter || !specified.insert(spec.target).second) continue;
      const Pt2Tensor& tensor = root.tensors.at(spec.arg);
      Registered param{spec.target, spec.arg, {}, tensor.dtype, tensor.requires_grad, {}};
      for (const Pt2Dim& dim : tensor.sizes) param.shape.push_back(std::max<std::int64_t>(dim.value, 0));
      const auto weight = weights.find(spec.target);
      param.storage = storage_of(weight == weights.end() ? nullptr : weight->second);
      params_.push_back(std::move(param));
    }
    for (const Pt2Weight& weight : program_.weights) {  // strict export: further aliases stand only here
      if (!weight.is_param || specified.contains(weight.fqn)) continue;
      Registered param{weight.fqn, {}, weight.sizes, weight.dtype, true, storage_of(&weight)};
      for (const Registered& other : params_) {
        if (!other.graph_name.empty() && same_tensor(param, other)) param.requires_grad = other.requires_grad;
      }
      params_.push_back(std::move(param));
    }
  }

  /// Of names without a spec: by path where weights are real, else by shape.
  static bool same_tensor(const Registered& a, const Registered& b) {
    return a.shape == b.shape && a.dtype == b.dtype && a.storage == b.storage;
  }

  // --- modules ---

  std::size_t node_of(const std::string& fqn) {
    if (const auto found = node_at_.find(fqn); found != node_at_.end()) return found->second;
    longest_ = std::max(longest_, fqn.size());
    const std::size_t parent = fqn.empty() || longest_ > kLongestName ? 0 : node_of(split_fqn(fqn).owner);
    const std::size_t index = nodes_.size();
    nodes_.push_back({fqn, parent, {}, {}});
    node_at_.emplace(fqn, index);
    if (!fqn.empty()) nodes_[parent].children.push_back(index);
    return index;
  }

  void collect_modules() {
    node_of("");
    for (const std::string& fqn : program_.module_fqns) node_of(fqn);
    for (const Registered& param : params_) node_of(split_fqn(param.fqn).owner);
    for (const Pt2InputSpec& spec : program_.inputs) {
      if (spec.kind == Pt2InputSpec::Kind::Buffer) node_of(split_fqn(spec.target).owner);
    }
    for (const std::vector<Pt2Frame>& stack : program_.stacks) {
      for (const Pt2Frame& frame : stack) {
        TreeNode& node = nodes_[node_of(module_fqn(frame.path))];
        if (node.class_name.empty()) node.class_name = short_class(frame.class_name);
        if (!frame.path.empty() && !frame.key.starts_with("L__self__")) strict_ = true;
      }
    }
    name_silent_modules();
  }

  /// Modules that run no operator are listed without their class. One that holds the same parameters and buffers under
  /// the same names as others of one class only (the last stages of an encoder that nobody asks for them) is of theirs.
  void name_silent_modules() {
    std::vector<std::uint64_t> held(nodes_.size(), 0);  // by node: a hash of what lies in it; 0: nothing
    const auto add = [&held](std::size_t node, const std::string& leaf, std::uint64_t what) {
      const std::uint64_t mixed = (std::hash<std::string>()(leaf) ^ what) * 0x9e3779b97f4a7c15U;
      held[node] += mixed ^ (mixed >> 29U);  // in any order
    };
    const auto note = [&](const std::string& fqn, std::size_t rank) {
      add(node_of(split_fqn(fqn).owner), std::string(split_fqn(fqn).leaf), rank + 1);
    };
    for (const Registered& param : params_) note(param.fqn, param.shape.size());
    for (const Pt2InputSpec& spec : program_.inputs) {
      if (spec.kind != Pt2InputSpec::Kind::Buffer) continue;
      const auto tensor = program_.graphs[0].tensors.find(spec.arg);
      if (tensor != program_.graphs[0].tensors.end()) note(spec.target, tensor->second.sizes.size());
    }
    for (std::size_t i = nodes_.size(); i-- > 1;)  // parents stand before what is in them
      if (held[i] != 0) add(nodes_[i].parent, std::string(split_fqn(nodes_[i].fqn).leaf), held[i]);
    std::map<std::uint64_t, std::set<std::string>> classes;
    for (std::size_t i = 1; i < nodes_.size(); ++i)
      if (held[i] != 0 && !nodes_[i].class_name.empty()) classes[held[i]].insert(nodes_[i].class_name);
    for (std::size_t i = 1; i < nodes_.size(); ++i) {
      if (!nodes_[i].class_name.empty() || held[i] == 0) continue;
      const auto alike = classes.find(held[i]);
      if (alike != classes.end() && alike->second.size() == 1) nodes_[i].class_name = *alike->second.begin();
    }
  }

  /// Of those that are like no other.
  std::string guessed_class(const TreeNode& node, bool has_params) const {
    if (!node.class_name.empty()) return node.class_name;
    if (node.children.empty()) return has_params ? "Module" : "Identity";
    for (std::size_t i = 0; i < node.children.size(); ++i) {
      if (split_fqn(nodes_[node.children[i]].fqn).leaf != std::to_string(i)) return "Module";
    }
    return "ModuleList";
  }

  /// Preorder, without recursion: names may be nested deep.
  void emit_modules() {
    std::set<std::string> owners;
    for (const Registered& param : params_) owners.insert(split_fqn(param.fqn).owner);
    std::vector<std::size_t> todo{0};
    while (!todo.empty()) {
      const TreeNode& node = nodes_[todo.back()];
      todo.pop_back();
      const ModuleId id(model_.modules.size());
      ModuleInfo info;
      info.fqn = node.fqn;
      info.class_name = guessed_class(node, owners.contains(node.fqn));
      if (!node.fqn.empty()) {
        info.parent = tree_.modules.at(nodes_[node.parent].fqn);
        model_.modules[info.parent.index()].children.push_back(id);
      }
      model_.modules.push_back(std::move(info));
      tree_.modules.emplace(node.fqn, id);
      todo.insert(todo.end(), node.children.rbegin(), node.children.rend());
    }
  }

  void emit_params() {
    std::vector<std::vector<std::size_t>> by_module(model_.modules.size());
    for (std::size_t i = 0; i < params_.size(); ++i)
      by_module[tree_.modules.at(split_fqn(params_[i].fqn).owner).index()].push_back(i);
    for (std::size_t m = 0; m < by_module.size(); ++m) {
      for (const std::size_t i : by_module[m]) {
        const Registered& param = params_[i];
        const ParamId id(model_.params.size());
        model_.params.push_back({param.fqn, param.shape, param.dtype, param.requires_grad, ModuleId(m), {}});
        model_.modules[m].params.push_back(id);
        registered_.push_back(i);
        if (!param.graph_name.empty()) tree_.params.emplace(param.graph_name, id);
      }
    }
  }

  // --- sharing (pt2-format.md, section 3) ---

  const Registered& registered(ParamId id) const { return params_[registered_[id.index()]]; }

  void share(ParamId a, ParamId b) {
    ParamId first = model_.storage_of(a), second = model_.storage_of(b);
    if (first == second) return;
    if (second < first) std::swap(first, second);
    for (ParamInfo& param : model_.params) {
      if (param.shares == second) param.shares = first;
    }
    model_.params[second.index()].shares = first;
  }

  void mark_shared() {
    std::map<std::string, std::vector<ParamId>> by_storage;
    for (std::size_t i = 0; i < model_.params.size(); ++i) {
      const ParamId id(i);
      const Registered& param = registered(id);
      if (numel_of(param.shape) > 0 && !param.storage.empty()) by_storage[param.storage].push_back(id);
    }
    for (const auto& [storage, ids] : by_storage) {
      for (const ParamId id : ids) {
        if (registered(id).shape == registered(ids.front()).shape &&
            registered(id).dtype == registered(ids.front()).dtype)
          share(ids.front(), id);
      }
    }
    share_by_use();
    for (std::size_t i = 0; i < model_.params.size(); ++i) {  // rule 3: strict export, without real weights
      const ParamId id(i);
      if (!registered(id).graph_name.empty() || !registered(id).storage.empty()) continue;
      for (std::size_t j = 0; j < model_.params.size(); ++j) {
        const ParamId other(j);
        if (registered(other).graph_name.empty() || !same_tensor(registered(id), registered(other))) continue;
        share(id, other);
        break;
      }
    }
  }

  /// Rules 1 and 2: the graph uses only the last alias; an operator of the unused one's module reads it.
  void share_by_use() {
    std::set<ParamId> used;
    std::map<std::string, std::vector<ParamId>> read_by;   // module -> parameters that its operators read
    std::map<std::string, std::set<ParamId>> read_within;  // ... or those of modules inside it
    const Pt2Graph& root = program_.graphs[0];
    for (const Pt2Node& node : root.nodes) {
      const auto read = [&](const auto& self, const Pt2Arg& arg) -> void {
        for (const Pt2Arg& item : arg.items) self(self, item);
        if (arg.kind != Pt2Arg::Kind::Tensor) return;
        const auto param = tree_.params.find(arg.text);
        if (param == tree_.params.end()) return;
        used.insert(param->second);
        if (node.stack < 0) return;
        const auto& stack = program_.stacks[static_cast<std::size_t>(node.stack)];
        if (!stack.empty()) read_by[module_fqn(stack.back().path)].push_back(param->second);
        for (const Pt2Frame& frame : stack) read_within[module_fqn(frame.path)].insert(param->second);
      };
      for (const Pt2Input& input : node.inputs) read(read, input.arg);
    }
    for (std::size_t i = 0; i < model_.params.size(); ++i) {
      const ParamId id(i);
      const Registered& param = registered(id);
      if (param.graph_name.empty() || !param.storage.empty() || used.contains(id)) continue;
      const Split name = split_fqn(param.fqn);
      const auto fits = [&](ParamId other) {
        const Registered& q = registered(other);
        return split_fqn(q.fqn).owner != name.owner && q.shape == param.shape && q.dtype == param.dtype;
      };
      const std::vector<ParamId>& reads = read_by[name.owner];
      const auto direct = std::find_if(reads.begin(), reads.end(), fits);
      if (direct != reads.end()) {
        share(id, *direct);
        continue;
      }
      // A bias that the parent registers for its child (BERT's predictions.bias): the only one of that name in there.
      std::vector<ParamId> inner;
      for (const ParamId other : read_within[name.owner]) {
        if (fits(other) && split_fqn(registered(other).fqn).leaf == name.leaf) inner.push_back(other);
      }
      if (inner.size() == 1 && !name.owner.empty()) share(id, inner.front());
    }
    for (std::size_t i = 0; i < model_.params.size(); ++i) {
      const ParamId id(i);
      const Registered& param = registered(id);
      if (param.graph_name.empty() || !param.storage.empty() || used.contains(id) || is_tied(id)) continue;
      const ParamId tied = program_.stacks.empty() ? only_used_like(param, used) : only_tied_like(param);
      if (tied.valid()) share(id, tied);
    }
  }

  /// Where no operator names its module, what nobody reads is tied to the only one that is read and looks like it.
  ParamId only_used_like(const Registered& param, const std::set<ParamId>& used) const {
    ParamId found;
    for (const ParamId id : used) {
      if (registered(id).shape != param.shape || registered(id).dtype != param.dtype) continue;
      if (found.valid()) return {};
      found = id;
    }
    return found;
  }

  bool is_tied(ParamId id) const {
    return model_.params[id.index()].shares.valid() ||
           std::any_of(model_.params.begin(), model_.params.end(), [id](const ParamInfo& p) { return p.shares == id; });
  }

  /// A parameter that only the tree names (T5's shared.weight) is one more name of the tensor that is tied already, if
  /// just one such tensor has its shape: a model registers what it never reads in order to tie it.
  ParamId only_tied_like(const Registered& param) const {
    ParamId found;
    for (std::size_t i = 0; i < model_.params.size(); ++i) {
      const ParamInfo& other = model_.params[i];
      if (!other.shares.valid() || other.shape != param.shape || other.dtype != param.dtype) continue;
      if (found.valid() && found != other.shares) return {};
      found = other.shares;
    }
    return found;
  }

  /// One module under two names: every parameter is shared with the one of the same name there, and the class agrees.
  /// (Two modules of one class whose parameters are all tied cannot be told from it.)
  void mark_aliases() {
    std::map<ModuleId, ModuleId> candidates;
    for (std::size_t m = 1; m < model_.modules.size(); ++m) {
      const ModuleInfo& module = model_.modules[m];
      if (module.params.empty() || !module.children.empty()) continue;
      ModuleId target;
      bool all = true;
      for (const ParamId id : module.params) {
        const ParamId storage = model_.storage_of(id);
        const ModuleId owner = model_.params[storage.index()].owner;
        const bool same_leaf =
            split_fqn(model_.params[storage.index()].fqn).leaf == split_fqn(model_.params[id.index()].fqn).leaf;
        all = all && storage != id && same_leaf && (!target.valid() || target == owner);
        target = owner;
      }
      if (!all || target.index() >= m || model_.modules[target.index()].params.size() != module.params.size()) continue;
      const bool same_class = class_of(ModuleId(m)) == class_of(target) && !class_of(target).empty();
      const bool one_hidden = strict_ && (class_of(ModuleId(m)).empty() || class_of(target).empty());
      if (same_class || one_hidden) candidates.emplace(ModuleId(m), target);
    }
    for (const auto& [alias, target] : candidates) {
      ModuleInfo& a = model_.modules[alias.index()];
      ModuleInfo& t = model_.modules[target.index()];
      if (class_of(target).empty()) t.class_name = a.class_name;
      a.class_name = t.class_name;
      a.alias_of = target;
    }
  }

  const std::string& class_of(ModuleId id) const {  // as the stacks say; empty if no operator told it
    return nodes_[node_at_.at(model_.modules[id.index()].fqn)].class_name;
  }

  void emit_buffers() {
    for (const Pt2InputSpec& spec : program_.inputs) {
      const bool constant = spec.kind == Pt2InputSpec::Kind::TensorConstant;
      if (spec.kind != Pt2InputSpec::Kind::Buffer && !constant) continue;
      const Pt2Tensor& tensor = program_.graphs[0].tensors.at(spec.arg);
      BufferInfo buffer{spec.target, {}, tensor.dtype, ModuleId(0), spec.persistent && !constant};
      for (const Pt2Dim& dim : tensor.sizes) buffer.shape.push_back(std::max<std::int64_t>(dim.value, 0));
      const auto owner = tree_.modules.find(split_fqn(spec.target).owner);
      if (owner != tree_.modules.end()) buffer.owner = owner->second;
      tree_.buffers.emplace(spec.arg, static_cast<std::int32_t>(model_.buffers.size()));
      model_.buffers.push_back(std::move(buffer));
    }
  }

  const Pt2Program& program_;
  const std::string& file_;
  Model& model_;
  Pt2Tree tree_;
  std::vector<Registered> params_;
  std::vector<std::size_t> registered_;  // by ParamId: params_
  std::vector<TreeNode> nodes_;
  std::unordered_map<std::string, std::size_t> node_at_;
  std::size_t longest_ = 0;
  bool strict_ = false;
};

}  // namespace

std::string module_fqn(std::string_view path) {
  constexpr std::string_view kOpen = "._modules['", kClose = "']";
  std::string fqn;
  for (;;) {
    const std::size_t open = path.find(kOpen);
    const std::size_t close = open == path.npos ? path.npos : path.find(kClose, open + kOpen.size());
    if (close == path.npos) return fqn.append(path);
    fqn.append(path.substr(0, open))
        .append(1, '.')
        .append(path.substr(open + kOpen.size(), close - open - kOpen.size()));
    path.remove_prefix(close + kClose.size());
  }
}

Result<Pt2Tree> build_pt2_tree(const Pt2Program& program, const std::string& file, Model& model) {
  return TreeBuilder(program, file, model).run();
}

}  // namespace foreshard
