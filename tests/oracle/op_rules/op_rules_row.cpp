#include "tests/oracle/op_rules/op_rules_row.h"

#include <algorithm>
#include <set>

#include "core/lowering/lowering_fold.h"

namespace foreshard::oracle {
namespace {

using lowering::Layout;
using lowering::Machine;
using lowering::TracedKernel;
using lowering::TracedTensor;

std::string numbered(const char* key, std::size_t i) { return std::string(key) + "[" + std::to_string(i) + "]"; }

std::string sizes_text(const lowering::Dims& dims) {
  std::string text = "[";
  for (std::int32_t i = 0; i < dims.n; ++i) text += (i > 0 ? "," : "") + std::to_string(dims[i]);
  return text + "]";
}

/// `["x0",[2,8],"fp32"]`, spelled as a row spells it.
std::string tensor_text(const std::string& label, const Layout& layout) {
  return label + " " + sizes_text(layout.sizes) + " " + std::string(dtype_short_name(layout.dtype));
}

std::string tensor_text(const Json& tensor) {
  const lowering::Dims sizes = lowering::dims_of(tensor[1].get<Shape>());
  return tensor[0].get<std::string>() + " " + sizes_text(sizes) + " " +
         std::string(dtype_short_name(recorded_dtype(tensor[2])));
}

void same(const std::string& place, const std::string& expected, const std::string& got) {
  if (expected != got) throw RowDiffers(place, expected, got);
}

void same(const std::string& place, std::int64_t expected, std::int64_t got) {
  same(place, std::to_string(expected), std::to_string(got));
}

/// Memory that is asked for but not written: no kernel.
bool only_allocates(const std::string& name) {
  for (const char* start : {"aten.empty", "aten.new_empty"})
    if (name.starts_with(start)) return true;
  return false;
}

/// A recorded kernel that does something: it makes a storage, or writes into one.
bool computes(const Json& kernel) {
  const std::string name = kernel["op"];
  return !only_allocates(name) && (!kernel["allocates"].empty() || writes_in_place(name));
}

std::string without_default(std::string name) {
  const std::string tail = ".default";
  if (name.size() > tail.size() && name.ends_with(tail)) name.resize(name.size() - tail.size());
  return name;
}

/// "aten.index_add_" -> "aten.index_add": the recorder's mode keeps backward from writing in place, here and there.
std::string out_of_place(std::string name) {
  if (!writes_in_place(name)) return name;
  const std::size_t overload = name.find('.', name.find('.') + 1);
  name.erase((overload == std::string::npos ? name.size() : overload) - 1, 1);
  return name;
}

/// A row and the machine that has run its program.
class Comparison {
 public:
  Comparison(const Json& row, Reading reading)
      : row_(row),
        program_(row, reading),
        fold_(lowering::unfolded(program_.model(), {{0, static_cast<std::int32_t>(program_.model().ops.size())}})),
        trainable_(trainable(program_.model())),
        machine_(program_.model(), fold_.program, trainable_, options_of(row)) {
    for (std::size_t i = 0; i < program_.inputs().size(); ++i) machine_.set_param(ParamId(i), program_.inputs()[i]);
    machine_.trace_into(trace_);
  }

  const std::vector<std::size_t>& decisions() const { return program_.decisions(); }

  void run() {
    machine_.forward();
    if (!machine_.unknown_ops.empty()) throw RowDiffers("forward", machine_.unknown_ops.front(), "no rule");
    if (machine_.outputs().size() != program_.model().values.size())
      throw RowDiffers("forward", std::to_string(program_.model().values.size()) + " tensors",
                       std::to_string(machine_.outputs().size()));
    name_storages();
    compare_outputs();
    compare_debug_masks();
    compare_saved();
    compare_saved_bytes();
    compare_nodes();
    run_backward();
    compare_backward();
    compare_gradients();
    compare_flops();
  }

 private:
  static std::vector<bool> trainable(const Model& model) {
    std::vector<bool> all;
    for (const ParamInfo& param : model.params) all.push_back(param.requires_grad);
    return all;
  }

