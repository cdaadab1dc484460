// Backward formulas that the table of rules writes down itself (OpRule::written): for every argument that wants a
// gradient the kernels in PyTorch's order.
//
//   "1: mul.Tensor g x2 | 0: sub.Scalar x2; mul.Tensor g 1"
//
// Parts are in order of evaluation and open with the argument whose gradient their last step makes; "*" is a part that
// all of them share, "*12" one for arguments 1 and 2. Steps are numbered through, and a number stands for the step's
// result. g, g1: the gradient of that result; x0, r, r1: what was saved; L0: the layout of an argument, saved or not.
//   name>L0 ...   the result is laid out as the argument, contiguous (>K0: its reduced dimensions as ones); else as an
//   elementwise kernel lays it out
//   name_ a ...   works in place on a
//   x2?step       only if argument 2 was saved; mean? only if the loss is a mean. Else the step's first operand goes
//                 on.
//   @             the operator itself;  = a  no kernel
//   kept a, part g L0, wide a, column a, turned a, less a, as_real a, as_complex a
//                 views: reduced dimensions as ones, a piece, expanded to the first argument, [n, 1], transposed,
//                 without one of the operator's dimension
//   sum a, count a, mean a
//                 reductions: of everything, over the operator's dimensions
//   rows a, columns a, along a, last a
//                 reductions over the first dimension, all but the last, the operator's third argument, the last
//   piece a L0    a slice or an element of it
//   half0 a, half1 a
//                 the real or the imaginary parts of complex numbers, a view
// A statement ends with ";;" or with its part. Its temporaries go then, but for those that a later one reads and for
// locals with a name of their own, which a "&" in front of the step marks: these go with the formula.
#include <algorithm>
#include <array>
#include <charconv>
#include <string>

#include "core/lowering/backward/backward.h"
#include "core/lowering/composed/composed.h"
#include "core/lowering/lowering_machine.h"
#include "core/lowering/views/views.h"

namespace foreshard::lowering {

Ref BackwardInput::saved_arg(std::int32_t index) const {
  for (std::size_t i = 0; i < node.saved.size(); ++i)
    if (!node.saved[i].result && node.saved[i].index == index) return saved[i];
  return {};
}

Ref BackwardInput::saved_result(std::int32_t index) const {
  for (std::size_t i = 0; i < node.saved.size(); ++i)
    if (node.saved[i].result && node.saved[i].index == index) return saved[i];
  return {};
}

std::vector<Ref> taken(const Ref& g, const BackwardInput& in) {
  return taken(g, in, in.node.rule->formula == OpFormula::Written ? "" : in.node.rule->written);
}

std::vector<Ref> taken(const Ref& g, const BackwardInput& in, std::string_view order) {
  std::vector<Ref> all;
  if (order.empty()) {
    all.push_back(g);
    for (const bool result : {false, true})
      for (std::int32_t index = 0; index < 8; ++index)
        if (Ref one = result ? in.saved_result(index) : in.saved_arg(index)) all.push_back(std::move(one));
    return all;
  }
  for (; !order.empty(); order.remove_prefix(std::min(order.find(' ') + 1, order.size()))) {
    const std::int32_t index = order.size() > 1 ? order[1] - '0' : 0;
    Ref one = order[0] == 'g' ? g : order[0] == 'r' ? in.saved_result(index) : in.saved_arg(index);
    if (one) all.push_back(std::move(one));
    if (order.find(' ') == std::string_view::npos) break;
  }
  return all;
}

std::string out_of_place(std::string_view name) {
  std::string out(name);
  const std::size_t dot = std::min(out.rfind('.'), out.size());
  if (dot > 1 && out[dot - 1] == '_') out.erase(dot - 1, 1);
  return out;
}

std::vector<std::int32_t> reduced_dims(const Op& op, std::int32_t n) {
  // linalg_vector_norm and norm: the order comes first
  const std::size_t position = op.name.find("norm") != std::string::npos ? 2 : 1;
  std::vector<std::int32_t> dims;
  for (const std::int64_t dim : list_arg(op, position, "dim")) dims.push_back(wrap_dim(dim, n));
  return dims;
}

namespace {

using std::string_view;

string_view take_until(string_view& text, char end) {
  const std::size_t at = std::min(text.find(end), text.size());
  string_view head = text.substr(0, at);
  text.remove_prefix(std::min(at + 1, text.size()));
  while (!head.empty() && head.front() == ' ') head.remove_prefix(1);
  while (!head.empty() && head.back() == ' ') head.remove_suffix(1);
  return head;
}

std::int32_t number(string_view text) {
  std::int32_t value = 0;
  std::from_chars(text.data(), text.data() + text.size(), value);
  return value;
}

bool is_predicate(string_view name) {
  for (const string_view start : {"eq", "ne", "gt", "ge", "lt", "le"})
    if (name.starts_with(start) && name.size() > 2 && name[2] == '.') return true;
  return name.starts_with("isnan") || name.starts_with("logical") || name.starts_with("bitwise");
}

class Formula {
 public:
  Formula(Emitter& emit, BackwardInput& in) : e_(emit), in_(in) {
    dtype_ = in.grads[0] ? e_.layout(in.grads[0]).dtype : in.node.out[0].dtype;
  }

