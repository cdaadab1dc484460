// What the model families share while they build a Model from config.json: the tree, attention, activations and losses.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/model/families/config_model.h"
#include "core/model/families/config_reader.h"
#include "core/model/model.h"
#include "core/operators/program_writer.h"
#include "core/result.h"

namespace foreshard::families {

/// Limits of what is built at all: sizes beyond them are an Error before anything is allocated.
inline constexpr std::int64_t kMaxLayers = 2048;
inline constexpr std::int64_t kMaxWidth = 1 << 22;  // hidden, intermediate, heads x head size
inline constexpr std::int64_t kMaxVocabulary = 1 << 26;
inline constexpr std::int64_t kMaxPositions = 1 << 27;
inline constexpr std::int64_t kMaxBatch = 1 << 20;

/// Everything that a family needs to know besides its own keys.
struct FamilyInput {
  const ModelOptions& options;
  const ProgramOptions& program;
  ConfigReader& config;
};

/// What the device's kernels look like to the writer.
ProgramWriter::Kernels kernels_of(const ModelOptions& options, const ProgramOptions& program);
inline ProgramWriter::Kernels kernels_of(const FamilyInput& input) { return kernels_of(input.options, input.program); }

struct LinearModule {
  ModuleId module;
  ParamId weight;
  ParamId bias;  // invalid if there is none
};

struct LayerNormModule {
  ModuleId module;
  ParamId weight, bias;
};

/// Adds modules and parameters in registration order.
class ModelTree {
 public:
  ModelTree(Model& model, DType dtype) : model_(model), dtype_(dtype) {}

  DType dtype() const { return dtype_; }  // that parameters are made in

  ModuleId module(ModuleId parent, std::string_view name, std::string_view class_name,
                  std::vector<std::string> bases = {});
  ParamId param(ModuleId owner, std::string_view name, Shape shape);
  ParamId shared(ModuleId owner, std::string_view name, ParamId of);
  std::int32_t buffer(ModuleId owner, std::string_view name, Shape shape, DType dtype, bool persistent);

  LinearModule linear(ModuleId parent, std::string_view name, std::int64_t in, std::int64_t out, bool bias);
  LayerNormModule layer_norm(ModuleId parent, std::string_view name, std::int64_t width);
  ModuleId dropout(ModuleId parent, std::string_view name) { return module(parent, name, "Dropout", {"_DropoutNd"}); }