  static LoweringOptions options_of(const Json& row) {
    LoweringOptions options;
    options.hold_outputs = true;
    options.cpu_threads = row["device"] == "cpu" ? 1 : 0;
    return options;
  }

  std::int32_t storage(const lowering::Ref& ref) { return machine_.tape.at(ref).storage; }

  /// Every label is one storage, and no storage has two.
  void name_storages() {
    for (std::size_t i = 0; i < program_.inputs().size(); ++i)
      give(storage(machine_.param(ParamId(i))), "x" + std::to_string(i), "inputs");
    for (std::size_t i = 0; i < program_.labels().size(); ++i)
      give(storage(machine_.outputs()[i]), program_.labels()[i], program_.places()[i]);
  }

  void give(std::int32_t storage, const std::string& label, const std::string& place) {
    if (label == "const") return;
    const auto [at, added] = label_of_.emplace(storage, label);
    if (!added) same(place + " shares the storage", label, at->second);
    const auto [back, first] = storage_of_.emplace(label, storage);
    if (!first && back->second != storage) throw RowDiffers(place + " shares the storage", label, "a new storage");
  }

  std::string label(std::int32_t storage) const {
    const auto at = label_of_.find(storage);
    return at == label_of_.end() ? "?" : at->second;
  }

  lowering::Ref result(std::size_t i) {
    const Arg& arg = program_.results()[i];
    if (const auto* value = std::get_if<ValueRef>(&arg.value)) return machine_.outputs()[value->id.index()];
    return machine_.param(std::get<ParamRef>(arg.value).id);
  }

  void compare_outputs() {
    for (std::size_t i = 0; i < row_["outputs"].size(); ++i) {
      const Json& output = row_["outputs"][i];
      const std::string place = numbered("outputs", i);
      const lowering::Ref ref = result(i);
      const lowering::Tensor& tensor = machine_.tape.at(ref);
      same(place + ".requires_grad", output["requires_grad"].dump(), tensor.requires_grad ? "true" : "false");
      compare_strides(place + ".stride", output["stride"], tensor.layout);
      const std::string made = label(tensor.storage);
      same(place + ".alias_of_input", output["alias_of_input"].dump(),
           made.starts_with("x") ? Json(made).dump() : "null");
    }
  }

  /// The last result of flash attention is for debugging, and read by nobody: empty, in the queries' type.
  void compare_debug_masks() const {
    constexpr std::size_t kMask = 4;
    for (std::size_t i = 0; i < row_["forward"].size(); ++i) {
      const Json& kernel = row_["forward"][i];
      if (kernel["op"] != "aten._scaled_dot_product_flash_attention") continue;
      same(numbered("forward", i) + " results", kMask + 1, kernel["out"].size());
      const Json& mask = kernel["out"][kMask];
      same(numbered("forward", i) + ".out[4]", tensor_text(mask),
           tensor_text(Json::array({mask[0], Shape{0}, kernel["in"][0][2]})));
    }
  }

  static void compare_strides(const std::string& place, const Json& recorded, const Layout& layout) {
    const lowering::Dims strides = lowering::dims_of(recorded.get<Shape>());
    bool equal = strides.n == layout.sizes.n;
    for (std::int32_t i = 0; equal && i < strides.n; ++i)
      equal = layout.sizes[i] == 1 || layout.numel() == 0 || strides[i] == layout.strides[i];
    if (!equal) throw RowDiffers(place, sizes_text(strides), sizes_text(layout.strides));
  }

  void compare_saved() {
    const Json& saved = row_["saved"];
    std::vector<std::string> ours;
    std::size_t copies = 0;
    for (const Machine::Kept& kept : machine_.kept()) {
      if (!label_of_.contains(kept.storage) && copies < program_.own_copies().size())
        give(kept.storage, program_.own_copies()[copies++], "saved");
      ours.push_back(tensor_text(label(kept.storage), kept.layout));
    }
    for (std::size_t i = 0; i < std::max(saved.size(), ours.size()); ++i)
      same(numbered("saved", i), i < saved.size() ? tensor_text(saved[i]) : "nothing",
           i < ours.size() ? ours[i] : "nothing");
  }