  std::vector<Ref> run() {
    std::vector<Ref> out(in_.node.in.size());
    for (string_view text = in_.node.rule->written; !text.empty();) {
      string_view part = take_until(text, '|');
      const string_view of = take_until(part, ':');
      const bool shared = of.starts_with('*');
      const auto argument = static_cast<std::size_t>(shared ? 0 : number(of));
      bool runs = of == "*" || (!shared && in_.wants(argument));
      for (std::size_t i = 1; shared && i < of.size(); ++i)
        runs = runs || in_.wants(static_cast<std::size_t>(of[i] - '0'));
      Ref last;
      while (!part.empty()) {
        string_view text_of_step = take_until(part, ';');
        if (text_of_step.empty()) {  // a statement's end
          end_statement(part, text);
          continue;
        }
        const bool named = text_of_step.starts_with('&');
        if (named) text_of_step.remove_prefix(1);
        steps_.push_back(runs ? step(text_of_step) : Ref());
        named_.push_back(named);
        last = steps_.back();
      }
      if (runs && !shared) out[argument] = std::move(last);
      end_statement({}, text);
    }
    return out;
  }

 private:
  /// Lets go of the steps that nobody reads in what is to come.
  void end_statement(string_view rest_of_part, string_view rest) {
    std::vector<bool> read(steps_.size(), false);
    for (string_view text : {rest_of_part, rest}) {
      while (!text.empty()) {
        const std::size_t end = std::min(text.find_first_of(" ;|"), text.size());
        const string_view word = text.substr(0, end);
        const bool digits =
            !word.empty() && std::all_of(word.begin(), word.end(), [](char c) { return c >= '0' && c <= '9'; });
        if (digits && static_cast<std::size_t>(number(word)) < read.size())
          read[static_cast<std::size_t>(number(word))] = true;
        text.remove_prefix(std::min(end + 1, text.size()));
      }
    }
    for (std::size_t i = 0; i < steps_.size(); ++i)
      if (!read[i] && !named_[i]) steps_[i] = Ref();
  }

  Ref operand(string_view text) const {
    if (text == "g") return in_.grads[0];
    if (text == "g1") return in_.grads.size() > 1 ? in_.grads[1] : Ref();
    if (text[0] == 'r') return in_.saved_result(text.size() > 1 ? number(text.substr(1)) : 0);
    if (text[0] == 'x') return in_.saved_arg(number(text.substr(1)));
    return steps_[static_cast<std::size_t>(number(text))];
  }

  bool holds(string_view condition) const {
    if (condition == "mean") {
      const Op& op = *in_.node.op;
      const std::size_t position = op.name.find("with_logits") != std::string::npos ? 4 : 3;
      const bool scalar = in_.node.out[0].sizes.n == 0 || op.name.find("_backward.") != std::string::npos;
      return scalar && int_arg(op, position, "reduction", 1) == 1;
    }
    return static_cast<bool>(operand(condition));
  }

