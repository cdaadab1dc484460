#include "exec/operators/operator_proof.h"

#include <ATen/ATen.h>
#include <ATen/record_function.h>
#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable_hooks.h>
#include <torch/csrc/autograd/utils/grad_layout_contract.h>

#include <algorithm>
#include <map>
#include <memory>
#include <unordered_map>

#include "exec/operators/operator_call.h"
#include "exec/operators/operator_flops.h"
#include "exec/torch/torch_types.h"

namespace foreshard::exec {
namespace {

using torch::autograd::Edge;

/// What is being recorded on this thread; null outside of a proof.
struct Recording;
thread_local Recording* t_recording = nullptr;

struct Recording {
  std::vector<at::Tensor> kept;  // as autograd packed them
  std::vector<std::string> kernels;
  Flops flops = 0;
  bool flops_known = true;
  int inside = 0;  // depth of operators within a kernel: not ours to list
};

// ------------------------------------------------------------------------------------------------- saved tensors

/// Keeps the tensor as autograd would, and notes it.
class NoteSaved final : public torch::autograd::SavedVariableHooks {
 public:
  void call_pack_hook(const at::Tensor& tensor) override {
    tensor_ = tensor;
    if (t_recording != nullptr) t_recording->kept.push_back(tensor.detach());
  }
  at::Tensor call_unpack_hook() override { return tensor_; }

 private:
  at::Tensor tensor_;
};

/// Autograd's engine asks its default instance for hooks; only Python's sets any. Lives as long as the process.
class ProofEngine final : public torch::autograd::Engine {
 public:
  ProofEngine() = default;
  ~ProofEngine() override { stop(); }
  std::unique_ptr<torch::autograd::SavedVariableHooks> get_default_saved_variable_hooks() override {
    return t_recording != nullptr ? std::make_unique<NoteSaved>() : nullptr;
  }
  static torch::autograd::Engine& instance() {
    static auto* engine = new ProofEngine();  // its threads may outlive static destruction
    return *engine;
  }
};

void install_engine() {
  static const bool done = (torch::autograd::set_default_engine_stub(&ProofEngine::instance), true);
  static_cast<void>(done);
}

// ------------------------------------------------------------------------------------------------------ kernels

std::string spelled(const c10::OperatorName& name) {
  std::string text = name.name;
  text.replace(text.find("::"), 2, ".");
  return text + "." + (name.overload_name.empty() ? "default" : name.overload_name);
}

/// Operators that PyTorch writes in terms of others: their parts are listed instead.
bool composite(const c10::OperatorName& name) {
  const auto handle = c10::Dispatcher::singleton().findOp(name);
  if (!handle) return true;
  return handle->hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd) &&
         !handle->hasKernelForDispatchKey(c10::DispatchKey::CPU);  // some have a kernel besides
}

struct Entered : at::ObserverContext {
  bool kernel = false;
};

std::unique_ptr<at::ObserverContext> enter(const at::RecordFunction& function) {
  auto entered = std::make_unique<Entered>();
  const auto name = function.operator_name();
  if (t_recording == nullptr || !name || composite(*name)) return entered;
  entered->kernel = true;
  if (t_recording->inside++ > 0) return entered;
  const std::string text = spelled(*name);
  t_recording->kernels.push_back(text);
  const auto flops = operator_flops(text, function.inputs());
  if (flops)
    t_recording->flops += *flops;
  else
    t_recording->flops_known = false;
  return entered;
}

void leave(const at::RecordFunction&, at::ObserverContext* context) {
  if (t_recording != nullptr && static_cast<Entered*>(context)->kernel) --t_recording->inside;
}

class RecordKernels {
 public:
  explicit RecordKernels(Recording& recording) {
    t_recording = &recording;
    handle_ = at::addThreadLocalCallback(
        at::RecordFunctionCallback(&enter, &leave).needsInputs(true).scopes({at::RecordScope::FUNCTION}));
  }
  ~RecordKernels() {
    at::removeCallback(handle_);
    t_recording = nullptr;
  }
  RecordKernels(const RecordKernels&) = delete;
  RecordKernels& operator=(const RecordKernels&) = delete;

 private:
  at::CallbackHandle handle_;
};

// ------------------------------------------------------------------------------------------------------- memory

/// The CPU allocator tells every piece it hands out; those still out are the sum.
class CountedMemory final : public c10::MemoryReportingInfoBase {
 public:
  void reportMemoryUsage(void* data, std::int64_t bytes, std::size_t, std::size_t, c10::Device) override {
    if (bytes > 0)
      held_[data] = bytes;
    else
      held_.erase(data);
  }
  bool memoryProfilingEnabled() const override { return true; }
  Bytes held() const {
    Bytes sum = 0;
    for (const auto& [data, bytes] : held_) sum += bytes;
    return sum;
  }