  void compare_saved_bytes() {
    std::set<std::string> results;
    for (const Json& output : row_["outputs"]) results.insert(output["label"].get<std::string>());
    Bytes inputs = 0, outputs = 0, intermediates = 0;
    std::set<std::int32_t> counted;
    for (const Machine::Kept& kept : machine_.kept()) {
      if (!counted.insert(kept.storage).second) continue;
      const std::string name = label(kept.storage);
      (name.starts_with("x") ? inputs : results.contains(name) ? outputs : intermediates) += kept.bytes;
    }
    const Json& saved = row_["saved_bytes"];
    same("saved_bytes.inputs", saved["inputs"].get<Bytes>(), inputs);
    same("saved_bytes.outputs", saved["outputs"].get<Bytes>(), outputs);
    same("saved_bytes.intermediates", saved["intermediates"].get<Bytes>(), intermediates);
  }

  /// The nodes hold what was saved, no more and no less.
  void compare_nodes() {
    std::multiset<std::string> held, saved;
    for (const Json& node : row_["nodes"])
      for (const Json& one : node["saved"])
        if (!one[1].is_null())  // a number
          held.insert(tensor_text(Json::array({one[1], one[2], one[3]})));
    for (const Machine::Kept& kept : machine_.kept()) saved.insert(tensor_text(label(kept.storage), kept.layout));
    const auto text = [](const std::multiset<std::string>& all) {
      std::string made;
      for (const std::string& one : all) made += (made.empty() ? "" : "; ") + one;
      return made;
    };
    same("nodes", text(held), text(saved));
  }

  void run_backward() {
    std::vector<lowering::Ref> roots, gradients;
    for (std::size_t i = 0; i < row_["outputs"].size(); ++i) {
      const lowering::Ref ref = result(i);
      if (!machine_.tape.at(ref).requires_grad) continue;
      const Layout& layout = machine_.tape.layout(ref);
      gradients.push_back(machine_.tape.external(lowering::contiguous_layout(layout.sizes, layout.dtype)));
      give(storage(gradients.back()), "g" + std::to_string(roots.size()), numbered("outputs", i));
      roots.push_back(ref);
    }
    if (!roots.empty()) machine_.backward_from(roots, gradients);
  }

  void compare_backward() {
    std::vector<const TracedKernel*> ours;
    for (const TracedKernel& kernel : trace_.kernels)
      if (kernel.pass == lowering::PassKind::Backward && !only_allocates(name_of(kernel))) ours.push_back(&kernel);
    leave_out_inner_copies(ours);
    note_forward();
    std::size_t next = 0;
    for (std::size_t i = 0; i < row_["backward"].size(); ++i) {
      const Json& kernel = row_["backward"][i];
      check_recorded_kernel(kernel, numbered("backward", i));
      note_tensors(i);
      if (!computes(kernel)) continue;
      if (next == ours.size()) throw RowDiffers(numbered("backward", i), kernel["op"], "no kernel");
      compare_kernel(numbered("backward", i), kernel, *ours[next++]);
    }
    if (next < ours.size()) throw RowDiffers("backward", "no further kernel", name_of(*ours[next]));
  }

  /// What attention's kernel lays out anew for itself runs inside of it on a card; the rows were recorded on tensors
  /// without memory, for which nobody looks inside. It is handed the tensors as they were all the same.
  void leave_out_inner_copies(std::vector<const TracedKernel*>& ours) const {
    const auto is_attention = [&](const TracedKernel* kernel) {
      const std::string name = name_of(*kernel);
      return name.starts_with("aten._scaled_dot_product_") && name.ends_with("_backward");
    };
    const auto attention = std::find_if(ours.begin(), ours.end(), is_attention);
    if (attention == ours.end()) return;
    const auto are_taken = [&](const std::vector<TracedTensor>& tensors) {
      return std::any_of(tensors.begin(), tensors.end(), [&](const TracedTensor& one) {
        return std::any_of((*attention)->in.begin(), (*attention)->in.end(),
                           [&](const TracedTensor& taken) { return taken.storage == one.storage; });
      });
    };
    const auto is_inner = [&](const TracedKernel* kernel) {
      return name_of(*kernel) == "aten.clone" && are_taken(kernel->in) && !are_taken(kernel->out);
    };
    ours.erase(std::remove_if(ours.begin(), attention, is_inner), attention);
  }

