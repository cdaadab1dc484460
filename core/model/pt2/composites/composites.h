// Composite operators of an exported program, written as eager PyTorch runs them on the chosen device: linear becomes
// views and addmm, conv2d convolution, batch_norm cuDNN's or the native kernel, attention the kernel that is chosen.
//
// One row per operator in pt2_composites.cpp: its name and the function that writes it. A function that meets a form
// nobody rewrites returns nothing, and the operator stays whole. Internal to the reader of .pt2 archives.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/model/pt2/composites/composite_call.h"

namespace foreshard::pt2 {

class CompositeWriter {
 public:
  CompositeWriter(families::ProgramWriter& writer, Model& model, const ProgramOptions& options)
      : writer_(writer), model_(model), options_(options), device_(options.device) {}

  static bool knows(std::string_view name);

  /// Writes `node`: a result for each of `described`, its results as the archive describes them.
  std::optional<std::vector<Bound>> write(const Pt2Node& node, std::string_view name, const Names& names,
                                          const std::vector<families::Tensor>& described);

  /// Autocast casts the inputs of matrix products down, of losses and norms up; the archive does not write the casts.
  void cast_inputs(const Pt2Node& node, std::string_view name, DType low, Names& names);

  /// A result of the writer under another operator's name (same form, same arguments).
  Bound bound_to(const families::Tensor& tensor, std::string_view rename = {});

 private:
  using Tensor = families::Tensor;
  using Dims = families::Dims;

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
  std::optional<Bound> softmax(const Call& call);
  std::optional<Bound> log_softmax(const Call& call);
  std::optional<Bound> cross_entropy(const Call& call);
  Tensor smoothed(const Tensor& log, const Tensor& target, const Tensor& loss, double smoothing, std::int64_t ignored);
  std::optional<Bound> attention(const Call& call);
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
  const ProgramOptions& options_;
  ProgramDevice device_;
};

}  // namespace foreshard::pt2
