// Products of matrices whose operands would have two dtypes: PyTorch ends at them, a plan is refused (F2-27).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/plan/fsdp2/run.h"

namespace foreshard::fsdp2 {

/// Borrows the run.
class Products {
 public:
  explicit Products(const Run& run);

  /// An operand of another dtype than the parameters. `inputs`: of the node's, as DType; -1: unknown.
  Result<void> check_inputs(const GraphNode& node, const std::vector<std::int8_t>& inputs, DType params) const;
  /// A matrix and its bias of two dtypes, as where one of them is ignored.
  Result<void> check_params(const GraphNode& node) const;

 private:
  DType dtype_of(ParamId param) const;
  /// One whose dtype differs from the first one's; invalid: none. Of numbers: what is packed has operators of its own.
  ParamId clash(const std::vector<ParamId>& params) const;
  /// An error where they clash.
  Result<void> check(const std::string& module, const std::vector<ParamId>& params) const;

  const Run& run_;
  std::vector<bool> uses_matrix_;  // by ModuleId: a Linear or convolution in its subtree
};

}  // namespace foreshard::fsdp2