  /// What is there when backward begins.
  void note_forward() {
    const auto add = [&](const Json& label, const Json& shape, const Json& dtype) {
      there_.insert(tensor_text(Json::array({label, shape, dtype})));
    };
    std::size_t gradient = 0;
    for (const Json& input : row_["inputs"]) add(input["label"], input["shape"], input["dtype"]);
    for (const Json& kernel : row_["forward"])
      for (const Json& out : kernel["out"]) add(out[0], out[1], out[2]);
    for (const Json& output : row_["outputs"])
      if (output["requires_grad"].get<bool>()) add("g" + std::to_string(gradient++), output["shape"], output["dtype"]);
  }

  /// What a kernel takes was there before, just so, and who looks at a tensor uses what it sees.
  void note_tensors(std::size_t index) {
    const Json& kernel = row_["backward"][index];
    for (std::size_t i = 0; i < kernel["in"].size(); ++i)
      if (kernel["in"][i][0] != "const" && !there_.contains(tensor_text(kernel["in"][i])))
        throw RowDiffers(numbered("backward", index) + "." + numbered("in", i), "a tensor that was made before",
                         tensor_text(kernel["in"][i]));
    for (const Json& out : kernel["out"]) {
      there_.insert(tensor_text(out));
      if (!computes(kernel) && kernel["allocates"].empty() && !is_used(out, index))
        throw RowDiffers(numbered("backward", index) + ".out", "a view that is used", tensor_text(out));
    }
  }

  bool is_used(const Json& tensor, std::size_t after) const {
    for (std::size_t i = after + 1; i < row_["backward"].size(); ++i)
      for (const Json& in : row_["backward"][i]["in"])
        if (in == tensor) return true;
    for (const Json& gradient : row_["gradients"])
      if (gradient["is"] == tensor) return true;
    // Formulas open with views that they may not need, and a concatenation's gives a slice for every part.
    if (row_["backward"][after]["op"] == "aten.unsqueeze") return true;
    return row_["backward"].size() > 1 && std::none_of(row_["backward"].begin(), row_["backward"].end(), computes);
  }

  std::string name_of(const TracedKernel& kernel) const {
    return without_default(machine_.names[static_cast<std::size_t>(kernel.name)]);
  }

  void compare_kernel(const std::string& place, const Json& recorded, const TracedKernel& ours) {
    const std::string name = recorded["op"], got = name_of(ours);
    const bool copied = name != got;  // the recording made a new tensor where autograd writes into its own
    same(place, name, copied ? out_of_place(got) : got);
    compare_tensors(place + ".in", recorded["in"], ours.in, false);
    compare_tensors(place + ".out", recorded["out"], ours.out, copied);
    std::set<std::string> fresh;
    for (const Json& out : recorded["out"])
      if (std::none_of(recorded["in"].begin(), recorded["in"].end(), [&](const Json& in) { return in[0] == out[0]; }))
        fresh.insert(out[0].get<std::string>());
    same(place + ".allocates", Json(fresh).dump(), Json(recorded["allocates"].get<std::set<std::string>>()).dump());
  }

  void compare_tensors(const std::string& place, const Json& recorded, const std::vector<TracedTensor>& ours,
                       bool renamed) {
    for (std::size_t i = 0; i < std::max(recorded.size(), ours.size()); ++i) {
      const std::string at = place + "[" + std::to_string(i) + "]";
      if (i >= recorded.size() || i >= ours.size()) {
        std::string all;
        for (const TracedTensor& one : ours) all += " " + tensor_text(label(one.storage), one.layout);
        throw RowDiffers(at, i < recorded.size() ? tensor_text(recorded[i]) : "nothing",
                         i < ours.size() ? tensor_text(label(ours[i].storage), ours[i].layout) : "nothing of" + all);
      }
      const std::string stated = recorded[i][0];
      if (renamed || (stated.starts_with("b") && !storage_of_.contains(stated))) {
        storage_of_[stated] = ours[i].storage;
        label_of_[ours[i].storage] = stated;
      }
      same(at, tensor_text(recorded[i]), tensor_text(label(ours[i].storage), ours[i].layout));
    }
  }

