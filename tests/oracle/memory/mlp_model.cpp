#include "tests/oracle/memory/mlp_model.h"

#include <string>
#include <vector>

#include "core/model/families/family.h"

namespace foreshard::oracle {

using families::LinearModule;
using families::ModelTree;
using families::ProgramWriter;
using families::Tensor;
using families::write_linear;

Model build_mlp(const Json& config, const ModelOptions& options, const ProgramOptions& program) {
  const auto dim = config.at("dim").get<std::int64_t>(), hidden = config.at("hidden").get<std::int64_t>();
  const bool bias = config.value("bias", true);
  const DType created = options.dtype.value_or(DType::Float32);
  Model model;
  model.architecture = "mlp";
  model.block_class = "Block";
  model.tokens_per_batch = options.batch * options.seq;
  model.compute_dtype = program.compute_dtype.value_or(created);

  struct Block {
    ModuleId module;
    LinearModule up, down;
  };
  ModelTree tree(model, created);
  const ModuleId root = tree.module({}, "", "Mlp");
  const LinearModule first = tree.linear(root, "inp", dim, dim, true);
  const ModuleId list = tree.module(root, "layers", "ModuleList");
  std::vector<Block> blocks;
  for (std::int64_t i = 0; i < config.at("layers").get<std::int64_t>(); ++i) {
    const ModuleId block = tree.module(list, std::to_string(i), "Block");
    const LinearModule up = tree.linear(block, "up", dim, hidden, bias);
    blocks.push_back({block, up, tree.linear(block, "down", hidden, dim, bias)});
  }
  const LinearModule head = tree.linear(root, "head", dim, dim, true);

  ProgramWriter writer(model, model.compute_dtype, families::kernels_of(options, program));
  writer.enter(root);
  const Tensor batch = writer.input("x", {options.batch * options.seq, dim}, DType::Float32);
  Tensor x = write_linear(writer, first, writer.to(batch, model.compute_dtype));
  for (const Block& block : blocks) {
    const Tensor up = write_linear(writer, block.up, x);
    writer.enter(block.module);
    const Tensor active = writer.unary("aten.relu.default", up);
    const Tensor down = write_linear(writer, block.down, active);
    writer.enter(block.module);
    x = writer.add(x, down);
  }
  const Tensor y = write_linear(writer, head, x);
  writer.enter(root);
  const Tensor loss = writer.sum(y);
  model.has_loss = true;
  model.outputs = {ValueId(loss.index), ValueId(y.index)};
  return model;
}

}  // namespace foreshard::oracle
