#include <algorithm>
#include <limits>
#include <set>

#include "tests/oracle/op_rules/op_rules_row.h"

namespace foreshard::oracle {
namespace {

/// The scalar arguments that the row states, under their names.
std::vector<NamedArg> stated(const Json& args) {
  std::vector<NamedArg> named;
  for (const auto& [key, value] : args.items()) {
    const std::string name = key == "p" || key == "ord" ? "p" : key;
    if (key == "reduction" && value.is_string()) {
      const std::string how = value;
      named.push_back({name, Arg{std::int64_t{how == "none" ? 0 : how == "sum" ? 2 : 1}}});
    } else if (value.is_boolean()) {
      named.push_back({name, Arg{value.get<bool>()}});
    } else if (value.is_number_integer()) {
      named.push_back({name, Arg{value.get<std::int64_t>()}});
    } else if (value.is_number()) {
      named.push_back({name, Arg{value.get<double>()}});
    } else if (value.is_string()) {
      named.push_back({name, Arg{value.get<std::string>()}});
    } else if (value.is_array()) {
      ArgList list;
      for (const Json& item : value)
        if (item.is_number_integer()) list.push_back({item.get<std::int64_t>()});
      named.push_back({name, Arg{list}});
    }
    if ((key == "ord" || key == "p") && !named.empty()) named.push_back({"ord", named.back().arg});
  }
  return named;
}

std::int64_t first_difference(const Shape& a, const Shape& b) {
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i)
    if (a[i] != b[i]) return static_cast<std::int64_t>(i);
  return static_cast<std::int64_t>(std::min(a.size(), b.size()));
}

/// Which dimensions a reduction took: those that the row names if they lead to the result, else what shapes say.
ArgList reduced(const Op& op, const Shape& in, const Shape& out) {
  for (const NamedArg& named : op.kwargs) {
    if (named.name != "dim") continue;
    std::vector<bool> taken(in.size(), false);
    ArgList dims;
    if (const auto* one = std::get_if<std::int64_t>(&named.arg.value)) dims.push_back({*one});
    if (const auto* list = std::get_if<ArgList>(&named.arg.value)) dims = *list;
    for (const Arg& dim : dims) {
      const auto n = static_cast<std::int64_t>(in.size());
      const auto at = std::get<std::int64_t>(dim.value);
      if (at >= -n && at < n) taken[static_cast<std::size_t>(at < 0 ? at + n : at)] = true;
    }
    Shape kept, ones;
    for (std::size_t i = 0; i < in.size(); ++i) {
      if (!taken[i]) kept.push_back(in[i]);
      ones.push_back(taken[i] ? 1 : in[i]);
    }
    if (!dims.empty() && (kept == out || ones == out)) return dims;
  }
  ArgList dims;
  if (in.size() == out.size()) {
    for (std::size_t i = 0; i < in.size(); ++i)
      if (in[i] != out[i]) dims.push_back({static_cast<std::int64_t>(i)});
    if (dims.empty() && !in.empty() && in.back() == 1) dims.push_back({static_cast<std::int64_t>(in.size()) - 1});
  } else if (!out.empty()) {
    std::size_t at = 0;
    for (std::size_t i = 0; i < in.size(); ++i) {
      if (at < out.size() && in[i] == out[at])
        ++at;
      else
        dims.push_back({static_cast<std::int64_t>(i)});
    }
  }
  return dims;
}

bool one_of(const std::string& name, std::initializer_list<const char*> names) {
  return std::any_of(names.begin(), names.end(), [&](const char* one) { return name == one; });
}

ArgList transposed(const Shape& in, const Shape& out) {
  const auto n = static_cast<std::int64_t>(in.size());
  if (in == out && n >= 2) {  // as good as any two of one size: those that attention exchanges
    std::int64_t one = n - 2, two = n - 1;
    for (std::int64_t a = n - 1; a >= 0 && in[static_cast<std::size_t>(one)] != in[static_cast<std::size_t>(two)]; --a)
      for (std::int64_t b = n - 1; b > a; --b)
        if (in[static_cast<std::size_t>(a)] == in[static_cast<std::size_t>(b)]) one = a, two = b;
    return {{one}, {two}};
  }
  std::int64_t last = n - 1;
  while (last > 0 && in[static_cast<std::size_t>(last)] == out[static_cast<std::size_t>(last)]) --last;
  return {{std::min(first_difference(in, out), n - 1)}, {last}};
}

ArgList permuted(const Shape& in, const Shape& out) {
  ArgList dims;
  std::vector<bool> taken(in.size(), false);
  for (const std::int64_t size : out)
    for (std::size_t i = 0; i < in.size(); ++i)
      if (!taken[i] && in[i] == size) {
        taken[i] = true;
        dims.push_back({static_cast<std::int64_t>(i)});
        break;
      }
  return dims;
}

double stated_order(const Op& op) {
  double order = 2.0;
  for (const NamedArg& named : op.kwargs) {
    if (named.name != "ord") continue;
    if (const auto* number = std::get_if<double>(&named.arg.value)) order = *number;
    if (const auto* number = std::get_if<std::int64_t>(&named.arg.value)) order = static_cast<double>(*number);
    if (const auto* text = std::get_if<std::string>(&named.arg.value);
        text != nullptr && text->find("inf") != std::string::npos)
      order = std::numeric_limits<double>::infinity();
  }
  return order;
}

/// Positional constants after the tensors, as far as shapes tell them.
void infer_constants(Op& op, const std::vector<Shape>& inputs, const Shape& out) {
  const Shape& in = inputs[0];
  const auto n = static_cast<std::int64_t>(in.size());
  const std::string& name = op.name;
  if (name == "aten.transpose.int") {
    for (Arg& dim : transposed(in, out)) op.args.push_back(std::move(dim));
  } else if (name == "aten.permute.default") {
    op.args.push_back({permuted(in, out)});
  } else if (name == "aten.unsqueeze.default") {
    op.args.push_back({std::min(first_difference(in, out), n)});
  } else if (one_of(name, {"aten.select.int", "aten.slice.Tensor", "aten.cat.default"})) {
    op.args.push_back({std::min(first_difference(in, out), std::max<std::int64_t>(n - 1, 0))});
  } else if (one_of(name, {"aten.select_scatter.default", "aten.slice_scatter.default"}) && inputs.size() > 1) {
    op.args.push_back({std::min(first_difference(in, inputs[1]), std::max<std::int64_t>(n - 1, 0))});
  } else if (one_of(name, {"aten.diagonal.default", "aten.diagonal_scatter.default"})) {
    const std::int64_t kept = first_difference(in, name == "aten.diagonal.default" ? out : inputs[1]);
    for (const std::int64_t constant : {std::int64_t{0}, std::min(kept, n - 2), n - 1}) op.args.push_back({constant});
  } else if (name == "aten.unfold.default" && out.size() == in.size() + 1) {
    const std::int64_t dim = std::min(first_difference(in, out), n - 1);
    const std::int64_t windows = out[static_cast<std::size_t>(dim)],
                       left = in[static_cast<std::size_t>(dim)] - out.back();
    for (const std::int64_t constant : {dim, out.back(), windows > 1 ? left / (windows - 1) : 1})
      op.args.push_back({constant});
  } else if (one_of(name,
                    {"aten.sum.dim_IntList", "aten.mean.dim", "aten.var.correction", "aten.std.correction",
                     "aten.var_mean.correction", "aten.std_mean.correction", "aten.amax.default", "aten.amin.default",
                     "aten.logsumexp.default", "aten.prod.dim_int", "aten.nansum.default"})) {
    op.args.push_back({reduced(op, in, out)});
  } else if (one_of(name, {"aten.linalg_vector_norm.default", "aten.norm.ScalarOpt_dim", "aten.norm.Scalar"})) {
    op.args.push_back({stated_order(op)});
    op.args.push_back({reduced(op, in, out)});
  } else if (name == "aten.convolution.default" && inputs.size() > 1 && in.size() > 2 &&
             inputs[1].size() == in.size()) {
    // Only a transposed convolution makes more pixels than padding could.
    const Shape& filter = inputs[1];
    const bool channels = in[1] == filter[0] && (out[1] != filter[0] || out.back() > in.back() + filter.back());
    if (channels) op.kwargs.push_back({"transposed", Arg{true}});
  }
}

std::string text_of(const Json& tensor) { return tensor.dump(); }

}  // namespace

