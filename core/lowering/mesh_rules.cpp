#include "core/lowering/mesh_rules.h"

#include <algorithm>
#include <array>
#include <variant>
#include <vector>

#include "core/lowering/lowering_machine.h"
#include "core/lowering/mesh/ring_attention.h"
#include "core/model/op_keywords.h"

namespace foreshard {
namespace {

constexpr OpRule mesh_row(std::string_view name, std::array<SaveRule, 8> saves = {}, std::uint8_t count = 0) {
  OpRule rule;
  rule.name = name;
  rule.form = OpForm::Mesh;
  rule.formula = OpFormula::Mesh;
  rule.kind = KernelClass::Copy;
  rule.saves = saves;
  rule.save_count = count;
  rule.first_only = true;
  return rule;
}

/// What a rank does for itself around an exchange; nothing of it has a gradient.
constexpr OpRule local_row(std::string_view name, OpForm form, int launches = 1) {
  OpRule rule;
  rule.name = name;
  rule.form = form;
  rule.formula = OpFormula::None;
  rule.kind = form == OpForm::Host ? KernelClass::Copy : KernelClass::Elementwise;
  rule.launches = launches;
  return rule;
}

constexpr OpRule kMeshRules[] = {
    local_row("mesh.own_positions", OpForm::Contiguous),
    local_row("mesh.loads_of", OpForm::Contiguous),
    local_row("mesh.splits", OpForm::Host),
    local_row("mesh.align_sizes_", OpForm::InPlace),
    local_row("mesh.expert_order", OpForm::Contiguous),
    local_row("mesh.received_rows", OpForm::Contiguous, 0),
    mesh_row("mesh.all_gather"),
    mesh_row("mesh.reduce_scatter"),
    mesh_row("mesh.all_reduce"),
    mesh_row("mesh.all_to_all"),
    mesh_row("mesh.copy"),
    mesh_row("mesh.part"),
    mesh_row("mesh.flash_attention",
             {SaveRule{false, 1, 0}, SaveRule{false, 0, 0}, SaveRule{false, 2, 0}, SaveRule{true, 1, 0},
              SaveRule{true, 0, 0}, SaveRule{true, 2, 0}, SaveRule{true, 3, 0}},
             7),
    mesh_row("mesh.flash_attention_for_cpu",
             {SaveRule{false, 1, 0}, SaveRule{false, 0, 0}, SaveRule{false, 2, 0}, SaveRule{true, 1, 0},
              SaveRule{true, 0, 0}},
             5),
    mesh_row("mesh.embedding", {SaveRule{false, 1, 1}}, 1),
    mesh_row("mesh.log_softmax", {SaveRule{true, 0, 0}}, 1),
    mesh_row("mesh.nll_loss", {SaveRule{false, 0, 0}, SaveRule{false, 1, 0}, SaveRule{true, 1, 0}}, 3),
};

}  // namespace

const OpRule* find_mesh_rule(std::string_view name) {
  const auto at =
      std::find_if(std::begin(kMeshRules), std::end(kMeshRules), [&](const OpRule& rule) { return rule.name == name; });
  return at == std::end(kMeshRules) ? nullptr : &*at;
}

std::int32_t mesh_dimension_either_way(const Op& op) {
  const OpRule* rule = op.name.starts_with("mesh.") ? find_mesh_rule(op.name) : nullptr;
  if (rule == nullptr || rule->form != OpForm::Mesh) return -1;
  const bool named = keyword(op, "mesh") != nullptr;
  return static_cast<std::int32_t>(lowering::int_arg(op, named ? op.args.size() : 1, "mesh", 0));
}

std::int32_t mesh_dimension_of(const Op& op) {
  const bool in_backward = op.name == "mesh.copy" || op.name == "mesh.part" || op.name == "mesh.embedding";
  return in_backward ? -1 : mesh_dimension_either_way(op);
}

std::vector<std::int32_t> dimensions_met(const Op& op) {
  if (const std::int32_t one = mesh_dimension_of(op); one >= 0) return {one};
  std::vector<std::int32_t> met;
  const ArgList* const rows = collectives_inside(op);
  if (rows == nullptr) return met;
  for (const Arg& arg : *rows)
    met.push_back(static_cast<std::int32_t>(std::get<std::int64_t>(std::get<ArgList>(arg.value)[1].value)));
  return met;
}

namespace lowering {
namespace {

/// The mesh dimension that an operator meets, by its position among the arguments or by name.
std::int32_t dimension_of(const Op& op) { return static_cast<std::int32_t>(int_arg(op, 1, "mesh", 0)); }
std::int32_t named_dimension(const Op& op) { return static_cast<std::int32_t>(int_arg(op, op.args.size(), "mesh", 0)); }

class MeshKernels {
 public:
  MeshKernels(Emitter& emit, std::int32_t dimension)
      : e_(emit), dimension_(dimension), ranks_(emit.machine().ranks_along(dimension)) {}