 private:
  std::string fqn(ModuleId owner, std::string_view name) const;
  Model& model_;
  DType dtype_;
};

/// Layers as they are called: the module is entered, then its operators are written.
Tensor write_linear(ProgramWriter& writer, const LinearModule& linear, const Tensor& x);
/// The layer that makes logits, which converters to 8 bits leave out.
Tensor write_output_layer(ProgramWriter& writer, const LinearModule& linear, const Tensor& x);
Tensor write_layer_norm(ProgramWriter& writer, const LayerNormModule& norm, const Tensor& x, double eps);
Tensor write_dropout(ProgramWriter& writer, ModuleId dropout, const Tensor& x, double p);

/// [batch, seq, heads x head_dim] -> [batch, heads, seq, head_dim]
Tensor write_heads(ProgramWriter& writer, const Tensor& x, std::int64_t head_dim);

enum class Activation : std::uint8_t {
  Silu,
  Swish,  // the same function, of another class
  Relu,
  ReluSquared,
  Relu6,
  LeakyRelu,
  Gelu,
  GeluClipped,
  GeluNew,
  GeluFast,
  GeluTanh,
  QuickGelu,
  Mish,
  Hardswish,
  Sigmoid,
  Tanh,
  Linear
};

/// Class name that Transformers gives the activation module.
std::string_view activation_class(Activation activation);
Activation read_activation(ConfigReader& config, std::string_view key, std::string_view otherwise);
Tensor write_activation(ProgramWriter& writer, Activation activation, const Tensor& x);

/// Flex attention that nothing compiles: an operator a line of its Python.
inline constexpr std::string_view kUnfusedFlex = "flex_attention_unfused";

enum class AttentionKernel : std::uint8_t { Flash, Efficient, Math, CpuFlash, Eager, Flex };

/// One attention of a model whose layers are all alike.
struct AttentionShape {
  std::int64_t heads = 1, key_value_heads = 1, head_dim = 1;
  double dropout = 0.0;
  double scale = 1.0;
  bool causal = true;
  double score_cap = 0.0;      // 0 = none; only the eager form knows it
  bool wide_softmax = true;    // the library's eager form takes the softmax in float32
  std::int64_t value_dim = 0;  // where a head of values has another size; 0 = head_dim
};

/// PyTorch's choice for model.attention = "sdpa", else the kernel that is asked for, if it can run.
/// `masked`: an explicit mask is given, not only the causal flag.
Result<AttentionKernel> choose_attention(const FamilyInput& input, const AttentionShape& shape, DType dtype,
                                         bool masked);

/// q, k, v as [batch, heads, seq, head_dim] -> [batch, seq, heads, head_dim], contiguous. `mask` only where one is
/// given.
Tensor write_attention(ProgramWriter& writer, AttentionKernel kernel, const AttentionShape& shape, const Tensor& q,
                       const Tensor& k, const Tensor& v, const Tensor* mask);

/// The kernel alone: the result as [batch, heads, seq, head_dim], in the kernel's own layout. A mask of truth values is
/// made additive first.
Tensor write_attention_kernel(ProgramWriter& writer, AttentionKernel kernel, const AttentionShape& shape,
                              const Tensor& q, const Tensor& k, const Tensor& v, const Tensor* mask);

/// cap tanh(x / cap), of scores and logits; nothing for 0.
Tensor write_soft_cap(ProgramWriter& writer, const Tensor& x, double cap);

/// torch.finfo(dtype).min
double lowest_value(DType dtype);

/// Position ids [1, seq].
Tensor write_positions(ProgramWriter& writer, std::int64_t seq);

/// What the library does to get a mask when none is given: asks whether the rows are packed, then builds one if they
/// are (ModelOptions::packed) or the causal flag does not say it all. `window` = 0: every earlier position is seen;
/// kEmptyWindow: a window of no width, which the library makes where a configuration switches windows off but the model
/// builds their mask all the same.
inline constexpr std::int64_t kEmptyWindow = -1;
/// `padding`: the mask [batch, seq] that the script hands.
std::optional<Tensor> write_mask(ProgramWriter& writer, const FamilyInput& input, const std::optional<Tensor>& padding,
                                 const Tensor& positions, std::int64_t window);

/// True if write_mask will build one.
bool needs_mask(const FamilyInput& input, std::int64_t seq, std::int64_t window);

/// Sequence length to build: the option, clamped to `most` if it was not given. Reports an error through the reader.
std::int64_t choose_seq(const FamilyInput& input, std::int64_t most, std::string_view key);

/// Products that must stay countable: activations of `width` per token, attention scores, parameters.
void check_products(const FamilyInput& input, std::int64_t seq, std::int64_t width, std::int64_t heads);

/// A Model with its name, block class and dtypes; `created`: what its parameters are made in. `seq` = 0: no tokens.
Model start_model(const FamilyInput& input, std::string_view architecture, std::string_view block_class, DType created,
                  std::int64_t seq);

/// Architecture name from the file, checked: only this head is built.
void check_architecture(ConfigReader& config, std::string_view class_name);
/// The same where the bare body is built too: true if the file asks for that.
bool is_body(ConfigReader& config, std::string_view class_name, std::string_view body);

/// The first token's vector through a dense layer and an activation.
struct PoolerModules {
  ModuleId module, activation;
  LinearModule dense;
};
PoolerModules add_pooler(ModelTree& tree, ModuleId parent, std::string_view class_name, std::int64_t width,
                         std::int64_t pooled, Activation activation);
Tensor write_pooler(ProgramWriter& writer, const PoolerModules& pooler, Activation activation, const Tensor& x);

/// A body has no loss of its own: the script sums what it returns last, for model.loss = "none" what it returns first.
Result<void> finish_body(Model& model, ProgramWriter& writer, const FamilyInput& input,
                         const std::vector<Tensor>& outputs);

Result<Model> build_llama_family(const FamilyInput& input, std::string_view model_type);
Result<Model> build_gpt2(const FamilyInput& input);
Result<Model> build_bert(const FamilyInput& input);
Result<Model> build_deepseek(const FamilyInput& input, std::string_view model_type);
Result<Model> build_gemma2(const FamilyInput& input);
Result<Model> build_gpt_neox(const FamilyInput& input);
Result<Model> build_opt(const FamilyInput& input);
Result<Model> build_phi3(const FamilyInput& input);
Result<Model> build_titan_llama(const FamilyInput& input);
Result<Model> build_t5(const FamilyInput& input);
Result<Model> build_vit(const FamilyInput& input);
Result<Model> build_whisper(const FamilyInput& input);

}  // namespace foreshard::families
