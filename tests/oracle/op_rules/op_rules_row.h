// One row of oracle/op_rules against the operator rules: the program that its forward kernels are, and what the rules
// say of it.
//
// A row states kernels with shapes but not their constants (dimensions, steps): those are inferred here from shapes,
// by what ATen's operators are, never by the rules that are being compared.
#pragma once

#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include "core/lowering/lowering_tape.h"
#include "tests/oracle/oracle.h"

namespace foreshard::oracle {

/// What differs first, as `foreshard-oracle` prints it.
struct RowDiffers : std::runtime_error {
  RowDiffers(std::string at, std::string stated, std::string found)
      : std::runtime_error(at), place(std::move(at)), expected(std::move(stated)), got(std::move(found)) {}
  std::string place, expected, got;
};

/// "aten.view" of a recording -> "aten.view.default".
std::string full_kernel_name(const std::string& recorded);
/// "aten.add_.Tensor": writes into its first tensor.
bool writes_in_place(const std::string& name);

/// Several tensors of one storage, shape and type may stand for what a row names (the halves of a split): at that
/// decision another than the first unread one is taken.
struct Reading {
  std::size_t decision = 0;
  std::size_t choice = 0;
};

/// The forward kernels of a row as a Model. Throws RowDiffers where the row does not fit itself.
class OpRulesProgram {
 public:
  explicit OpRulesProgram(const Json& row, Reading reading = {});

  const Model& model() const { return model_; }
  const std::vector<lowering::Layout>& inputs() const { return inputs_; }  // parallel to Model::params
  /// Labels of Model::values, parallel; the same label twice is the same storage twice.
  const std::vector<std::string>& labels() const { return labels_; }
  /// Where the row states the value, parallel: "forward[2].out[0]".
  const std::vector<std::string>& places() const { return places_; }
  /// A result of the row: a value, or a parameter that is handed on.
  const std::vector<Arg>& results() const { return results_; }
  /// How many tensors could be meant, wherever one is named.
  const std::vector<std::size_t>& decisions() const { return decisions_; }
  /// Copies that autograd made for itself of what is written over next: no operators of the program.
  const std::vector<std::string>& own_copies() const { return own_copies_; }

 private:
  struct Known {
    std::string label;
    Shape shape;
    std::string dtype;
    Arg arg;
    int kernel = -1;  // which made it
    int uses = 0;
  };

  void add_input(const Json& input);
  void add_kernel(std::size_t index, const Json& kernel);
  void check_allocations(std::size_t index, const Json& kernel) const;
  Arg resolve(const Json& tensor, const std::string& place);
  Arg made_elsewhere(const Json& tensor);
  ValueId add_value(const std::string& label, const Shape& shape, const std::string& dtype, const std::string& place,
                    int kernel);
  bool is_constant(const Arg& arg) const;
  bool knows(const std::string& label) const;
  bool copies_for_autograd(std::size_t index) const;

  const Json& row_;
  Reading reading_;
  std::vector<std::size_t> decisions_;
  std::vector<std::string> own_copies_;
  Model model_;
  std::vector<lowering::Layout> inputs_;
  std::vector<std::string> labels_, places_;
  std::vector<Arg> results_;
  std::vector<Known> known_;
  std::string previous_;
};

/// Throws RowDiffers where a kernel cannot give what the row says it gives: a view of another size, say.
void check_recorded_kernel(const Json& kernel, const std::string& place);

DType recorded_dtype(const std::string& name);

/// Everything the row states: aliases, strides and gradients of results; saved tensors in order, with shape, type and
/// whose they are; kernels of backward in order, each with what goes in and comes out; gradients; bytes and FLOPs.
RowResult compare_op_rules_row(const Json& row);

}  // namespace foreshard::oracle