 private:
  std::unordered_map<void*, std::int64_t> held_;
};

// ------------------------------------------------------------------------------------------------------- tensors

/// Takes the gradient that arrives at an input, and notes whether it could be kept as it is.
struct InputNode final : torch::autograd::Node {
  torch::autograd::variable_list apply(torch::autograd::variable_list&& grads) override {
    gradient = std::move(grads[0]);
    grads.clear();
    shared = gradient.defined() && gradient.use_count() > 1;
    return {};
  }
  at::Tensor gradient;
  at::Tensor parameter;  // its sizes and strides, no memory: AccumulateGrad keeps what is laid out as the contract says
  bool shared = false;
};

at::Tensor values_of(const OperatorTensor& tensor, Numel reach, c10::Device device) {
  const auto options = at::TensorOptions().dtype(scalar_type_of(tensor.dtype)).device(device);
  if (device.is_meta()) return at::empty({reach}, options);
  if (!is_floating(tensor.dtype)) return at::zeros({reach}, options);  // indices, positions, masks: always valid
  return at::arange(reach, at::kDouble)
      .mul(0.6180339887498949)
      .remainder(1.0)
      .mul(0.875)
      .add(0.0625)
      .to(options.dtype());
}

at::Tensor make_input(const OperatorTensor& tensor, c10::Device device) {
  Numel reach = 1;
  for (std::size_t i = 0; i < tensor.sizes.size(); ++i) {
    if (tensor.sizes[i] == 0) reach = 0;
    if (!tensor.strides.empty() && reach > 0) reach += (tensor.sizes[i] - 1) * tensor.strides[i];
  }
  if (tensor.strides.empty()) reach = numel_of(tensor.sizes);
  // No view, which operators in place would tell from a tensor: the storage is wrapped anew.
  const at::Tensor values = values_of(tensor, reach, device);
  at::Tensor made = at::empty({0}, values.options());
  std::vector<std::int64_t> strides = tensor.strides;
  if (strides.empty()) {
    strides.assign(tensor.sizes.size(), 1);
    for (std::size_t i = strides.size(); i-- > 1;) strides[i - 1] = strides[i] * tensor.sizes[i];
  }
  made.set_(values.storage(), 0, tensor.sizes, strides);
  return made;
}

DType dtype_of(at::ScalarType type) {
  for (const DType dtype : {DType::Float32, DType::Float64, DType::BFloat16, DType::Float16, DType::Int64, DType::Int32,
                            DType::Int16, DType::Int8, DType::UInt8, DType::Bool, DType::Complex64, DType::Complex128})
    if (scalar_type_of(dtype) == type) return dtype;
  return DType::Float32;
}

OperatorTensor tensor_of(const at::Tensor& tensor) {
  return {tensor.sizes().vec(), tensor.strides().vec(), dtype_of(tensor.scalar_type()), tensor.requires_grad()};
}

class Inputs final : public TensorLookup {
 public:
  Inputs(const OperatorCase& what, c10::Device device) {
    for (const OperatorTensor& input : what.inputs) {
      at::Tensor tensor = make_input(input, device);
      std::shared_ptr<InputNode> node;
      if (input.requires_grad) {
        node = std::shared_ptr<InputNode>(new InputNode(), torch::autograd::deleteNode);
        node->parameter =
            at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().device(c10::DeviceType::Meta));
        const auto number = node->add_input_metadata(tensor);
        torch::autograd::impl::set_gradient_edge(tensor, Edge(node, number));
      }
      storages_.push_back(tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl());
      tensors_.push_back(std::move(tensor));
      nodes_.push_back(std::move(node));
    }
  }
  at::Tensor value(ValueId) override { return {}; }
  at::Tensor param(ParamId id) override { return tensors_[id.index()]; }
  at::Tensor buffer(std::int32_t) override { return {}; }

  std::int32_t index_of(const at::Tensor& tensor) const { return position(storages_, tensor); }
  static std::int32_t position(const std::vector<const void*>& storages, const at::Tensor& tensor) {
    const auto at = std::find(storages.begin(), storages.end(),
                              tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl());
    return at == storages.end() ? -1 : static_cast<std::int32_t>(at - storages.begin());
  }
  std::vector<std::shared_ptr<InputNode>>& nodes() { return nodes_; }
  void drop_tensors() { tensors_.clear(); }

 private:
  std::vector<at::Tensor> tensors_;
  std::vector<const void*> storages_;
  std::vector<std::shared_ptr<InputNode>> nodes_;
};

const void* storage_of(const at::Tensor& tensor) {
  return tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
}

void note_results(const std::vector<at::Tensor>& results, const Inputs& inputs, OperatorFacts& facts) {
  for (const at::Tensor& result : results) facts.results.push_back({tensor_of(result), inputs.index_of(result)});
}