  std::int64_t ranks() const { return ranks_; }

  Ref copy(std::string_view name, const Ref& x, const Layout& to) {
    return e_.fresh(name, KernelClass::Copy, to, {&x});
  }
  Ref contiguous(const Ref& x) {
    const Layout from = e_.layout(x);
    return from.contiguous() ? x : copy("aten.clone.default", x, contiguous_layout(from.sizes, from.dtype));
  }
  /// Along `dim` to `size`, if it is shorter.
  Ref padded(const Ref& x, std::int32_t dim, std::int64_t size) {
    Layout to = e_.layout(x);
    if (to.sizes[dim] >= size) return x;
    to.sizes[dim] = size;
    return copy("aten.constant_pad_nd.default", x, contiguous_layout(to.sizes, to.dtype));
  }
  Ref part(const Ref& x, std::int32_t dim, std::int64_t size) {
    Layout to = e_.layout(x);
    if (to.sizes[dim] <= size) return x;
    to.sizes[dim] = size;
    return e_.tape().alias(x, to);
  }

  void meet(KernelCollective what, const Ref& in, const Ref& out, Bytes vector_bytes, bool maximum = false) {
    static constexpr std::array<std::string_view, 5> kNames{
        "", "_c10d_functional.all_gather_into_tensor", "_c10d_functional.reduce_scatter_tensor",
        "_c10d_functional.all_reduce", "_c10d_functional.all_to_all_single"};
    Kernel kernel = e_.start(kNames[static_cast<std::size_t>(what)], KernelClass::Copy, e_.layout(out).dtype);
    kernel.collective = what;
    kernel.maximum = maximum;
    kernel.dimension = dimension_;
    kernel.vector_bytes = vector_bytes;
    e_.finish(kernel, {&in}, {&out});
  }

  /// Shard::_to_replicate_tensor: gathered along dimension 0, then moved to where it belongs. The host's stream waits
  /// before that copy.
  Ref all_gather(const Ref& x, std::int32_t dim, std::int64_t whole) {
    const std::int64_t rows = (whole + ranks_ - 1) / ranks_;
    const Ref own = contiguous(whole % ranks_ == 0 ? x : padded(x, dim, rows));
    Layout layout = e_.layout(own);
    Layout gathered = layout;
    gathered.sizes[0] *= ranks_;
    gathered = contiguous_layout(gathered.sizes, gathered.dtype);
    Ref all = e_.tape().make(gathered, e_.category());
    meet(KernelCollective::AllGather, own, all, gathered.bytes());
    layout.sizes[dim] = rows * ranks_;
    layout = contiguous_layout(layout.sizes, layout.dtype);
    bool moves = false;
    for (std::int32_t d = 0; d < dim; ++d) moves = moves || layout.sizes[d] != 1;
    Ref out;
    if (dim == 0) {
      e_.machine().keep_until_used(all, own);
      out = std::move(all);
    } else {
      out = moves ? copy("aten.cat.default", all, layout) : e_.tape().alias(all, layout, false);
    }
    return part(out, dim, whole);
  }