  void compare_gradients() {
    std::size_t wanted = 0;
    for (const Json& gradient : row_["gradients"]) {
      const std::string of = gradient["of"];
      const std::string place = "gradients[" + of + "]";
      const auto id = ParamId(static_cast<std::int32_t>(std::stoi(of.substr(1))));
      const auto at = std::find_if(trace_.gradients.begin(), trace_.gradients.end(),
                                   [&](const auto& made) { return made.first == id; });
      ++wanted;
      if (gradient["is"].is_null()) {
        same(place, "none", at == trace_.gradients.end() ? "none" : "a gradient");
        continue;
      }
      if (at == trace_.gradients.end()) throw RowDiffers(place, tensor_text(gradient["is"]), "none");
      same(place, tensor_text(gradient["is"]), tensor_text(label(at->second.storage), at->second.layout));
      compare_strides(place + ".stride", gradient["stride"], at->second.layout);
    }
    const bool differentiable = std::any_of(row_["outputs"].begin(), row_["outputs"].end(),
                                            [](const Json& output) { return output["requires_grad"].get<bool>(); });
    same("gradients",
         static_cast<std::int64_t>(differentiable ? std::count(trainable_.begin(), trainable_.end(), true) : 0),
         static_cast<std::int64_t>(wanted));
  }

  /// PyTorch's counter does not know attention on a CPU, products in groups or in place, nor triangular systems.
  bool counted(const Kernel& kernel) const {
    if (kernel.op < 0) return true;
    const std::string name = without_default(machine_.names[static_cast<std::size_t>(kernel.op)]);
    return name.find("_for_cpu") == std::string::npos && name != "aten.addmm_" && name != "aten.baddbmm_" &&
           name != "aten._grouped_mm" && name != "aten.linalg_solve_triangular";
  }

  void compare_flops() {
    Flops forward = 0, backward = 0;
    for (const lowering::RawInstance& instance : machine_.tape.instances()) {
      for (const Kernel& kernel : instance.passes[0].kernels) forward += counted(kernel) ? kernel.flops : 0;
      for (const Kernel& kernel : instance.passes[2].kernels) backward += counted(kernel) ? kernel.flops : 0;
    }
    if (row_["flops_forward"].is_number()) same("flops_forward", row_["flops_forward"].get<Flops>(), forward);
    if (row_["flops_backward"].is_number()) same("flops_backward", row_["flops_backward"].get<Flops>(), backward);
  }

  const Json& row_;
  OpRulesProgram program_;
  lowering::Fold fold_;
  std::vector<bool> trainable_;
  Machine machine_;
  lowering::Trace trace_;
  std::map<std::int32_t, std::string> label_of_;
  std::map<std::string, std::int32_t> storage_of_;
  std::set<std::string> there_;  // tensors that backward has made so far
};

}  // namespace

RowResult compare_op_rules_row(const Json& row) {
  RowResult result;
  std::vector<std::size_t> decisions;
  const auto fits = [&](Reading reading, bool first) {
    try {
      Comparison comparison(row, reading);
      decisions = comparison.decisions();
      comparison.run();
      result = {};
      return true;
    } catch (const RowDiffers& differs) {
      if (!first) return false;  // how the plain reading differs is told
      result = {{}, Verdict::Fail, differs.place, differs.expected, differs.got, {}};
      return false;
    }
  };
  if (fits({}, true)) return result;
  const std::vector<std::size_t> could_be = decisions;
  for (std::size_t decision = 0; decision < could_be.size(); ++decision)
    for (std::size_t choice = 1; choice < could_be[decision]; ++choice)
      if (fits({decision, choice}, false)) return result;
  return result;
}

}  // namespace foreshard::oracle