void note_kept(const Recording& recording, const std::vector<at::Tensor>& results, const Inputs& inputs,
               OperatorFacts& facts) {
  std::vector<const void*> of_results;
  for (const at::Tensor& result : results) of_results.push_back(storage_of(result));
  std::map<const void*, KeptStorage> kept;
  for (const at::Tensor& tensor : recording.kept) {
    const auto bytes = static_cast<Bytes>(tensor.storage().nbytes());
    if (bytes == 0) continue;
    const std::int32_t input = inputs.index_of(tensor), result = Inputs::position(of_results, tensor);
    kept[storage_of(tensor)] = input >= 0    ? KeptStorage{KeptStorage::Of::Input, input, bytes}
                               : result >= 0 ? KeptStorage{KeptStorage::Of::Result, result, bytes}
                                             : KeptStorage{KeptStorage::Of::Own, -1, bytes};
  }
  for (const auto& [storage, one] : kept) facts.kept.push_back(one);
  std::sort(facts.kept.begin(), facts.kept.end());
}

/// Backward from `root`, as a training step does it: the caller holds the first gradient.
void run_backward(const at::Tensor& root, Inputs& inputs, OperatorProof& proof) {
  Recording recording;
  const at::Tensor one = at::ones_like(root.detach());
  {
    RecordKernels guard(recording);
    torch::autograd::Engine::get_default_engine().execute({torch::autograd::impl::gradient_edge(root)}, {one}, false,
                                                          false, true);
  }
  for (const std::string& name : recording.kernels)
    if (!computes_nothing(name)) proof.facts.backward.push_back(plain_kernel_name(name));
  proof.facts.backward_flops = recording.flops;
  proof.flops = proof.flops && recording.flops_known;
  auto& nodes = inputs.nodes();
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    if (nodes[i] == nullptr || !nodes[i]->gradient.defined()) continue;
    const at::Tensor& gradient = nodes[i]->gradient;
    const bool copied =
        nodes[i]->shared || !torch::autograd::utils::obeys_layout_contract(gradient, nodes[i]->parameter);
    const auto own = static_cast<Bytes>(gradient.numel()) * static_cast<Bytes>(gradient.element_size());
    // A gradient that is kept as it came keeps its whole storage: a slice of a concatenation's, for one.
    proof.facts.gradients[i] = {true, copied ? own : static_cast<Bytes>(gradient.storage().nbytes())};
    proof.facts.gradient_copies += copied ? 1 : 0;
  }
}

OperatorProof run_case(const OperatorCase& what, const OperatorCall& call, c10::Device device) {
  OperatorProof proof;
  proof.facts.gradients.resize(what.inputs.size());
  proof.counted = device.is_cpu();
  Inputs inputs(what, device);
  auto memory = std::make_shared<CountedMemory>();
  Recording recording;
  std::vector<at::Tensor> results;
  {
    c10::DebugInfoGuard counting(c10::DebugInfoKind::PROFILER_STATE, memory);
    RecordKernels guard(recording);
    torch::jit::Stack stack;
    push_arguments(call.arguments, inputs, stack);
    run_call(call, 0, stack);
    take_results(stack, [&](at::Tensor result) {
      if (result.defined()) results.push_back(std::move(result));
    });
    stack.clear();
    proof.facts.held_bytes = memory->held();
  }
  proof.facts.forward_flops = recording.flops;
  proof.flops = recording.flops_known;
  note_results(results, inputs, proof.facts);
  note_kept(recording, results, inputs, proof.facts);
  recording.kept.clear();
  const auto root = std::find_if(results.begin(), results.end(), [](const at::Tensor& result) {
    return result.is_floating_point() || result.is_complex();
  });
  if (root != results.end() && root->requires_grad()) run_backward(*root, inputs, proof);
  return proof;
}

Numel work_of(const OperatorCase& what) {
  Numel sum = 0;
  for (const OperatorTensor& input : what.inputs) sum += numel_of(input.sizes);
  for (const OperatorTensor& result : what.results) sum += numel_of(result.sizes);
  return sum;
}

}  // namespace

tl::expected<OperatorProof, std::string> ask_libtorch(const OperatorCase& what) try {
  const bool large = work_of(what) > kProofNumel;
  const c10::Device device(large ? c10::kMeta : c10::kCPU);
  const auto call = prepare_call(what.op, device);
  if (!call) return tl::unexpected(call.error());
  install_engine();
  return run_case(what, *call, device);
} catch (const c10::Error& error) {
  return tl::unexpected(std::string(error.what_without_backtrace()));
} catch (const std::exception& error) {
  return tl::unexpected(std::string(error.what()));
}

tl::expected<std::vector<std::string>, std::string> prove_rule(OperatorCase what) {
  auto proof = ask_libtorch(what);
  if (!proof) return tl::unexpected(proof.error());
  if (what.results.empty())
    for (const OperatorFacts::Result& result : proof->facts.results)
      what.results.push_back({result.tensor.sizes, {}, result.tensor.dtype, false});
  OperatorFacts rule = predict_operator(what);
  if (!proof->counted) rule.held_bytes = proof->facts.held_bytes;
  if (!proof->flops) {
    rule.forward_flops = proof->facts.forward_flops;
    rule.backward_flops = proof->facts.backward_flops;
  }
  return differences(proof->facts, rule);
}

}  // namespace foreshard::exec
