#include "core/model/pt2/precision.h"

#include <algorithm>
#include <array>
#include <map>
#include <unordered_map>
#include <utility>

namespace foreshard {
namespace {

using ArgKind = Pt2Arg::Kind;
using Types = std::unordered_map<std::string, DType>;

constexpr int kPasses = 3;       // values used before they are known settle after one; the others confirm
constexpr int kDeepestLook = 8;  // views between a cast and what it meets

DType promote(DType a, DType b) {
  if (a == b) return a;
  if (itemsize(a) != itemsize(b)) return itemsize(a) > itemsize(b) ? a : b;
  return DType::Float32;  // bfloat16 with float16
}

std::string_view base_name(std::string_view target) {
  for (const std::string_view prefix : {"torch.ops.aten.", "torch.ops.transformers."}) {
    if (!target.starts_with(prefix)) continue;
    target.remove_prefix(prefix.size());
    return target.substr(0, target.find('.'));
  }
  return {};
}

template <std::size_t N>
bool any_of(const std::array<std::string_view, N>& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

/// Operators that take one floating dtype only.
bool is_strict(std::string_view name) {
  static constexpr std::array<std::string_view, 18> kNames{"linear",      "matmul",
                                                           "mm",          "bmm",
                                                           "addmm",       "baddbmm",
                                                           "einsum",      "conv1d",
                                                           "conv2d",      "conv3d",
                                                           "convolution", "scaled_dot_product_attention",
                                                           "layer_norm",  "native_layer_norm",
                                                           "group_norm",  "rms_norm",
                                                           "_grouped_mm", "grouped_mm_fallback"};
  return any_of(kNames, name);
}
bool is_product(std::string_view name) { return is_strict(name) && name.find("norm") == name.npos; }

bool is_cast(std::string_view name) { return name == "to" || name == "_to_copy"; }

/// Casts to another tensor's type.
bool is_way_back(std::string_view name) { return name == "type_as"; }

bool is_viewing(std::string_view name) {
  static constexpr std::array<std::string_view, 19> kNames{
      "view",  "reshape", "unsqueeze", "squeeze",    "transpose", "permute", "expand", "slice",     "select", "t",
      "alias", "flatten", "detach",    "contiguous", "clone",     "chunk",   "split",  "expand_as", "movedim"};
  return any_of(kNames, name);
}

/// Results beyond the first that stay wide whatever the operands are: statistics of norms.
bool keeps_statistics(std::string_view name) {
  return name.find("layer_norm") != name.npos || name.find("batch_norm") != name.npos ||
         name.find("rms_norm") != name.npos || name.find("scaled_dot_product") != name.npos;
}

template <class Visit>
void for_each_tensor(const Pt2Arg& arg, const Visit& visit) {
  if (arg.kind == ArgKind::Tensor) visit(arg);
  for (const Pt2Arg& item : arg.items) for_each_tensor(item, visit);
}
template <class Visit>
void for_each_tensor(Pt2Arg& arg, const Visit& visit) {
  if (arg.kind == ArgKind::Tensor) visit(arg);
  for (Pt2Arg& item : arg.items) for_each_tensor(item, visit);
}

std::vector<const Pt2Arg*> flat(const std::vector<Pt2Arg>& args) {
  std::vector<const Pt2Arg*> out;
  for (const Pt2Arg& arg : args) {
    if (arg.kind != ArgKind::List) out.push_back(&arg);
    for (const Pt2Arg& item : arg.items) out.push_back(&item);
  }
  return out;
}

class Precision {
 public:
  Precision(Pt2Program& program, DType low, DType wide) : program_(program), low_(low), wide_(wide) {}

  void run(const Types& given, std::vector<std::string>* casts) {
    for (Pt2Graph& graph : program_.graphs) untangle(graph);
    types_.resize(program_.graphs.size());
    for (std::size_t g = 0; g < program_.graphs.size(); ++g) {
      find_uses(program_.graphs[g], uses_.emplace_back());
      for (const auto& [name, tensor] : program_.graphs[g].tensors)
        if (is_floating(tensor.dtype)) types_[g][name] = low_;  // until it is known
    }
    for (int pass = 0; pass < kPasses; ++pass) {
      for (const auto& [name, type] : given) types_[0][name] = type;
      infer(0, 0);
    }
    for (std::size_t g = 0; g < program_.graphs.size(); ++g) rewrite(g, casts);
  }

 private:
  using Uses = std::unordered_map<std::string, std::vector<const Pt2Node*>>;

  /// True if an operator with stack `user` runs inside the call in which one with stack `outer` runs.
  bool inside(std::int32_t user, std::int32_t outer) const {
    if (user < 0 || outer < 0) return user == outer;
    const auto& frames = program_.stacks[static_cast<std::size_t>(user)];
    const auto& around = program_.stacks[static_cast<std::size_t>(outer)];
    if (around.empty()) return true;
    return std::any_of(frames.begin(), frames.end(), [&](const Pt2Frame& frame) {
      return frame.path == around.back().path && frame.call == around.back().call;
    });
  }

  /// A cast that changes nothing hands its operand back, and the export then calls both by the cast's name. Who uses it
  /// outside the module that casts, and knew the operand before, means the operand (the residual beside a norm).
  void untangle(Pt2Graph& graph) {
    struct Same {
      std::string operand;
      std::int32_t stack = -1;
      bool elsewhere = true;  // the operand was not made where it is cast
    };
    std::unordered_map<std::string, Same> same;
    std::unordered_map<std::string, std::int32_t> made_in;
    for (Pt2Node& node : graph.nodes) {
      for (Pt2Input& input : node.inputs) {
        // y.type_as(x) asks for what x was before a cast of it: the way back from it
        const bool back = is_way_back(base_name(node.target)) && input.name == "other";
        for_each_tensor(input.arg, [&](Pt2Arg& arg) {
          for (auto at = same.find(arg.text);
               at != same.end() && (back || (at->second.elsewhere && !inside(node.stack, at->second.stack)));
               at = same.find(arg.text))
            arg.text = at->second.operand;
        });
      }
      const bool cast = is_cast(base_name(node.target)) && !node.inputs.empty() && node.outputs.size() == 1 &&
                        node.inputs[0].arg.kind == ArgKind::Tensor && node.outputs[0].kind == ArgKind::Tensor;
      if (cast) {
        const std::string& operand = node.inputs[0].arg.text;
        const Pt2Tensor* from = recorded(graph, operand);
        const Pt2Tensor* to = recorded(graph, node.outputs[0].text);
        const auto maker = made_in.find(operand);
        const bool elsewhere = maker == made_in.end() || !inside(maker->second, node.stack);
        if (from != nullptr && to != nullptr && from->dtype == wide_ && to->dtype == wide_)
          same.emplace(node.outputs[0].text, Same{operand, node.stack, elsewhere});
      }
      for (const Pt2Arg* out : flat(node.outputs)) made_in.emplace(out->text, node.stack);
    }
  }

  static void find_uses(const Pt2Graph& graph, Uses& uses) {
    for (const Pt2Node& node : graph.nodes)
      for (const Pt2Input& input : node.inputs)
        for_each_tensor(input.arg, [&](const Pt2Arg& arg) { uses[arg.text].push_back(&node); });
  }

  const Pt2Tensor* recorded(const Pt2Graph& graph, const std::string& name) const {
    const auto at = graph.tensors.find(name);
    return at == graph.tensors.end() || !is_floating(at->second.dtype) ? nullptr : &at->second;
  }

  void infer(std::size_t g, int depth) {
    const Pt2Graph& graph = program_.graphs[g];
    for (const Pt2Node& node : graph.nodes) {
      if (depth < 16 && infer_region(g, node, depth)) continue;
      infer_node(g, node);
    }
  }

  /// Regions of no_grad and autocast: their graph takes the operands' dtypes and gives its own.
  bool infer_region(std::size_t g, const Pt2Node& node, int depth) {
    for (std::size_t i = 0; i < node.inputs.size(); ++i) {
      if (node.inputs[i].arg.kind != ArgKind::Graph) continue;
      const auto inner = static_cast<std::size_t>(node.inputs[i].arg.integer);
      const Pt2Graph& graph = program_.graphs[inner];
      if (graph.inputs.size() != node.inputs.size() - i - 1) return false;
      for (std::size_t k = 0; k < graph.inputs.size(); ++k) {
        const auto outer = types_[g].find(node.inputs[i + 1 + k].arg.text);
        if (outer != types_[g].end() && recorded(graph, graph.inputs[k].text) != nullptr)
          types_[inner][graph.inputs[k].text] = outer->second;
      }
      infer(inner, depth + 1);
      const auto outs = flat(node.outputs);
      for (std::size_t k = 0; k < outs.size() && k < graph.outputs.size(); ++k) {
        const auto made = types_[inner].find(graph.outputs[k].text);
        if (made != types_[inner].end()) types_[g][outs[k]->text] = made->second;
        leaves_[inner][graph.outputs[k].text] = {g, outs[k]->text};
      }
      return true;
    }
    return false;
  }

  void infer_node(std::size_t g, const Pt2Node& node) {
    const Pt2Graph& graph = program_.graphs[g];
    Types& types = types_[g];
    const std::string_view name = base_name(node.target);
    bool any = false, mixed = false;
    DType was = low_, is = low_, first = low_;
    for (const Pt2Input& input : node.inputs) {
      for_each_tensor(input.arg, [&](const Pt2Arg& arg) {
        const Pt2Tensor* tensor = recorded(graph, arg.text);
        if (tensor == nullptr) return;
        const DType type = types.at(arg.text);
        // A tensor without dimensions does not widen one that has some.
        const bool scalar = tensor->sizes.empty() && any && name != "cat";
        if (!any) first = type;
        was = any ? (scalar ? was : promote(was, tensor->dtype)) : tensor->dtype;
        mixed = mixed || (any && type != is);
        is = any ? (scalar ? is : promote(is, type)) : type;
        any = true;
      });
    }
    const Pt2Arg* asked = nullptr;
    for (const Pt2Input& input : node.inputs)
      if (input.name == "dtype" && input.arg.kind == ArgKind::DType) asked = &input.arg;
    const bool in_place = !name.empty() && name.back() == '_' && !name.ends_with("__");
    std::size_t position = 0;
    for (const Pt2Arg* out : flat(node.outputs)) {
      const std::size_t at = position++;
      const Pt2Tensor* tensor = out->kind == ArgKind::Tensor ? recorded(graph, out->text) : nullptr;
      if (tensor == nullptr) continue;
      DType type = tensor->dtype;
      if (!any) {
        // made from numbers: as written
      } else if (in_place) {
        type = first;
      } else if (is_way_back(name) && node.inputs.size() > 1 && types.find(node.inputs[1].arg.text) != types.end()) {
        type = types.at(node.inputs[1].arg.text);
      } else if (asked != nullptr) {
        type = static_cast<DType>(asked->integer);
        if (is_cast(name) && type == wide_ && was == wide_) type = cast_of(g, out->text, first);
      } else if (is_strict(name) && at == 0) {
        type = mixed ? low_ : is;
      } else if (at > 0 && keeps_statistics(name)) {
        // as recorded
      } else if (tensor->dtype == was) {
        type = is;
      }
      types[out->text] = type;
    }
  }

  /// A cast that changed nothing in the archive: a widening of a low tensor, unless a product takes it; the way back of
  /// a wide one, if it meets low tensors.
  DType cast_of(std::size_t g, const std::string& result, DType from) const {
    if (from == low_) return meets(g, result, true, 0) ? low_ : wide_;
    return meets(g, result, false, 0) ? low_ : wide_;
  }

  bool meets(std::size_t g, const std::string& name, bool products_only, int depth) const {
    if (depth > kDeepestLook) return false;
    if (const auto region = leaves_.find(g); region != leaves_.end()) {
      const auto outside = region->second.find(name);
      if (outside != region->second.end() &&
          meets(outside->second.graph, outside->second.name, products_only, depth + 1))
        return true;
    }
    const auto used = uses_[g].find(name);
    if (used == uses_[g].end()) return false;
    for (const Pt2Node* user : used->second) {
      const std::string_view op = base_name(user->target);
      if (is_product(op)) return true;
      if (is_viewing(op)) {
        for (const Pt2Arg* out : flat(user->outputs))
          if (meets(g, out->text, products_only, depth + 1)) return true;
        continue;
      }
      if (products_only || is_cast(op)) continue;
      bool other_low = false;
      for (const Pt2Input& input : user->inputs) {
        for_each_tensor(input.arg, [&](const Pt2Arg& arg) {
          if (arg.text == name || recorded(program_.graphs[g], arg.text) == nullptr) return;
          other_low = other_low || types_[g].at(arg.text) == low_;
        });
      }
      if (other_low) return true;
    }
    return false;
  }

  void rewrite(std::size_t g, std::vector<std::string>* casts) {
    Pt2Graph& graph = program_.graphs[g];
    std::vector<Pt2Node> nodes;
    nodes.reserve(graph.nodes.size());
    for (Pt2Node& node : graph.nodes) {
      const std::string_view name = base_name(node.target);
      if (is_strict(name)) cast_operands(g, node, nodes, casts);
      if (is_cast(name)) {
        for (Pt2Input& input : node.inputs)
          if (input.name == "dtype" && input.arg.kind == ArgKind::DType && !node.outputs.empty())
            if (const auto type = types_[g].find(node.outputs[0].text); type != types_[g].end())
              input.arg.integer = static_cast<std::int64_t>(type->second);
      }
      nodes.push_back(std::move(node));
    }
    graph.nodes = std::move(nodes);
    for (auto& [name, tensor] : graph.tensors)
      if (const auto type = types_[g].find(name); type != types_[g].end()) tensor.dtype = type->second;
  }

  void cast_operands(std::size_t g, Pt2Node& node, std::vector<Pt2Node>& nodes, std::vector<std::string>* casts) {
    Pt2Graph& graph = program_.graphs[g];
    bool low = false, high = false;
    const auto floating = [&](const Pt2Arg& arg) { return types_[g].find(arg.text) != types_[g].end(); };
    for (const Pt2Input& input : node.inputs) {
      for_each_tensor(input.arg, [&](const Pt2Arg& arg) {
        if (!floating(arg)) return;
        (types_[g].at(arg.text) == low_ ? low : high) = true;
      });
    }
    if (!low || !high) return;
    if (casts != nullptr) casts->push_back(node.name);
    for (Pt2Input& input : node.inputs) {
      for_each_tensor(input.arg, [&](Pt2Arg& arg) {
        if (!floating(arg) || types_[g].at(arg.text) == low_) return;
        Pt2Node cast;
        cast.name = arg.text + "_in_" + node.name;
        cast.target = "torch.ops.aten.to.dtype";
        cast.stack = node.stack;
        Pt2Arg dtype;
        dtype.kind = ArgKind::DType;
        dtype.integer = static_cast<std::int64_t>(low_);
        cast.inputs = {{"self", arg, false}, {"dtype", dtype, false}};
        Pt2Tensor tensor = graph.tensors.at(arg.text);
        types_[g][cast.name] = low_;
        const bool fresh = graph.tensors.emplace(cast.name, std::move(tensor)).second;  // q, k and v may be one tensor
        arg.text = cast.name;
        cast.outputs = {arg};
        if (fresh) nodes.push_back(std::move(cast));
      });
    }
  }

  Pt2Program& program_;
  DType low_, wide_;
  std::vector<Types> types_;  // per graph
  std::vector<Uses> uses_;
  struct Place {
    std::size_t graph = 0;
    std::string name;
  };
  std::map<std::size_t, std::map<std::string, Place>> leaves_;  // results of a region, by its graph, as known outside
};

}  // namespace

Pt2Program with_mixed_precision(const Pt2Program& program, DType low, std::optional<DType> buffer,
                                std::vector<std::string>* casts) {
  Pt2Program out = program;
  const Pt2Graph& root = out.graphs[0];
  Types given;
  std::optional<DType> wide;
  for (const Pt2InputSpec& spec : out.inputs) {
    const auto tensor = root.tensors.find(spec.arg);
    if (tensor == root.tensors.end() || !is_floating(tensor->second.dtype)) continue;
    const bool param = spec.kind == Pt2InputSpec::Kind::Parameter;
    if ((param || spec.kind == Pt2InputSpec::Kind::User) && !is_complex(tensor->second.dtype)) {
      given[spec.arg] = low;
    } else {
      given[spec.arg] = spec.kind == Pt2InputSpec::Kind::Buffer && !is_complex(tensor->second.dtype)
                            ? buffer.value_or(tensor->second.dtype)
                            : tensor->second.dtype;
    }
    if (param && tensor->second.dtype != low && !wide) wide = tensor->second.dtype;
  }
  if (!wide) return out;
  Precision(out, low, *wide).run(given, casts);
  return out;
}

}  // namespace foreshard
