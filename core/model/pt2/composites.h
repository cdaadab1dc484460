// Composite operators of an exported program, written as eager PyTorch runs them on the chosen device: linear becomes
// views and addmm, conv2d convolution, batch_norm cuDNN's or the native kernel, attention the kernel that is chosen.
//
// One row per operator in pt2_composites.cpp: its name and the function that writes it. A function that meets a form
// nobody rewrites returns nothing, and the operator stays whole. Internal to the reader of .pt2 archives.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>

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

class CompositeWriter {
 public:
  CompositeWriter(families::ProgramWriter& writer, Model& model, ProgramDevice device)
      : writer_(writer), model_(model), device_(device) {}

  static bool knows(std::string_view name);

  /// Writes `node`; `described` is its result as the archive describes it.
  std::optional<Bound> write(const Pt2Node& node, std::string_view name, const Names& names,
                             const families::Tensor& described);

  /// Autocast casts the inputs of matrix products down, of losses and norms up; the archive does not write the casts.
  void cast_inputs(const Pt2Node& node, std::string_view name, DType low, Names& names);

  /// A result of the writer under another operator's name (same form, same arguments).
  Bound bound_to(const families::Tensor& tensor, std::string_view rename = {});

 private:
  using Tensor = families::Tensor;
  using Dims = families::Dims;

  /// The operator that is being written.
  struct Call {
    const Pt2Node& node;
    const Names& names;
    const Tensor& described;

    const Pt2Arg* input(std::string_view name) const;
    const Tensor* tensor(std::string_view name) const;  // nullptr where it is none, or not exact
    bool none(std::string_view name) const;             // absent or None
    double number(std::string_view name, double otherwise) const;
    std::int64_t integer(std::string_view name, std::int64_t otherwise) const;
    Dims sizes(std::string_view name, std::int64_t otherwise, int rank) const;  // one number stands for all
  };
  using Writer = std::optional<Bound> (CompositeWriter::*)(const Call&);
  struct Row {
    std::string_view name;
    Writer write;
  };
  static const Row kRows[];

  bool is_param(const Tensor* x, int rank) const;

  std::optional<Bound> dropout(const Call& call);
  std::optional<Bound> to(const Call& call);
  std::optional<Bound> to_other(const Call& call);
  std::optional<Bound> linear(const Call& call);
  std::optional<Bound> layer_norm(const Call& call);
  std::optional<Bound> rms_norm(const Call& call);
  std::optional<Bound> group_norm(const Call& call);
  std::optional<Bound> batch_norm(const Call& call);
  std::optional<Bound> matmul(const Call& call);
  std::optional<Bound> softmax(const Call& call);
  std::optional<Bound> log_softmax(const Call& call);
  std::optional<Bound> nll_loss(const Call& call);
  std::optional<Bound> cross_entropy(const Call& call);
  Tensor smoothed(const Tensor& log, const Tensor& target, const Tensor& loss, double smoothing, std::int64_t ignored);
  std::optional<Bound> attention(const Call& call);
  std::optional<Bound> convolution(const Call& call);
  std::optional<Bound> transposed_convolution(const Call& call);
  std::optional<Bound> einsum(const Call& call);  // einsum.cpp
  std::optional<Bound> max_pool(const Call& call);
  Tensor pooled(const Tensor& x, const Dims& asked);  // pictures of `asked` lines and columns
  std::optional<Bound> adaptive_average(const Call& call);
  std::optional<Bound> adaptive_average_of_rows(const Call& call);
  std::optional<Bound> pad(const Call& call);
  std::optional<Bound> diff(const Call& call);
  std::optional<Bound> where_scalar(const Call& call);
  std::optional<Bound> grouped_product(const Call& call);

  families::ProgramWriter& writer_;
  Model& model_;
  ProgramDevice device_;
};

}  // namespace foreshard::pt2