DType recorded_dtype(const std::string& name) {
  if (name == "u64" || name == "i64") return DType::Int64;
  if (name == "i32" || name == "u32") return DType::Int32;
  if (name == "u8") return DType::UInt8;
  if (name == "i8") return DType::Int8;
  if (const auto known = parse_dtype(name)) return *known;
  throw RowDiffers("dtype", "a known type", name);
}

std::string full_kernel_name(const std::string& recorded) {
  return std::count(recorded.begin(), recorded.end(), '.') > 1 ? recorded : recorded + ".default";
}

bool writes_in_place(const std::string& name) {
  const std::size_t dot = name.find('.', name.find('.') + 1);
  const std::size_t end = dot == std::string::npos ? name.size() : dot;
  return end > 0 && name[end - 1] == '_';
}

namespace {

/// `out` is `in` with some of its dimensions of one left out.
bool without_ones(const Shape& in, const Shape& out) {
  std::size_t at = 0;
  for (const std::int64_t size : in) {
    if (at < out.size() && out[at] == size)
      ++at;
    else if (size != 1)
      return false;
  }
  return at == out.size();
}

std::int64_t elements(const Shape& shape) {
  std::int64_t n = 1;
  for (const std::int64_t size : shape) n *= size;
  return n;
}

bool expands(const Shape& in, const Shape& out) {
  if (out.size() < in.size()) return false;
  for (std::size_t i = 0; i < in.size(); ++i)
    if (in[i] != 1 && in[i] != out[out.size() - in.size() + i]) return false;
  return true;
}

/// As large but along one dimension, where it is no larger.
bool is_piece(const Shape& in, const Shape& out) {
  if (in.size() != out.size()) return false;
  int other = 0;
  for (std::size_t i = 0; i < in.size(); ++i) {
    if (out[i] > in[i]) return false;
    other += out[i] != in[i] ? 1 : 0;
  }
  return other <= 1;
}

bool without_one_dimension(const Shape& in, const Shape& out) {
  for (std::size_t dim = 0; dim < in.size(); ++dim) {
    Shape rest = in;
    rest.erase(rest.begin() + static_cast<std::ptrdiff_t>(dim));
    if (rest == out) return true;
  }
  return false;
}

bool view_fits(const std::string& name, const Shape& in, const Shape& out) {
  if (one_of(name, {"aten.view", "aten._unsafe_view", "aten.reshape", "aten.flatten.using_ints", "aten.unflatten.int"}))
    return elements(in) == elements(out);
  if (one_of(name, {"aten.t", "aten.numpy_T", "aten.transpose.int", "aten.permute"}))
    return std::is_permutation(in.begin(), in.end(), out.begin(), out.end());
  if (one_of(name, {"aten.squeeze", "aten.squeeze.dim", "aten.squeeze.dims"})) return without_ones(in, out);
  if (name == "aten.unsqueeze") return out.size() == in.size() + 1 && without_ones(out, in);
  if (one_of(name, {"aten.expand", "aten.expand_as"})) return expands(in, out);
  if (one_of(name, {"aten.slice.Tensor", "aten.narrow", "aten.split.Tensor", "aten.unsafe_split.Tensor",
                    "aten.split_with_sizes", "aten.unsafe_split_with_sizes", "aten.chunk"}))
    return is_piece(in, out);
  if (one_of(name, {"aten.select.int", "aten.unbind.int"})) return without_one_dimension(in, out);
  if (name == "aten.diagonal") return out.size() + 1 == in.size() && elements(out) <= elements(in);
  if (name == "aten.unfold")
    return out.size() == in.size() + 1 && out.back() <= *std::max_element(in.begin(), in.end());
  if (one_of(name, {"aten.alias", "aten.detach", "aten._reshape_alias", "aten.native_dropout"})) return in == out;
  if (name == "aten.as_strided" || name == "aten.view_as_real" || name == "aten.view_as_complex") return true;
  return false;
}

}  // namespace