  const Layout& argument_layout(string_view text) const {
    return in_.node.in[std::min(static_cast<std::size_t>(number(text.substr(1))), in_.node.in.size() - 1)];
  }

  Ref step(string_view text) {
    string_view name = take_until(text, ' ');
    bool skip = false;
    if (const std::size_t question = name.find('?'); question != string_view::npos) {
      skip = !holds(name.substr(0, question));
      name.remove_prefix(question + 1);
    }
    std::vector<Ref> from;
    const Layout* like = nullptr;
    Layout ones;
    while (!text.empty()) {
      const string_view word = take_until(text, ' ');
      if (word[0] == 'L')
        like = &argument_layout(word);
      else
        from.push_back(operand(word));
    }
    for (const Ref& ref : from) skip = skip || !ref;
    if (skip || name == "=") return from.empty() ? Ref() : from[0];
    if (const std::size_t arrow = name.find('>'); arrow != string_view::npos) {
      like = &argument_layout(name.substr(arrow + 1));
      if (name[arrow + 1] == 'K') {
        ones = plain(*like);
        for (const std::int32_t dim : reduced_dims(*in_.node.op, ones.sizes.n)) ones.sizes[dim] = 1;
        like = &ones;
      }
      return made(full(name.substr(0, arrow)), plain(*like), from);
    }
    if (is_view(name)) return viewed(name, from[0], like);
    if (name == "zeros" && like != nullptr) return made("aten.zeros.default", plain(*like), {});
    if (from.empty()) return made(full(name), contiguous_layout(Dims{}, dtype_), {});  // a number
    if (name == "empty_like") {
      Kernel kernel = e_.start("aten.empty_like.default", KernelClass::Elementwise, dtype_);
      kernel.launches = 0;
      Ref out = e_.tape().make(e_.layout(from[0]), e_.category());
      e_.launch(kernel, from, {&out, 1});
      return out;
    }
    if (name == "sum" || name == "count" || name == "mean" || name == "along" || name == "last")
      return reduced(name, from[0]);
    if (name == "columns") {  // over all but the last dimension
      std::vector<std::int32_t> dims;
      for (std::int32_t i = 0; i + 1 < e_.layout(from[0]).sizes.n; ++i) dims.push_back(i);
      return e_.sum(from[0], dims, false, "aten.sum.dim_IntList", KernelClass::Reduction, e_.layout(from[0]).dtype);
    }
    if (name == "rows")
      return e_.sum(from[0], {0}, false, "aten.sum.dim_IntList", KernelClass::Reduction, e_.layout(from[0]).dtype);
    const std::string kernel = full(name);
    const std::size_t dot = kernel.rfind('.');
    if (kernel[dot - 1] == '_') {
      Kernel written = e_.start(kernel, KernelClass::Elementwise, e_.layout(from[0]).dtype);
      for (const Ref& ref : from) written.read += e_.layout(ref).bytes();
      written.written = e_.layout(from[0]).bytes();
      e_.launch(written, from, {from.data(), 1});
      return from[0];
    }
    return elementwise(kernel, from, is_predicate(name) ? DType::Bool : promoted(from));
  }

  static bool is_view(string_view name) {
    constexpr std::array<string_view, 10> kViews{"kept",  "part",  "wide", "as_real", "as_complex",
                                                 "half0", "half1", "less", "column",  "piece"};
    return name == "turned" || std::find(kViews.begin(), kViews.end(), name) != kViews.end();
  }

  Ref viewed(string_view name, const Ref& from, const Layout* like) {
    if (name == "kept") return kept(from);
    if (name == "part") return part(from, *like);
    if (name == "piece") return piece(from, *like);
    if (name == "wide") return e_.expand(from, in_.node.in[0].sizes);
    if (name == "as_real" || name == "as_complex") return as_pairs(from);
    if (name == "half0" || name == "half1") return half(from);
    if (name == "turned") return e_.transpose(from, 0, 1);
    if (name == "less") return less(from);
    Dims sizes = e_.layout(from).sizes;
    sizes.push(1);
    return e_.view(from, sizes);
  }