  /// What a reduce-scatter sends: the ranks' pieces one behind the other.
  Ref pieces(const Ref& x, std::int32_t dim, std::int64_t whole) {
    const std::int64_t rows = (whole + ranks_ - 1) / ranks_;
    Ref sent = contiguous(whole % ranks_ == 0 ? x : padded(x, dim, rows * ranks_));
    if (dim == 0) return sent;
    const Layout from = e_.layout(sent);
    Layout laid_out = from;
    laid_out.sizes[0] *= ranks_;
    laid_out.sizes[dim] /= ranks_;
    return copy("aten.cat.default", sent, contiguous_layout(laid_out.sizes, from.dtype));
  }

  /// Shard::_reduce_shard_tensor: what is sent stays until the result is first used.
  Ref reduce_scatter(const Ref& x, std::int32_t dim, std::int64_t whole) {
    const std::int64_t rows = (whole + ranks_ - 1) / ranks_;
    const Ref sent = pieces(x, dim, whole);
    Layout to = e_.layout(x);
    to.sizes[dim] = rows;
    to = contiguous_layout(to.sizes, to.dtype);
    Ref out = e_.tape().make(to, e_.category());
    meet(KernelCollective::ReduceScatter, sent, out, e_.layout(sent).bytes());
    e_.machine().keep_until_used(out, sent);
    return part(out, dim,
                std::min(rows, std::max<std::int64_t>(whole - rows * e_.machine().place_along(dimension_), 0)));
  }

  /// all_to_all_single_autograd. Forward: what is sent stays until the result is first used; backward waits at once.
  /// `rows`: of the result; as many as `x` has where the parts are equal.
  Ref all_to_all(const Ref& x, std::int64_t rows, bool waits) {
    const Ref sent = contiguous(x);
    Layout to = e_.layout(sent);
    to.sizes[0] = rows;
    to = contiguous_layout(to.sizes, to.dtype);
    Ref out = e_.tape().make(to, e_.category());
    meet(KernelCollective::AllToAll, sent, out, std::max(to.bytes(), e_.layout(sent).bytes()));
    if (!waits) e_.machine().keep_until_used(out, sent);
    return out;
  }

  /// funcol.all_reduce leaves its argument alone: a copy of it is reduced in place.
  Ref all_reduce(const Ref& x, bool maximum = false) {
    const Layout from = e_.layout(x);
    Ref out = copy("aten.clone.default", x, elementwise_like(from));
    meet(KernelCollective::AllReduce, out, out, e_.layout(out).bytes(), maximum);
    return out;
  }

 private:
  static Layout elementwise_like(const Layout& from) {
    const Layout* inputs[] = {&from};
    return elementwise_layout(inputs, from.sizes, from.dtype);
  }