void check_recorded_kernel(const Json& kernel, const std::string& place) {
  const std::string name = kernel["op"];
  if (kernel["in"].empty() &&
      !one_of(name, {"aten.zeros", "aten.ones", "aten.full", "aten.empty.memory_format", "aten.empty_strided",
                     "aten.scalar_tensor", "aten.arange", "aten.arange.start", "aten.arange.start_step", "aten.eye",
                     "aten.rand", "aten.randn", "aten.linspace"}))
    throw RowDiffers(place, "an operator that takes no tensor", name);
  if (one_of(name, {"aten.clone", "aten._to_copy"}) && kernel["in"][0][1] != kernel["out"][0][1])
    throw RowDiffers(place + ".out", "a copy of " + kernel["in"][0].dump(), kernel["out"][0].dump());
  if (kernel["out"].size() > 1 && kernel["allocates"].empty()) {  // pieces that make up the whole
    std::int64_t all = 0;
    for (const Json& out : kernel["out"]) all += elements(out[1].get<Shape>());
    if (all != elements(kernel["in"][0][1].get<Shape>()))
      throw RowDiffers(place + ".out", "pieces of " + kernel["in"][0].dump(), kernel["out"].dump());
  }
  for (const Json& out : kernel["out"]) {
    const auto same_storage =
        std::find_if(kernel["in"].begin(), kernel["in"].end(), [&](const Json& in) { return in[0] == out[0]; });
    const Json& allocates = kernel["allocates"];
    const bool fresh = std::find(allocates.begin(), allocates.end(), out[0]) != allocates.end();
    if (fresh != (same_storage == kernel["in"].end()))
      throw RowDiffers(place + ".allocates", "what shares no storage with what the kernel takes", out.dump());
    if (fresh) continue;
    const Json& in = *same_storage;
    const bool same_type = in[2] == out[2] || name.starts_with("aten.view_as_");
    const bool fits =
        writes_in_place(name) ? in[1] == out[1] : view_fits(name, in[1].get<Shape>(), out[1].get<Shape>());
    if (!same_type || !fits)
      throw RowDiffers(place + ".out", "a view that " + name + " makes of " + in.dump(), out.dump());
  }
}

