// One composite operator of an archive while it is written as its parts: its arguments by name, its results as the
// archive describes them, and short ways to write the parts. Internal to the reader of .pt2 archives.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/model/families/config_model.h"
#include "core/model/model.h"
#include "core/model/pt2/program.h"
#include "core/operators/program_writer.h"

namespace foreshard::pt2 {

/// What a graph name stands for while operators are written.
struct Bound {
  Arg arg;
  families::Tensor tensor;  // sizes, strides, dtype; kind and index as in `arg`
  bool exact = false;       // `tensor` holds it: a tensor of at most Dims::kMaxRank dimensions
};
using Names = std::unordered_map<std::string, Bound>;

struct Call {
  using Tensor = families::Tensor;
  using Dims = families::Dims;

  const Pt2Node& node;
  const Names& names;
  const std::vector<Tensor>& results;  // as the archive describes them
  families::ProgramWriter& writer;
  Model& model;
  const ProgramOptions& options;
  const Tensor& described = results.front();

  // --- arguments ---
  const Pt2Arg* input(std::string_view name) const;
  const Tensor* tensor(std::string_view name) const;                        // nullptr where it is none, or not exact
  std::optional<std::vector<Tensor>> tensors(std::string_view name) const;  // of a list; nullopt: one is not exact
  bool none(std::string_view name) const;                                   // absent or None
  double number(std::string_view name, double otherwise) const;
  std::int64_t integer(std::string_view name, std::int64_t otherwise) const;
  bool flag(std::string_view name, bool otherwise) const { return number(name, otherwise ? 1.0 : 0.0) != 0.0; }
  Dims sizes(std::string_view name, std::int64_t otherwise, int rank) const;  // one number stands for all
  std::vector<std::int64_t> list(std::string_view name) const;                // empty: absent; one number is a list
  /// A dimension of a tensor of this rank, counted from the front.
  int dim(std::string_view name, std::int64_t otherwise, int rank) const;
  bool on_gpu() const { return options.device == ProgramDevice::Cuda; }

  // --- parts ---
  Tensor one(std::string_view op, const Tensor& x) const { return writer.unary(op, x); }
  Tensor two(std::string_view op, const Tensor& a, const Tensor& b) const;  // promoted
  Tensor test(std::string_view op, const Tensor& x, double value) const;    // ne.Scalar and the like
  Tensor num(std::string_view op, const Tensor& x, double value) const;
  Tensor in_place(std::string_view op, const Tensor& x, ArgList rest = {}) const;
  Tensor reduced(std::string_view op, const Tensor& x) const;  // of everything
  Tensor reduced(std::string_view op, const Tensor& x, const Dims& dims, bool keep, ArgList rest = {}) const;
  /// By the operator's `reduction`: none, mean or sum.
  Tensor loss(const Tensor& elements) const;
  Tensor reshape(const Tensor& x, const Dims& sizes) const;  // a view where there is one
  Tensor squeeze(const Tensor& x, int dim) const;
  Tensor broadcast(const Tensor& x, const Dims& sizes) const { return x.sizes == sizes ? x : writer.expand(x, sizes); }
  /// Contiguous results, described by the caller.
  std::vector<Tensor> made(std::string_view op, ArgList args,
                           std::initializer_list<std::pair<Dims, DType>> shapes) const;
  static Bound bound(const Tensor& x) { return {families::ProgramWriter::arg(x), x, true}; }
};

/// Writes one composite: a result for each of the node's, or nothing where the form is one that nobody rewrites.
using CompositeResults = std::optional<std::vector<families::Tensor>>;
struct CompositeRow {
  std::string_view name;
  CompositeResults (*write)(const Call& call);
};

/// The tables, by what they are about.
std::span<const CompositeRow> shape_composites();
std::span<const CompositeRow> loss_composites();
std::span<const CompositeRow> layer_composites();
std::span<const CompositeRow> recurrent_composites();

CompositeResults einsum(const Call& call);  // einsum.cpp

}  // namespace foreshard::pt2
