// einsum of two tensors as ATen writes it (Linear.cpp: einsum, sumproduct_pair): every operand gets all labels in one
// order, the labels that both have become the batch, those of one side rows or columns, the rest is summed by a
// product. Repeated labels, ellipses, sums over one operand alone and other numbers of operands stay whole.
#include <algorithm>
#include <string>

#include "core/model/pt2/composites.h"

namespace foreshard::pt2 {
namespace {

using families::Dims;
using families::ProgramWriter;
using families::Tensor;

struct Equation {
  std::string left, right, out, labels;  // labels: out's, then the summed ones
};

std::optional<Equation> parse(std::string text) {
  text.erase(std::remove(text.begin(), text.end(), ' '), text.end());
  const std::size_t comma = text.find(','), arrow = text.find("->");
  if (comma == std::string::npos || text.find(',', comma + 1) != std::string::npos) return std::nullopt;
  Equation made{text.substr(0, comma), text.substr(comma + 1, arrow == std::string::npos ? arrow : arrow - comma - 1),
                arrow == std::string::npos ? "" : text.substr(arrow + 2), ""};
  std::string all = made.left + made.right;
  const auto is_label = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); };
  if (!std::all_of(all.begin(), all.end(), is_label)) return std::nullopt;
  std::sort(all.begin(), all.end());
  for (std::string side : {made.left, made.right, made.out}) {
    std::sort(side.begin(), side.end());
    if (std::adjacent_find(side.begin(), side.end()) != side.end()) return std::nullopt;
  }
  if (arrow == std::string::npos)  // what appears once, in alphabetical order
    for (const char c : all)
      if (std::count(all.begin(), all.end(), c) == 1) made.out += c;
  made.labels = made.out;
  for (const char c : all)
    if (made.labels.find(c) == std::string::npos) made.labels += c;
  if (made.labels.size() > static_cast<std::size_t>(Dims::kMaxRank)) return std::nullopt;
  for (const char c : made.out)
    if (all.find(c) == std::string::npos) return std::nullopt;
  return made;
}

/// The operand with a dimension for every label: those that it lacks are ones.
Tensor with_all_labels(ProgramWriter& writer, Tensor x, const std::string& own, const std::string& labels) {
  Dims order;
  int next = x.sizes.rank();
  for (const char label : labels) {
    const std::size_t at = own.find(label);
    if (at == std::string::npos) x = writer.unsqueeze(x, x.sizes.rank());
    order.insert(order.rank(), at == std::string::npos ? next++ : static_cast<std::int64_t>(at));
  }
  return writer.permute(x, order);
}

Tensor reshaped(ProgramWriter& writer, const Tensor& x, const Dims& sizes) {
  return ProgramWriter::can_view(x, sizes) ? writer.view(x, sizes) : writer.unsafe_view(writer.clone(x), sizes);
}

/// The dimensions of a product, by what they are.
struct Roles {
  Dims batch, rows, columns, summed;
  static Dims joined(std::initializer_list<const Dims*> parts) {
    Dims all;
    for (const Dims* part : parts)
      for (int i = 0; i < part->rank(); ++i) all.insert(all.rank(), (*part)[i]);
    return all;
  }
};

std::int64_t product(const Dims& dims, const Tensor& x) {
  std::int64_t n = 1;
  for (int i = 0; i < dims.rank(); ++i) n *= x.sizes[static_cast<int>(dims[i])];
  return n;
}

}  // namespace

std::optional<Bound> CompositeWriter::einsum(const Call& call) {
  const Pt2Arg* text = call.input("equation");
  const Pt2Arg* list = call.input("tensors");
  if (text == nullptr || list == nullptr || list->items.size() != 2) return std::nullopt;
  const auto equation = parse(text->text);
  if (!equation) return std::nullopt;
  const Tensor* operands[2] = {};
  for (int i = 0; i < 2; ++i) {
    const auto found = call.names.find(list->items[static_cast<std::size_t>(i)].text);
    if (found == call.names.end() || !found->second.exact) return std::nullopt;
    operands[i] = &found->second.tensor;
    if (operands[i]->sizes.rank() != static_cast<int>((i == 0 ? equation->left : equation->right).size()))
      return std::nullopt;
  }
  if (operands[0]->dtype != operands[1]->dtype || operands[0]->sizes.product() == 0) return std::nullopt;
  const auto size_of = [&](int side, char label) {
    const std::size_t at = (side == 0 ? equation->left : equation->right).find(label);
    return at == std::string::npos ? std::int64_t{1} : operands[side]->sizes[static_cast<int>(at)];
  };
  Roles roles;
  for (std::size_t i = 0; i < equation->labels.size(); ++i) {
    const std::int64_t left = size_of(0, equation->labels[i]), right = size_of(1, equation->labels[i]);
    const auto dim = static_cast<std::int64_t>(i);
    if (left != 1 && right != 1 && left != right) return std::nullopt;
    if (i >= equation->out.size()) {
      if ((left == 1) != (right == 1)) return std::nullopt;  // summed before the product
      roles.summed.insert(roles.summed.rank(), dim);
    } else {
      Dims& role = left != 1 && right != 1 ? roles.batch : left != 1 ? roles.rows : roles.columns;
      role.insert(role.rank(), dim);
    }
  }
  const Tensor a = with_all_labels(writer_, *operands[0], equation->left, equation->labels);
  const Tensor b = with_all_labels(writer_, *operands[1], equation->right, equation->labels);
  const Tensor left = writer_.permute(a, Roles::joined({&roles.batch, &roles.rows, &roles.summed, &roles.columns}));
  const std::int64_t batch = product(roles.batch, a), rows = product(roles.rows, a), summed = product(roles.summed, a),
                     columns = product(roles.columns, b);
  const Tensor flat = reshaped(writer_, left, {batch, rows, summed});
  const Tensor right = writer_.permute(b, Roles::joined({&roles.batch, &roles.summed, &roles.columns, &roles.rows}));
  const Tensor made = writer_.bmm(flat, reshaped(writer_, right, {batch, summed, columns}));
  const Dims order = Roles::joined({&roles.batch, &roles.rows, &roles.summed, &roles.columns});
  Dims apart, back = order, sizes;
  for (int i = 0; i < order.rank(); ++i) {
    const auto dim = static_cast<int>(order[i]);
    const bool is_summed = dim >= static_cast<int>(equation->out.size());
    const std::int64_t size = is_summed ? 1 : std::max(a.sizes[dim], b.sizes[dim]);
    apart.insert(apart.rank(), size);
    back[dim] = i;
  }
  const Tensor placed = writer_.permute(writer_.view(made, apart), back);
  for (std::size_t i = 0; i < equation->out.size(); ++i) sizes.insert(sizes.rank(), placed.sizes[static_cast<int>(i)]);
  return bound_to(writer_.view(placed, sizes));
}

}  // namespace foreshard::pt2