OpRulesProgram::OpRulesProgram(const Json& row, Reading reading) : row_(row), reading_(reading) {
  model_.modules.emplace_back();
  model_.has_loss = true;
  for (const Json& input : row["inputs"]) add_input(input);
  if (!inputs_.empty()) model_.compute_dtype = inputs_[0].dtype;
  for (std::size_t i = 0; i < row["forward"].size(); ++i) add_kernel(i, row["forward"][i]);
  for (std::size_t i = 0; i < row["outputs"].size(); ++i) {
    const Json& output = row["outputs"][i];
    results_.push_back(resolve(Json::array({output["label"], output["shape"], output["dtype"]}),
                               "outputs[" + std::to_string(i) + "]"));
  }
  for (std::size_t i = 0; i < model_.values.size(); ++i) model_.outputs.emplace_back(static_cast<std::int32_t>(i));
}

void OpRulesProgram::add_input(const Json& input) {
  const std::string label = input["label"], dtype = input["dtype"];
  if (label != "x" + std::to_string(inputs_.size()))
    throw RowDiffers("inputs", "x" + std::to_string(inputs_.size()), label);
  ParamInfo param;
  param.fqn = label;
  param.shape = input["shape"].get<Shape>();
  param.dtype = recorded_dtype(dtype);
  param.requires_grad = input["requires_grad"].get<bool>();
  const ParamId id(model_.params.size());
  lowering::Layout layout = lowering::contiguous_layout(lowering::dims_of(param.shape), param.dtype);
  layout.strides = lowering::dims_of(input["stride"].get<Shape>());
  if (layout.strides.n != layout.sizes.n || !layout.dense())
    throw RowDiffers("inputs[" + label + "].stride", "a dense tensor", input["stride"].dump());
  inputs_.push_back(layout);
  known_.push_back({label, param.shape, dtype, {ParamRef{id}}});
  model_.params.push_back(std::move(param));
}

