#include "core/model/families/family.h"

#include "core/model/families/losses.h"
#include "core/model/json_input.h"

#include <algorithm>
#include <cmath>

namespace foreshard::families {
namespace {

// Elements of one tensor, and of all parameters, must stay below this: bytes and FLOPs of 64 bits count them.
constexpr std::int64_t kMaxNumel = std::int64_t{1} << 52;

constexpr std::string_view kWrapped = "model";  // what a script's wrapper calls the model

bool exceeds(std::int64_t a, std::int64_t b, std::int64_t c) {
  std::int64_t product = 0;
  return __builtin_mul_overflow(a, b, &product) || __builtin_mul_overflow(product, c, &product) || product > kMaxNumel;
}

}  // namespace

ProgramWriter::Kernels kernels_of(const ModelOptions& options, const ProgramOptions& program) {
  using Float8 = ProgramWriter::Float8;
  const std::string& float8 = options.float8;
  return {.fused_dropout = program.device == ProgramDevice::Cuda && !program.recorded,
          .wide_norm_statistics = program.device != ProgramDevice::Cpu,
          .integer_histogram = program.device != ProgramDevice::Cpu,
          .autocast = program.autocast,
          .float8 = float8 == "none"         ? Float8::None
                    : float8 == "rowwise"    ? Float8::Rowwise
                    : float8 == "tensorwise" ? Float8::Tensorwise
                                             : Float8::RowwiseWideGradient,
          .gathers_float8 = program.gathers_float8 ? program.even_shards : 0,
          .wide_autocast = program.device != ProgramDevice::Cpu};
}

std::string ModelTree::fqn(ModuleId owner, std::string_view name) const {
  const std::string& parent = model_.modules[owner.index()].fqn;
  std::string text;
  text.reserve(parent.size() + name.size() + 1);
  if (!parent.empty()) (text += parent) += '.';
  return text += name;
}

ModuleId ModelTree::module(ModuleId parent, std::string_view name, std::string_view class_name,
                           std::vector<std::string> bases) {
  if (!parent.valid() && !model_.modules.empty()) {  // in a script's wrapper
    parent = ModuleId(0);
    name = kWrapped;
  }
  const ModuleId id(model_.modules.size());
  std::string full = parent.valid() ? fqn(parent, name) : std::string();
  ModuleInfo& info = model_.modules.emplace_back();
  info.fqn = std::move(full);
  info.class_name = class_name;
  info.bases = std::move(bases);
  info.bases.emplace_back("Module");
  info.parent = parent;
  if (parent.valid()) model_.modules[parent.index()].children.push_back(id);
  return id;
}

ParamId ModelTree::param(ModuleId owner, std::string_view name, Shape shape) {
  const ParamId id(model_.params.size());
  ParamInfo& info = model_.params.emplace_back();
  info.fqn = fqn(owner, name);
  info.shape = std::move(shape);
  info.dtype = dtype_;
  info.owner = owner;
  model_.modules[owner.index()].params.push_back(id);
  return id;
}

ParamId ModelTree::shared(ModuleId owner, std::string_view name, ParamId of) {
  const ParamId id = param(owner, name, model_.params[of.index()].shape);
  model_.params[id.index()].shares = of;
  return id;
}

std::int32_t ModelTree::buffer(ModuleId owner, std::string_view name, Shape shape, DType dtype, bool persistent) {
  model_.buffers.push_back({fqn(owner, name), std::move(shape), dtype, owner, persistent});
  return static_cast<std::int32_t>(model_.buffers.size()) - 1;
}

LinearModule ModelTree::linear(ModuleId parent, std::string_view name, std::int64_t in, std::int64_t out, bool bias) {
  LinearModule linear;
  linear.module = module(parent, name, "Linear");
  linear.weight = param(linear.module, "weight", {out, in});
  if (bias) linear.bias = param(linear.module, "bias", {out});
  return linear;
}

LayerNormModule ModelTree::layer_norm(ModuleId parent, std::string_view name, std::int64_t width) {
  LayerNormModule norm;
  norm.module = module(parent, name, "LayerNorm");
  norm.weight = param(norm.module, "weight", {width});
  norm.bias = param(norm.module, "bias", {width});
  return norm;
}

Tensor write_linear(ProgramWriter& w, const LinearModule& linear, const Tensor& x) {
  w.enter(linear.module);
  return w.linear(x, linear.weight, linear.bias);
}

Tensor write_output_layer(ProgramWriter& w, const LinearModule& linear, const Tensor& x) {
  w.enter(linear.module);
  return w.linear_as_stored(x, linear.weight, linear.bias);
}

Tensor write_layer_norm(ProgramWriter& w, const LayerNormModule& norm, const Tensor& x, double eps) {
  w.enter(norm.module);
  return w.layer_norm(x, norm.weight, norm.bias, eps);
}

Tensor write_dropout(ProgramWriter& w, ModuleId dropout, const Tensor& x, double p) {
  w.enter(dropout);
  return w.dropout(x, p);
}

Tensor write_heads(ProgramWriter& w, const Tensor& x, std::int64_t head_dim) {
  return w.transpose(w.view(x, {x.sizes[0], x.sizes[1], -1, head_dim}), 1, 2);
}

std::int64_t choose_seq(const FamilyInput& input, std::int64_t most, std::string_view key) {
  const std::int64_t parts = input.program.sequence_parts, seq = input.options.seq * parts;
  if (seq >= 1 && seq <= most) return input.options.seq;
  if (seq > most && !input.options.seq_given && parts == 1) return most;
  input.config.fail_with(ErrorCode::OutOfRange, key, "model.seq does not fit this model",
                         "from 1 to " + std::to_string(most) + " (" + std::string(key) + ")", std::to_string(seq),
                         "choose a shorter sequence");
  return 1;
}

void check_products(const FamilyInput& input, std::int64_t seq, std::int64_t width, std::int64_t heads) {
  const std::int64_t batch = input.options.batch;
  if (batch < 1 || batch > kMaxBatch) {
    input.config.fail_with(batch < 1 ? ErrorCode::OutOfRange : ErrorCode::TooLarge, "model.batch",
                           "the batch is out of range", "from 1 to " + std::to_string(kMaxBatch),
                           std::to_string(batch));
    return;
  }
  if (exceeds(batch, seq, width) || exceeds(batch * heads, seq, seq)) {
    input.config.fail_with(ErrorCode::TooLarge, "model.batch",
                           "batch x sequence gives tensors beyond what can be counted",
                           "fewer than 2^52 elements in a tensor", std::to_string(batch) + " x " + std::to_string(seq),
                           "choose a smaller batch or sequence");
  }
}

Model start_model(const FamilyInput& input, std::string_view architecture, std::string_view block_class, DType created,
                  std::int64_t seq) {
  Model model;
  model.architecture = architecture;
  model.block_class = block_class;
  model.tokens_per_batch = input.options.batch * seq;
  model.compute_dtype = input.program.compute_dtype.value_or(created);
  if (wraps_for_loss(input.options)) ModelTree(model, created).module({}, "", "WithLoss");
  return model;
}

bool is_body(ConfigReader& config, std::string_view class_name, std::string_view body) {
  const std::vector<std::string> names = config.texts("architectures");
  if (config.failed() || names.empty() || names.front() == class_name) return false;
  if (names.front() == body) return true;
  config.fail_with(ErrorCode::Unsupported, "architectures", "this head of the architecture is not built",
                   std::string(class_name) + " or " + std::string(body), in_quotes(names.front()),
                   "export the model: foreshard export-script");
  return false;
}

PoolerModules add_pooler(ModelTree& tree, ModuleId parent, std::string_view class_name, std::int64_t width,
                         std::int64_t pooled, Activation activation) {
  PoolerModules m;
  m.module = tree.module(parent, "pooler", class_name);
  m.dense = tree.linear(m.module, "dense", width, pooled, true);
  m.activation = tree.module(m.module, "activation", activation_class(activation));
  return m;
}

Tensor write_pooler(ProgramWriter& w, const PoolerModules& m, Activation activation, const Tensor& x) {
  w.enter(m.module);
  const Tensor first = w.select(x, 1, 0);
  w.hold(first);
  const Tensor pooled = write_linear(w, m.dense, first);
  w.enter(m.activation);
  return write_activation(w, activation, pooled);
}

Result<void> finish_body(Model& model, ProgramWriter& w, const FamilyInput& input, const std::vector<Tensor>& outputs) {
  const std::string& kind = input.options.loss;
  if (kind != "auto" && kind != "none")
    return fail({ErrorCode::Unsupported, "a body has no classes that a cross entropy could be taken of",
                 input.config.file(), "model.loss", "auto or none", in_quotes(kind),
                 "name an architecture with a head, or export your own"});
  w.enter(ModuleId(0));
  w.leave_autocast();
  model.loss_begin = static_cast<std::int32_t>(model.ops.size());
  const Tensor loss = w.sum(kind == "none" ? outputs.front() : outputs.back());
  model.has_loss = true;
  model.outputs = {ValueId(loss.index)};
  for (const Tensor& output : outputs) model.outputs.emplace_back(output.index);
  return {};
}

void check_architecture(ConfigReader& config, std::string_view class_name) {
  const std::vector<std::string> names = config.texts("architectures");
  if (config.failed() || names.empty() || names.front() == class_name) return;
  config.fail_with(ErrorCode::Unsupported, "architectures", "this head of the architecture is not built",
                   std::string(class_name), in_quotes(names.front()), "use the configuration of the language model");
}

}  // namespace foreshard::families