  std::string full(string_view name) const {
    if (name == "@") return out_of_place(in_.node.op->name);
    std::string kernel = "aten.";
    kernel += name;
    if (name.find('.') == string_view::npos) kernel += ".default";
    return kernel;
  }

  /// The first floating operand's type; masks and counts give way.
  DType promoted(const std::vector<Ref>& from) {
    for (const Ref& ref : from)
      if (is_floating(e_.layout(ref).dtype)) return e_.layout(ref).dtype;
    return from.empty() ? dtype_ : e_.layout(from[0]).dtype;
  }

  Ref made(string_view name, const Layout& layout, const std::vector<Ref>& from) {
    Kernel kernel = e_.start(name, KernelClass::Elementwise, layout.dtype);
    for (const Ref& ref : from) kernel.read += e_.layout(ref).bytes();
    const bool resizes = (name == "aten.col2im.default" || name == "aten.im2col.default") && !from.empty();
    Ref out = resizes ? resized_like(e_, e_.layout(from[0]), layout) : e_.tape().make(layout, e_.category());
    kernel.written = layout.bytes();
    const std::vector<Ref> workspace = workspace_of(name, from);
    e_.launch(kernel, from, {&out, 1});
    return out;
  }

  /// What the kernel has beside its result while it runs; the gradient stands for the argument that is differentiated.
  std::vector<Ref> workspace_of(string_view name, const std::vector<Ref>& from) {
    std::vector<Ref> workspace;
    if (name == "aten._cdist_backward.default") return distances_workspace(from[1], from[2]);
    if (name == "aten._pdist_backward.default" && e_.machine().options.cpu_threads == 0) {  // as below, of every pair
      const Layout points = e_.layout(from[1]);
      workspace.push_back(e_.tape().make_bytes(points.bytes() * std::max<std::int64_t>(points.sizes[0] - 1, 0),
                                               SlotCategory::Temporary));
    }
    if (name != "aten._trilinear.default" || from.size() != 3) return workspace;
    const auto is_grad = [&](const Ref& ref) {
      return e_.tape().at(ref).storage == e_.tape().at(in_.grads[0]).storage;
    };
    const auto of = static_cast<std::size_t>(std::find_if(from.begin(), from.end(), is_grad) - from.begin());
    const Layout grad = e_.layout(in_.grads[0]);
    const TrilinearWorkspace slice =
        trilinear_workspace(*in_.node.op, {e_.layout(from[0]), e_.layout(from[1]), e_.layout(from[2])}, &grad, of);
    for (const Bytes bytes : {slice.first, slice.second})
      if (bytes > 0) workspace.push_back(e_.tape().make_bytes(bytes, SlotCategory::Workspace));
    return workspace;
  }

  /// Distance.cu: the points in rows, and every pair's share of every coordinate, which a sum then takes together.
  std::vector<Ref> distances_workspace(const Ref& points, const Ref& others) {
    std::vector<Ref> workspace;
    const Layout a = e_.layout(points), b = e_.layout(others);
    if (e_.machine().options.cpu_threads > 0 || a.sizes.n < 2 || b.sizes.n < 2) return workspace;
    const auto take = [&](Bytes bytes) { workspace.push_back(e_.tape().make_bytes(bytes, SlotCategory::Temporary)); };
    for (const Layout& one : {a, b})
      if (!one.contiguous()) take(one.bytes());
    take(a.bytes() * b.sizes[b.sizes.n - 2]);
    return workspace;
  }

  Ref elementwise(string_view name, const std::vector<Ref>& from, DType dtype) {
    static const Ref kNone;
    const auto at = [&](std::size_t i) { return i < from.size() ? &from[i] : &kNone; };
    return e_.elementwise(name, {at(0), at(1), at(2)}, dtype);
  }