ValueId OpRulesProgram::add_value(const std::string& label, const Shape& shape, const std::string& dtype,
                                  const std::string& place, int kernel) {
  const ValueId id(model_.values.size());
  ValueInfo value;
  value.name = label;
  value.shape = shape;
  value.dtype = recorded_dtype(dtype);
  model_.values.push_back(std::move(value));
  labels_.push_back(label);
  places_.push_back(place);
  known_.push_back({label, shape, dtype, {ValueRef{id}}, kernel, 0});
  return id;
}

Arg OpRulesProgram::made_elsewhere(const Json& tensor) {
  Op op;
  op.name = "aten.empty.memory_format";
  op.module = ModuleId(0);
  op.out = {add_value(tensor[0], tensor[1].get<Shape>(), tensor[2], "", -1)};
  const Arg made{ValueRef{op.out[0]}};
  model_.ops.push_back(std::move(op));
  return made;
}

/// The tensor of that label (their storage's), shape and type: the first that nothing has read yet, else the latest; of
/// several that one kernel made the one that was read least.
Arg OpRulesProgram::resolve(const Json& tensor, const std::string& place) {
  const std::string label = tensor[0], dtype = tensor[2];
  const Shape shape = tensor[1].get<Shape>();
  const auto fits = [&](const Known& known) {
    return known.label == label && known.dtype == dtype && known.shape == shape;
  };
  std::vector<Known*> unread;
  for (Known& known : known_)
    if (known.uses == 0 && known.kernel >= 0 && fits(known)) unread.push_back(&known);
  decisions_.push_back(unread.size());
  if (!unread.empty()) {
    const bool other = decisions_.size() == reading_.decision + 1 && reading_.choice < unread.size();
    Known& taken = *unread[other ? reading_.choice : 0];
    ++taken.uses;
    return taken.arg;
  }
  for (auto at = known_.rbegin(); at != known_.rend(); ++at) {
    if (!fits(*at)) continue;
    Known* best = &*at;
    if (best->kernel >= 0)
      for (Known& other : known_)
        if (other.kernel == at->kernel && fits(other) &&
            (other.uses < best->uses || (other.uses == best->uses && &other < best)))
          best = &other;
    ++best->uses;
    return best->arg;
  }
  if (label != "const") throw RowDiffers(place, "a tensor that was made before", text_of(tensor));
  return made_elsewhere(tensor);
}

bool OpRulesProgram::is_constant(const Arg& arg) const {
  const auto* value = std::get_if<ValueRef>(&arg.value);
  for (const Op& op : model_.ops)
    if (value != nullptr && !op.out.empty() && op.out[0] == value->id)
      return one_of(op.name, {"aten.zeros.default", "aten.ones.default", "aten.empty.memory_format"});
  return false;
}

bool OpRulesProgram::knows(const std::string& label) const {
  return std::any_of(known_.begin(), known_.end(), [&](const Known& known) { return known.label == label; });
}