  Emitter& e_;
  std::int32_t dimension_;
  std::int64_t ranks_;
};

/// _MaskPartial: which indices lie elsewhere, and all of them as this rank's rows count.
struct Masked {
  Ref mask, ids;
};
Masked mask_of(Emitter& e, const Ref& ids) {
  Masked made;
  {
    const Ref below = e.elementwise("aten.lt.Scalar", {&ids}, DType::Bool);
    const Ref above = e.elementwise("aten.ge.Scalar", {&ids}, DType::Bool);
    made.mask = e.elementwise("aten.bitwise_or.Tensor", {&below, &above}, DType::Bool);
  }
  const Ref copied = e.elementwise("aten.clone.default", {&ids});
  made.ids = e.elementwise("aten.sub.Tensor", {&copied});
  Kernel fill = e.start("aten.masked_fill_.Scalar", KernelClass::Elementwise, e.layout(made.ids).dtype);
  e.finish(fill, {&made.ids, &made.mask}, {&made.ids});
  return made;
}

void fill_masked(Emitter& e, const Ref& x, const Ref& mask) {
  Kernel fill = e.start("aten.masked_fill_.Scalar", KernelClass::Elementwise, e.layout(x).dtype);
  e.finish(fill, {&x, &mask}, {&x});
}

Ref scalar(Emitter& e, DType dtype) {
  return e.fresh("aten.scalar_tensor.default", KernelClass::Elementwise, contiguous_layout({}, dtype), {});
}

/// torch.where(target != ignored, x, 0)
Ref without_ignored(Emitter& e, const Ref& target, const Ref& x) {
  const Ref kept = e.elementwise("aten.ne.Scalar", {&target}, DType::Bool);
  const Ref zero = scalar(e, e.layout(x).dtype);
  return e.elementwise("aten.where.self", {&kept, &x, &zero}, e.layout(x).dtype);
}

Ref column(Emitter& e, const Ref& x) {
  Layout layout = e.layout(x);
  layout.sizes.push(1);
  layout.strides.push(1);
  return e.tape().alias(x, layout);
}
Ref flat(Emitter& e, const Ref& x) {
  Layout layout = e.layout(x);
  --layout.sizes.n;
  --layout.strides.n;
  return e.tape().alias(x, layout);
}

std::vector<Ref> embedding_forward(Emitter& e, const std::vector<Ref>& args, const std::vector<Layout>& results) {
  Masked masked = mask_of(e, args[1]);
  Ref out = e.fresh("aten.embedding.default", KernelClass::Gather, results[0], {&args[0], &masked.ids});
  masked.ids.reset();
  fill_masked(e, out, masked.mask);
  return {out};
}

/// parallel/loss.py: _log_softmax
std::vector<Ref> log_softmax_forward(Emitter& e, MeshKernels& mesh, const Ref& given) {
  const Layout from = e.layout(given);
  Ref x = given;
  if (from.dtype != DType::Float32 || !from.contiguous())
    x = mesh.copy("aten._to_copy.default", given, contiguous_layout(from.sizes, DType::Float32));
  const std::vector<std::int32_t> last{from.sizes.n - 1};
  Ref largest = e.sum(x, last, true, "aten.amax.default", KernelClass::Reduction, DType::Float32);
  largest = mesh.all_reduce(largest, true);
  const Ref shifted = e.elementwise("aten.sub.Tensor", {&x, &largest});
  Ref sums;
  {
    const Ref exponents = e.elementwise("aten.exp.default", {&shifted});
    sums = e.sum(exponents, last, true, "aten.sum.dim_IntList", KernelClass::Reduction, DType::Float32);
  }
  sums = mesh.all_reduce(sums);
  const Ref logs = e.elementwise("aten.log.default", {&sums});
  Ref out = e.elementwise("aten.sub.Tensor", {&shifted, &logs});
  return {e.cast(out, from.dtype)};
}

/// parallel/loss.py: _nll_loss_forward, the mean.
std::vector<Ref> nll_loss_forward(Emitter& e, MeshKernels& mesh, const Ref& x, const Ref& target) {
  const Ref safe = without_ignored(e, target, target);
  Ref picked;
  {
    const Ref safe_column = column(e, safe);
    Masked masked = mask_of(e, safe_column);
    picked = e.fresh("aten.gather.default", KernelClass::Gather,
                     contiguous_layout(e.layout(masked.ids).sizes, e.layout(x).dtype), {&x, &masked.ids});
    fill_masked(e, picked, masked.mask);
    masked.mask.reset();
    picked = mesh.all_reduce(picked);
  }
  Ref result;
  {
    const Ref row = flat(e, picked);
    result = e.elementwise("aten.neg.default", {&row});
  }
  result = without_ignored(e, target, result);
  Ref weight;
  {
    const Ref counted = e.elementwise("aten.ne.Scalar", {&target}, DType::Bool);
    const Ref wide = e.elementwise("aten._to_copy.default", {&counted}, DType::Int64);
    const Ref count = e.sum(wide, {}, false, "aten.sum.default", KernelClass::Reduction, DType::Int64);
    weight = e.elementwise("aten._to_copy.default", {&count}, DType::Float32);
  }
  const Ref sum = e.sum(result, {}, false, "aten.sum.default", KernelClass::Reduction, DType::Float32);
  return {e.elementwise("aten.div.Tensor", {&sum, &weight}), weight};
}

/// parallel/loss.py: _nll_loss_and_log_softmax_backward; the softmax's own node then does nothing.
Ref nll_loss_backward(Emitter& e, const Ref& x, const Ref& target, const Ref& weight, const Ref& g) {
  Ref grad = e.elementwise("aten.div.Tensor", {&g, &weight});
  const Ref target_column = column(e, target);
  const Ref safe = without_ignored(e, target_column, target_column);
  const Ref zeros = e.fresh("aten.zeros_like.default", KernelClass::Elementwise, e.layout(x), {});
  {
    const Ref row = flat(e, safe);
    const Masked masked = mask_of(e, row);
    Ref update = e.elementwise("aten._to_copy.default", {&masked.mask}, DType::Float32);
    update = e.elementwise("aten.sub.Tensor", {&update});
    const Ref places = e.fresh("aten.arange.default", KernelClass::Elementwise,
                               contiguous_layout(e.layout(row).sizes, DType::Int64), {});
    Kernel put = e.start("aten.index_put_.default", KernelClass::Gather, e.layout(x).dtype);
    e.finish(put, {&zeros, &update, &places, &masked.ids}, {&zeros});
    grad = without_ignored(e, target_column, grad);
    Ref sum;
    {
      const Ref exponents = e.elementwise("aten.exp.default", {&x});
      sum = e.elementwise("aten.add.Tensor", {&zeros, &exponents});
    }
    return e.elementwise("aten.mul.Tensor", {&sum, &grad});
  }
}

/// A node that differs from this one in its operator and in how its arguments are laid out.
std::vector<Ref> embedding_backward(Emitter& e, BackwardInput& in) {
  static const OpRule* const rule = find_op_rule("aten.embedding.default");
  Node whole;  // every rank makes the gradient of all rows
  whole.rule = rule;
  whole.op = in.node.op;
  whole.position = in.node.position;
  whole.next = in.node.next;
  whole.in = in.node.in;
  whole.out = in.node.out;
  for (const Saved& saved : in.node.saved) {
    Saved kept;
    kept.result = saved.result;
    kept.index = saved.index;
    whole.saved.push_back(std::move(kept));
  }
  Layout& table = whole.in[0];
  table.sizes[0] = int_arg(*in.node.op, in.node.op->args.size(), "whole", table.sizes[0]);
  table = contiguous_layout(table.sizes, table.dtype);
  BackwardInput as{whole, in.grads, in.saved};
  return backward_of(e, as);
}

}  // namespace

std::int64_t Machine::ranks_along(std::int32_t dimension) const {
  return static_cast<std::int64_t>(model_.mesh[static_cast<std::size_t>(dimension)].ranks.size());
}

std::int64_t Machine::place_along(std::int32_t dimension) const {
  return model_.mesh[static_cast<std::size_t>(dimension)].place;
}

void Machine::keep_until_used(const Ref& result, const Ref& sent) {
  on_their_way_.emplace_back(tape.at(result).storage, sent);
}

void Machine::wait_for(const std::vector<Ref>& read) {
  for (std::size_t k = on_their_way_.size(); k-- > 0;) {
    const bool used = std::any_of(read.begin(), read.end(), [&](const Ref& ref) {
      return ref && tape.at(ref).storage == on_their_way_[k].first;
    });
    if (used) on_their_way_.erase(on_their_way_.begin() + static_cast<std::ptrdiff_t>(k));
  }
}

Ref largest_of_ranks(Emitter& emit, const Ref& x, std::int32_t dimension) {
  return MeshKernels(emit, dimension).all_reduce(x, true);
}

std::vector<Ref> mesh_forward(Emitter& emit, const Op& op, const std::vector<Ref>& args,
                              const std::vector<Layout>& results) {
  if (op.name == "mesh.copy") return {emit.tape().alias(args[0], emit.layout(args[0]), false)};
  if (op.name == "mesh.embedding") return embedding_forward(emit, args, results);
  if (op.name.starts_with("mesh.flash_attention")) return ring_attention_forward(emit, op, args, results);
  if (op.name == "mesh.log_softmax" || op.name == "mesh.nll_loss") {
    MeshKernels mesh(emit, named_dimension(op));
    if (op.name == "mesh.log_softmax") return log_softmax_forward(emit, mesh, args[0]);
    return nll_loss_forward(emit, mesh, args[0], args[1]);
  }
  MeshKernels mesh(emit, dimension_of(op));
  if (op.name == "mesh.all_reduce") return {mesh.all_reduce(args[0])};
  if (op.name == "mesh.all_to_all")
    return {mesh.all_to_all(args[0], int_arg(op, 2, "rows", emit.layout(args[0]).sizes[0]), false)};
  const auto dim = static_cast<std::int32_t>(int_arg(op, 2, "dim", 0));
  const std::int64_t whole = int_arg(op, 3, "whole", 0);
  if (op.name == "mesh.all_gather") return {mesh.all_gather(args[0], dim, whole)};
  if (op.name == "mesh.part") {
    const Ref own = mesh.part(args[0], dim, results[0].sizes[dim]);
    return {mesh.copy("aten.clone.default", own, contiguous_layout(results[0].sizes, results[0].dtype))};
  }
  return {mesh.reduce_scatter(args[0], dim, whole)};
}

void lay_out_again(Machine& machine, const Op& op, std::int32_t place, const Ref& x) {
  if (machine.options.cpu_threads > 0) return;
  Emitter emit(machine, &op, place);
  MeshKernels(emit, dimension_of(op))
      .pieces(x, static_cast<std::int32_t>(int_arg(op, 2, "dim", 0)), int_arg(op, 3, "whole", 0));
}

std::vector<Ref> mesh_backward(Emitter& emit, BackwardInput& in, const Ref& g) {
  const Op& op = *in.node.op;
  if (op.name == "mesh.embedding") return embedding_backward(emit, in);
  if (op.name.starts_with("mesh.flash_attention")) return ring_attention_backward(emit, in, g);
  if (op.name == "mesh.log_softmax" || op.name == "mesh.all_reduce") return {g};
  if (op.name == "mesh.nll_loss")
    return {nll_loss_backward(emit, in.saved_arg(0), in.saved_arg(1), in.saved_result(1), g), {}};
  MeshKernels mesh(emit, dimension_of(op));
  if (op.name == "mesh.copy" && op.args.size() == 2) return {mesh.all_reduce(g)};
  const Layout& own = in.node.in[0];
  if (op.name == "mesh.copy" && std::get<std::string>(op.args[2].value) == "share")
    return {mesh.copy("aten.div.Scalar", g, contiguous_layout(own.sizes, own.dtype))};
  if (op.name == "mesh.copy") return {mesh.copy("aten.clone.default", g, contiguous_layout(own.sizes, own.dtype))};
  if (op.name == "mesh.all_to_all") return {mesh.all_to_all(g, own.sizes[0], true)};
  const auto dim = static_cast<std::int32_t>(int_arg(op, 2, "dim", 0));
  const std::int64_t whole = int_arg(op, 3, "whole", 0);
  if (op.name == "mesh.reduce_scatter" || op.name == "mesh.part") return {mesh.all_gather(g, dim, whole)};
  if (std::get<std::string>(op.args[4].value) == "reduce_scatter") return {mesh.reduce_scatter(g, dim, whole)};
  return {mesh.copy("aten.clone.default", g, contiguous_layout(own.sizes, own.dtype))};
}

}  // namespace lowering
}  // namespace foreshard