  Ref kept(const Ref& ref) {
    const Layout& from = in_.node.in[0];
    if (e_.layout(ref).sizes.n == from.sizes.n || e_.layout(ref).sizes.n == 0) return ref;
    Dims sizes = from.sizes;
    for (const std::int32_t dim : reduced_dims(*in_.node.op, from.sizes.n)) sizes[dim] = 1;
    return contiguous_layout(sizes, from.dtype).numel() == e_.layout(ref).numel() ? e_.view(ref, sizes) : ref;
  }

  Ref part(const Ref& ref, const Layout& like) {
    Layout layout = plain(like);
    layout.strides = part_strides(*in_.node.op, e_.layout(ref), like.sizes);
    return e_.tape().alias(ref, layout);
  }

  /// What slice or select took: the operator (its backward, run in a forward) says where it lies.
  Ref piece(const Ref& ref, const Layout& like) {
    Layout layout = plain(like);
    const Layout from = e_.layout(ref);
    const Op& op = *in_.node.op;
    const std::int32_t dim = wrap_dim(int_arg(op, 2, "dim", 0), from.sizes.n);
    std::int32_t to = 0;
    for (std::int32_t i = 0; i < from.sizes.n && to < layout.sizes.n; ++i) {
      if (i == dim && layout.sizes.n < from.sizes.n) continue;
      layout.strides[to++] = from.strides[i] * (i == dim ? int_arg(op, 5, "step", 1) : 1);
    }
    return e_.tape().alias(ref, layout);
  }

  /// The same numbers as complex ones or as pairs, of a gradient that is contiguous or made so.
  Ref as_pairs(const Ref& ref) {
    const Layout given = e_.layout(ref);
    Ref whole = given.contiguous() ? ref : made("aten.clone.default", plain(given), {ref});
    return e_.tape().alias(whole, plain(in_.node.in[0]));
  }

  Ref half(const Ref& ref) {
    Layout layout = e_.layout(ref);
    if (!is_complex(layout.dtype)) return ref;
    for (std::int32_t i = 0; i < layout.sizes.n; ++i) layout.strides[i] *= 2;
    layout.dtype = real_dtype(layout.dtype);
    return e_.tape().alias(ref, layout);
  }

  Ref less(const Ref& ref) {
    Layout layout = e_.layout(ref);
    for (const std::int32_t dim : reduced_dims(*in_.node.op, layout.sizes.n))
      layout.sizes[dim] = std::max<std::int64_t>(layout.sizes[dim] - 1, 0);
    return e_.tape().alias(ref, layout);
  }

  Ref reduced(string_view name, const Ref& ref) {
    if (name == "sum")
      return e_.sum(ref, {}, false, "aten.sum.default", KernelClass::Reduction,
                    is_floating(e_.layout(ref).dtype) ? e_.layout(ref).dtype : DType::Int64);
    if (name == "along") {
      const Layout given = e_.layout(ref);
      return e_.sum(ref, {wrap_dim(int_arg(*in_.node.op, 2, "dim", -1), given.sizes.n)}, true, "aten.sum.dim_IntList",
                    KernelClass::Reduction, given.dtype);
    }
    if (name == "last")
      return e_.sum(ref, {e_.layout(ref).sizes.n - 1}, true, "aten.sum.dim_IntList", KernelClass::Reduction,
                    e_.layout(ref).dtype);
    const std::vector<std::int32_t> dims = reduced_dims(*in_.node.op, in_.node.in[0].sizes.n);
    if (name == "count") return e_.sum(ref, dims, true, "aten.sum.dim_IntList", KernelClass::Reduction, DType::Int64);
    return e_.sum(ref, dims, !dims.empty(), dims.empty() ? "aten.mean.default" : "aten.mean.dim",
                  KernelClass::Reduction, e_.layout(ref).dtype);
  }

  Emitter& e_;
  BackwardInput& in_;
  DType dtype_;
  std::vector<Ref> steps_;
  std::vector<bool> named_;  // parallel: locals of a C++ function
};

}  // namespace

std::vector<Ref> backward_of_written(Emitter& emit, BackwardInput& in) { return Formula(emit, in).run(); }

}  // namespace foreshard::lowering