/// `allocates` are the labels that the kernel brings, and they are named after it.
void OpRulesProgram::check_allocations(std::size_t index, const Json& kernel) const {
  std::set<std::string> fresh;
  const std::string number = "f" + std::to_string(index);
  for (const Json& tensor : kernel["out"]) {
    const std::string label = tensor[0];
    if (knows(label)) continue;
    fresh.insert(label);
  }
  const auto allocated = kernel["allocates"].get<std::set<std::string>>();
  if (fresh != allocated)
    throw RowDiffers("forward[" + std::to_string(index) + "].allocates", Json(fresh).dump(), Json(allocated).dump());
}

bool OpRulesProgram::copies_for_autograd(std::size_t index) const {
  const Json& forward = row_["forward"];
  if (index + 1 >= forward.size() || !writes_in_place(forward[index + 1]["op"]) ||
      forward[index + 1]["in"][0] != forward[index]["in"][0])
    return false;
  const Json& copy = forward[index]["out"][0][0];
  for (const Json& output : row_["outputs"])
    if (output["label"] == copy) return false;
  for (std::size_t later = index + 1; later < forward.size(); ++later)
    for (const Json& tensor : forward[later]["in"])
      if (tensor[0] == copy) return false;
  return true;
}

void OpRulesProgram::add_kernel(std::size_t index, const Json& kernel) {
  const std::string place = "forward[" + std::to_string(index) + "]";
  Op op;
  op.name = full_kernel_name(kernel["op"]);
  op.module = ModuleId(0);
  check_allocations(index, kernel);
  check_recorded_kernel(kernel, place);
  // cosine_similarity bounds its norms from below without autograd
  bool unseen = op.name == "aten.clamp_min_.Tensor" && previous_ == "aten.scalar_tensor.default";
  if (op.name == "aten.clone.default" && copies_for_autograd(index)) {
    own_copies_.push_back(kernel["out"][0][0]);
    unseen = true;
  }
  previous_ = op.name;
  if (unseen) return;
  ArgList tensors;
  std::vector<Shape> in;
  for (std::size_t i = 0; i < kernel["in"].size(); ++i) {
    tensors.push_back(resolve(kernel["in"][i], place + ".in[" + std::to_string(i) + "]"));
    in.push_back(kernel["in"][i][1].get<Shape>());
  }
  if (op.name == "aten.cat.default" || op.name == "aten.stack.default")
    op.args = {Arg{tensors}};
  else if (op.name == "aten.native_batch_norm.default" && tensors.size() == 3)
    op.args = is_constant(tensors[1])  // statistics are made here as zeros and ones, weights are not
                  ? ArgList{tensors[0], {}, {}, tensors[1], tensors[2]}
                  : ArgList{tensors[0], tensors[1], tensors[2], {}, {}};
  else
    op.args = tensors;
  op.kwargs = stated(row_["args"]);
  if (op.name == "aten.clone.default")  // what contiguous, reshape and the like run
    op.kwargs.push_back({"memory_format", Arg{std::string("torch.contiguous_format")}});
  if (!in.empty() && !kernel["out"].empty()) infer_constants(op, in, kernel["out"][0][1].get<Shape>());
  for (std::size_t i = 0; i < kernel["out"].size(); ++i) {
    const Json& tensor = kernel["out"][i];
    // Off the GPU native_dropout hands its input on when it does nothing; CUDA's makes a copy.
    const bool handed_on = op.name == "aten.native_dropout.default" && tensor[0] == kernel["in"][0][0];
    op.out.push_back(add_value(handed_on ? "const" : tensor[0].get<std::string>(), tensor[1].get<Shape>(), tensor[2],
                               place + ".out[" + std::to_string(i) + "]", static_cast<int>(index)));
  }
  model_.ops.push_back(std::move(op));
}

}  // namespace foreshard::oracle
