// einsum as ATen writes it (Linear.cpp: einsum, sumproduct_pair): every operand gets all labels in one order, the
// result's first; two operands at a time become one, by a product of matrices where a label is summed, element by
// element where none is. What is left is summed at the end.
#include <algorithm>
#include <array>
#include <cctype>
#include <string>

#include "core/model/pt2/composites/composite_call.h"

namespace foreshard::pt2 {
namespace {

using families::Dims;
using families::ProgramWriter;
using families::Tensor;

constexpr char kEllipsis = '.';  // one for each of its dimensions is written as a control character
char ellipsis_label(int dim) { return static_cast<char>(dim + 1); }

struct Equation {
  std::vector<std::string> operands;
  std::string labels;   // out's, then the summed ones
  std::size_t out = 0;  // how many of them are out's
};

/// The labels of one side, an ellipsis as `dims` of its own.
std::optional<std::string> expanded(const std::string& side, int dims, int most) {
  std::string out;
  for (std::size_t i = 0; i < side.size(); ++i) {
    if (side[i] == kEllipsis) {
      if (side.compare(i, 3, "...") != 0) return std::nullopt;
      for (int d = most - dims; d < most; ++d) out += ellipsis_label(d);
      i += 2;
    } else if (std::isalpha(static_cast<unsigned char>(side[i])) != 0) {
      out += side[i];
    } else {
      return std::nullopt;
    }
  }
  return out;
}

std::optional<Equation> parse(std::string text, const std::vector<Tensor>& operands) {
  text.erase(std::remove(text.begin(), text.end(), ' '), text.end());
  const std::size_t arrow = text.find("->");
  std::vector<std::string> sides{""};
  for (const char c : text.substr(0, arrow)) c == ',' ? void(sides.emplace_back()) : void(sides.back() += c);
  if (sides.size() != operands.size()) return std::nullopt;
  const auto letters = [](const std::string& side) {
    return static_cast<int>(std::count_if(side.begin(), side.end(), [](char c) { return c != kEllipsis; }));
  };
  int most = 0;
  for (std::size_t i = 0; i < sides.size(); ++i)
    if (sides[i].find(kEllipsis) != std::string::npos)
      most = std::max(most, operands[i].sizes.rank() - letters(sides[i]));
  Equation made;
  std::string all;
  for (std::size_t i = 0; i < sides.size(); ++i) {
    const auto side = expanded(sides[i], operands[i].sizes.rank() - letters(sides[i]), most);
    if (!side || static_cast<int>(side->size()) != operands[i].sizes.rank()) return std::nullopt;
    made.operands.push_back(*side);
    all += *side;
  }
  std::sort(all.begin(), all.end());
  if (arrow != std::string::npos) {
    const auto side = expanded(text.substr(arrow + 2), most, most);
    if (!side) return std::nullopt;
    made.labels = *side;
  } else {  // what appears once, in alphabetical order
    for (const char c : all)
      if (c <= most || std::count(all.begin(), all.end(), c) == 1)
        if (made.labels.find(c) == std::string::npos) made.labels += c;
  }
  made.out = made.labels.size();
  for (const char c : made.labels)
    if (all.find(c) == std::string::npos || std::count(made.labels.begin(), made.labels.end(), c) != 1)
      return std::nullopt;
  for (const char c : all)
    if (made.labels.find(c) == std::string::npos) made.labels += c;
  if (made.labels.size() > kMaxDims) return std::nullopt;
  return made;
}

/// The operand with a dimension for every label: those that it lacks are ones, of one that it has twice the diagonal.
std::optional<Tensor> with_all_labels(const Call& c, Tensor x, std::string own, const std::string& labels) {
  for (std::size_t i = 0; i < own.size(); ++i) {
    for (std::size_t j = own.find(own[i], i + 1); j != std::string::npos; j = own.find(own[i], i + 1)) {
      const auto one = static_cast<int>(i), two = static_cast<int>(j);
      if (x.sizes[one] != x.sizes[two]) return std::nullopt;
      Dims sizes = x.sizes, strides = x.strides;
      const std::int64_t size = sizes[one], step = strides[one] + strides[two];
      for (Dims* dims : {&sizes, &strides}) {
        dims->erase(two);
        dims->erase(one);
      }
      sizes.insert(sizes.rank(), size);
      strides.insert(strides.rank(), step);
      x = c.writer.emit("aten.diagonal.default",
                        {ProgramWriter::arg(x), Arg{std::int64_t{0}}, Arg{std::int64_t{one}}, Arg{std::int64_t{two}}},
                        {}, {{sizes, strides, x.dtype}})[0];
      const char label = own[i];
      own.erase(j, 1);
      own.erase(i, 1);
      own += label;
    }
  }
  Dims order;
  int next = x.sizes.rank();
  for (const char label : labels) {
    const std::size_t at = own.find(label);
    if (at == std::string::npos) x = c.writer.unsqueeze(x, x.sizes.rank());
    order.insert(order.rank(), at == std::string::npos ? next++ : static_cast<std::int64_t>(at));
  }
  return c.writer.permute(x, order);
}

Dims joined(std::initializer_list<const Dims*> parts) {
  Dims all;
  for (const Dims* part : parts)
    for (int i = 0; i < part->rank(); ++i) all.insert(all.rank(), (*part)[i]);
  return all;
}

std::int64_t product(const Dims& dims, const Tensor& x) {
  std::int64_t n = 1;
  for (int i = 0; i < dims.rank(); ++i) n *= x.sizes[static_cast<int>(dims[i])];
  return n;
}

/// sumproduct_pair: the labels that both have become the batch, those of one side rows or columns.
Tensor pair_product(const Call& c, Tensor a, Tensor b, const Dims& summed_labels) {
  if (summed_labels.rank() == 0) return c.two("aten.mul.Tensor", a, b);
  const auto is_summed = [&](int dim) {
    for (int i = 0; i < summed_labels.rank(); ++i)
      if (summed_labels[i] == dim) return true;
    return false;
  };
  Dims batch, rows, columns, summed;
  for (int dim = 0; dim < a.sizes.rank(); ++dim) {
    const bool left = a.sizes[dim] != 1, right = b.sizes[dim] != 1;
    Dims& role = is_summed(dim) ? summed : left && right ? batch : left ? rows : columns;
    role.insert(role.rank(), dim);
  }
  const std::int64_t count = product(batch, a), height = product(rows, a), inner = product(summed, a),
                     width = product(columns, b);
  const Tensor left = c.writer.permute(a, joined({&batch, &rows, &summed, &columns}));
  const Tensor flat = c.reshape(left, {count, height, inner});
  const Tensor right = c.writer.permute(b, joined({&batch, &summed, &columns, &rows}));
  const Tensor made = c.writer.bmm(flat, c.reshape(right, {count, inner, width}));
  const Dims order = joined({&batch, &rows, &summed, &columns});
  Dims apart, back = order;
  for (int i = 0; i < order.rank(); ++i) {
    const auto dim = static_cast<int>(order[i]);
    apart.insert(apart.rank(), is_summed(dim) ? 1 : std::max(a.sizes[dim], b.sizes[dim]));
    back[dim] = i;
  }
  return c.writer.permute(c.writer.view(made, apart), back);
}

/// How many operands have a label, by label.
using Counts = std::array<int, kMaxDims>;

Tensor contracted(const Call& c, Tensor a, Tensor b, std::size_t out, Counts& counts) {
  Dims both, first, second;
  for (int dim = static_cast<int>(out); dim < a.sizes.rank(); ++dim) {
    int& count = counts[static_cast<std::size_t>(dim)];
    const bool left = a.sizes[dim] != 1, right = b.sizes[dim] != 1;
    if (left && right) {
      if (--count == 1) both.insert(both.rank(), dim), count = 0;
    } else if (count == 1 && (left || right)) {
      Dims& alone = left ? first : second;
      alone.insert(alone.rank(), dim);
      count = 0;
    }
  }
  if (first.rank() > 0) a = c.reduced("aten.sum.dim_IntList", a, first, true);
  if (second.rank() > 0) b = c.reduced("aten.sum.dim_IntList", b, second, true);
  return pair_product(c, a, b, both);
}

}  // namespace

CompositeResults einsum(const Call& c) {
  const Pt2Arg* text = c.input("equation");
  const auto operands = c.tensors("tensors");
  if (text == nullptr || !operands || operands->empty() || !c.list("path").empty()) return std::nullopt;
  for (const Tensor& x : *operands)
    if (x.sizes.product() == 0 || x.dtype != operands->front().dtype) return std::nullopt;
  const auto equation = parse(text->text, *operands);
  if (!equation) return std::nullopt;
  Counts counts{};
  std::vector<Tensor> all;
  for (std::size_t i = 0; i < operands->size(); ++i) {
    const auto x = with_all_labels(c, (*operands)[i], equation->operands[i], equation->labels);
    if (!x) return std::nullopt;
    all.push_back(*x);
    for (int dim = 0; dim < x->sizes.rank(); ++dim) counts[static_cast<std::size_t>(dim)] += x->sizes[dim] != 1 ? 1 : 0;
  }
  Tensor made = all[0];
  for (std::size_t i = 1; i < all.size(); ++i) made = contracted(c, made, all[i], equation->out, counts);
  const auto out = static_cast<int>(equation->out);
  if (made.sizes.rank() == out) return {{made}};
  if (all.size() > 1) {
    Dims sizes;
    for (int i = 0; i < out; ++i) sizes.insert(i, made.sizes[i]);
    return {{c.writer.view(made, sizes)}};
  }
  Dims rest;
  for (int i = out; i < made.sizes.rank(); ++i) rest.insert(rest.rank(), i);
  return {{c.reduced("aten.sum.dim_IntList", made, rest, false)}};
}

}  // namespace foreshard::pt2
