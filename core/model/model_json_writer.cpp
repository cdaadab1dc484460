// The writing half of core/model/model_json.h.
#include <charconv>
#include <cmath>
#include <string>

#include "core/model/facts.h"
#include "core/model/model_json.h"
#include "core/model/module_kind.h"

namespace foreshard {
namespace {

std::string text_of(const MeshPart& part) {
  std::string text = "\"mesh\": " + std::to_string(part.dimension);
  if (part.dim >= 0) text += ", \"dim\": " + std::to_string(part.dim);
  if (part.whole > 0) text += ", \"whole\": " + std::to_string(part.whole);
  if (part.begin > 0) text += ", \"begin\": " + std::to_string(part.begin);
  return text;
}

class Writer {
 public:
  explicit Writer(const Model& model) : m_(model), made_(model.values.size(), false) {}

  std::string write() {
    out_.reserve(256 * (m_.ops.size() + m_.modules.size() + m_.params.size()) + 1024);
    out_ += "{\"schema\": \"foreshard.model/2\",\n \"name\": ";
    text(m_.name);
    facts();
    if (!m_.mesh.empty()) {
      list("mesh", m_.mesh.size(), [&](std::size_t i) {
        (out_ += "{\"name\": "), text(m_.mesh[i].name);
        (out_ += ", \"ranks\": "), integers({m_.mesh[i].ranks.begin(), m_.mesh[i].ranks.end()});
        (out_ += ", \"place\": "), integer(m_.mesh[i].place), out_ += "}";
      });
    }
    list("inputs", m_.inputs.size(), [&](std::size_t i) { input(m_.inputs[i]); });
    list("modules", m_.modules.size(), [&](std::size_t i) { module(m_.modules[i]); });
    list("params", m_.params.size(), [&](std::size_t i) { param(m_.params[i]); });
    list("buffers", m_.buffers.size(), [&](std::size_t i) { buffer(m_.buffers[i]); });
    if (!m_.calls.empty()) {
      calls();
      containers();
    }
    if (!m_.ops.empty()) list("ops", m_.ops.size(), [&](std::size_t i) { op(m_.ops[i]); });
    if (!m_.module_calls.empty())
      list("module_calls", m_.module_calls.size(), [&](std::size_t i) { module_call(m_.module_calls[i]); });
    if (!m_.regions.empty()) list("regions", m_.regions.size(), [&](std::size_t i) { region(i); });
    outputs();
    out_ += "}\n";
    return std::move(out_);
  }

 private:
  template <class WriteRow>
  void list(std::string_view key, std::size_t count, WriteRow row) {
    ((out_ += ",\n \"") += key) += "\": [";
    for (std::size_t i = 0; i < count; ++i) {
      out_ += i == 0 ? "\n  " : ",\n  ";
      row(i);
    }
    out_ += "]";
  }

  void facts() {
    if (!m_.architecture.empty()) (out_ += ",\n \"architecture\": "), text(m_.architecture);
    if (!m_.block_class.empty()) (out_ += ",\n \"block_class\": "), text(m_.block_class);
    if (m_.tokens_per_batch != 0) (out_ += ",\n \"tokens_per_batch\": "), integer(m_.tokens_per_batch);
    if (m_.has_loss) out_ += ",\n \"has_loss\": true";
    if (m_.compute_dtype != DType::Float32) (out_ += ",\n \"compute_dtype\": "), text(dtype_name(m_.compute_dtype));
    if (m_.params_cast) out_ += ",\n \"params_cast\": true";
    if (m_.loss_begin >= 0) (out_ += ",\n \"loss_begin\": "), integer(m_.loss_begin);
    if (m_.lifetimes != (m_.ops.empty() ? Lifetimes::Built : Lifetimes::Assumed))
      (out_ += ",\n \"lifetimes\": "), text(lifetimes_name(m_.lifetimes));
    if (m_.assumes_choices) (out_ += ",\n \"choices\": "), text("assumed");
    for (const ParallelStyle& style : m_.parallel) {
      out_ += &style == m_.parallel.data() ? ",\n \"parallel\": [" : ", ";
      (out_ += "["), text(style.modules), (out_ += ", "), text(style.style), (out_ += "]");
    }
    if (!m_.parallel.empty()) out_ += "]";
    if (!m_.optimizers.empty())
      list("optimizers", m_.optimizers.size(), [&](std::size_t i) { optimizer(m_.optimizers[i]); });
    if (m_.job.empty()) return;
    out_ += ",\n \"job\": {";
    for (auto at = m_.job.begin(); at != m_.job.end(); ++at) {
      if (at != m_.job.begin()) out_ += ", ";
      text(at->first), (out_ += ": "), text(at->second);
    }
    out_ += "}";
  }

  void optimizer(const WatchedOptimizer& optimizer) {
    (out_ += "{\"name\": "), text(optimizer.name);
    (out_ += ", \"params_bytes\": "), integer(optimizer.params);
    const auto write = [this](const char* key, const WatchedStep& step) {
      ((out_ += ", \"") += key) += "\": {\"there\": ";
      integer(step.there), (out_ += ", \"events\": "), integers(step.events), out_ += "}";
    };
    write("first", optimizer.first), write("steady", optimizer.steady);
    out_ += "}";
  }

  void input(ValueId id) {
    const ValueInfo& value = m_.values[id.index()];
    made_[id.index()] = true;
    out_ += "{\"name\": ";
    text(value.name);
    shape_and_dtype(value.shape, value.dtype);
    if (value.requires_grad) out_ += ", \"requires_grad\": true";
    if (value.alias_of.valid()) (out_ += ", \"alias_of\": "), text(m_.values[value.alias_of.index()].name);
    value_facts(value);
    out_ += "}";
  }

  void module(const ModuleInfo& info) {
    out_ += "{\"fqn\": ";
    text(info.fqn);
    (out_ += ", \"class\": "), text(info.class_name);
    if (!info.bases.empty()) (out_ += ", \"bases\": "), texts(info.bases);
    if (info.alias_of.valid()) (out_ += ", \"alias_of\": "), text(m_.modules[info.alias_of.index()].fqn);
    out_ += "}";
  }

  void param(const ParamInfo& info) {
    out_ += "{\"fqn\": ";
    text(info.fqn);
    shape_and_dtype(info.shape, info.dtype);
    if (!info.requires_grad) out_ += ", \"requires_grad\": false";
    if (info.shares.valid()) (out_ += ", \"shares\": "), text(m_.params[info.shares.index()].fqn);
    if (info.gathered) (out_ += ", \"gathered\": "), text(dtype_name(*info.gathered));
    if (info.part.dimension >= 0) ((out_ += ", \"part\": {") += text_of(info.part)) += "}";
    out_ += "}";
  }

  void buffer(const BufferInfo& info) {
    out_ += "{\"fqn\": ";
    text(info.fqn);
    shape_and_dtype(info.shape, info.dtype);
    if (!info.persistent) out_ += ", \"persistent\": false";
    out_ += "}";
  }

  void calls() {
    out_ += ",\n \"calls\": [";
    bool first = true;
    for (const CallGraph& graph : m_.calls) {
      for (const CallStep& step : graph.steps) {
        out_ += first ? "\n  " : ",\n  ";
        first = false;
        call(graph, step);
      }
    }
    out_ += "]";
  }

  void call(const CallGraph& graph, const CallStep& step) {
    static constexpr std::string_view kWords[] = {"", "add", "relu", "detach", "identity"};
    out_ += "{";
    const std::string& container = m_.modules[graph.module.index()].fqn;
    if (!container.empty()) (out_ += "\"in_module\": "), text(container), out_ += ", ";
    out_ += "\"out\": ";
    step.out.size() == 1 ? text(step.out[0]) : texts(step.out);
    if (step.kind == CallStep::Kind::Call) {
      (out_ += ", \"call\": "), text(m_.modules[step.module.index()].fqn);
    } else {
      (out_ += ", \"op\": "), text(kWords[static_cast<std::size_t>(step.kind)]);
    }
    (out_ += ", \"in\": "), texts(step.in);
    if (step.checkpoint != CheckpointKind::None) {
      out_ += step.checkpoint == CheckpointKind::Reentrant ? ", \"checkpoint\": \"reentrant\""
                                                           : ", \"checkpoint\": \"non_reentrant\"";
    }
    if (step.kind == CallStep::Kind::Call) {
      static constexpr std::string_view kAutograd[] = {"opaque",    "linear",     "scale",
                                                       "embedding", "layer_norm", "linear_times"};
      const ModuleInfo& called = m_.modules[step.module.index()];
      const ModuleInfo& leaf = called.alias_of.valid() ? m_.modules[called.alias_of.index()] : called;
      if (step.autograd != autograd_of(leaf))
        (out_ += ", \"autograd\": "), text(kAutograd[static_cast<std::size_t>(step.autograd)]);
    }
    if (!step.iterations.empty()) {
      out_ += ", \"iterations\": [";
      for (std::size_t i = 0; i < step.iterations.size(); ++i) {
        if (i > 0) out_ += ", ";
        integer(step.iterations[i]);
      }
      out_ += "]";
    }
    out_ += "}";
  }

  /// Arguments and results of containers; the root's are the model's.
  void containers() {
    list("containers", m_.calls.size(), [&](std::size_t i) {
      const CallGraph& graph = m_.calls[i];
      (out_ += "{\"fqn\": "), text(m_.modules[graph.module.index()].fqn);
      (out_ += ", \"inputs\": "), texts(graph.inputs);
      (out_ += ", \"outputs\": "), texts(graph.outputs);
      out_ += "}";
    });
  }

  void op(const Op& op) {
    (out_ += "{\"op\": "), text(op.name);
    (out_ += ", \"module\": "),
        text(op.module.valid() ? std::string_view(m_.modules[op.module.index()].fqn) : std::string_view());
    if (op.call != 0) (out_ += ", \"call\": "), integer(op.call);
    out_ += ", \"args\": ";
    arguments(op.args);
    if (!op.kwargs.empty()) {
      out_ += ", \"kwargs\": {";
      for (std::size_t i = 0; i < op.kwargs.size(); ++i) {
        if (i > 0) out_ += ", ";
        text(op.kwargs[i].name);
        out_ += ": ";
        argument(op.kwargs[i].arg);
      }
      out_ += "}";
    }
    out_ += ", \"out\": [";
    for (std::size_t i = 0; i < op.out.size(); ++i) {
      if (i > 0) out_ += ", ";
      result(op.out[i]);
    }
    out_ += "]";
    if (op.region >= 0) (out_ += ", \"region\": "), integer(op.region);
    if (op.opaque >= 0) opaque(m_.opaques[static_cast<std::size_t>(op.opaque)]);
    out_ += "}";
  }

  void opaque(const OpaqueOp& op) {
    out_ += ", \"opaque\": {\"saved\": [";
    for (std::size_t i = 0; i < op.saved.size(); ++i) {
      if (i > 0) out_ += ", ";
      const OpaqueOp::Saved& saved = op.saved[i];
      saved.value.valid() ? text(m_.values[saved.value.index()].name) : described(saved.shape, saved.dtype);
    }
    (out_ += "], \"bytes_moved\": "), integer(op.bytes_moved);
    (out_ += ", \"flops\": "), integer(op.flops);
    if (op.backward_flops >= 0) (out_ += ", \"backward_flops\": "), integer(op.backward_flops);
    (out_ += ", \"workspace_bytes\": "), integer(op.workspace_bytes);
    out_ += ", \"backward\": [";
    for (std::size_t i = 0; i < op.backward.size(); ++i) {
      if (i > 0) out_ += ", ";
      op.backward[i].made ? gradient(op.backward[i]) : void(out_ += "null");
    }
    out_ += "]}";
  }

  void described(const Shape& shape, DType dtype) {
    out_ += "{\"shape\": ";
    integers(shape);
    (out_ += ", \"dtype\": "), text(dtype_name(dtype)), out_ += "}";
  }

  void gradient(const OpaqueOp::Gradient& made) {
    described(made.shape, made.dtype);
    if (made.storage == OpaqueOp::Gradient::Storage::Own) return;
    out_.pop_back();
    out_ += made.storage == OpaqueOp::Gradient::Storage::Saved ? ", \"over_saved\": " : ", \"over_given\": ";
    integer(made.of);
    out_ += "}";
  }

  void value_names(const std::vector<ValueId>& ids) {
    std::vector<std::string> names;
    for (const ValueId id : ids) names.push_back(m_.values[id.index()].name);
    texts(names);
  }

  void module_call(const ModuleCall& call) {
    (out_ += "{\"module\": "), text(m_.modules[call.module.index()].fqn);
    if (call.call != 0) (out_ += ", \"call\": "), integer(call.call);
    (out_ += ", \"args\": "), value_names(call.args), out_ += "}";
  }

  void region(std::size_t index) {
    static constexpr std::string_view kKinds[] = {"nonreentrant", "reentrant", "ops"};
    const Region& region = m_.regions[index];
    (out_ += "{\"id\": "), integer(static_cast<std::int64_t>(index));
    (out_ += ", \"kind\": "), text(kKinds[static_cast<std::size_t>(region.kind)]);
    (out_ += ", \"module\": "), text(m_.modules[region.module.index()].fqn);
    if (region.call != 0) (out_ += ", \"call\": "), integer(region.call);
    (out_ += ", \"args\": "), value_names(region.args);
    if (!region.save.empty()) (out_ += ", \"save\": "), integers({region.save.begin(), region.save.end()});
    if (!region.early_stop) out_ += ", \"early_stop\": false";
    if (!region.save_collectives.empty()) {
      out_ += ", \"save_collectives\": ";
      texts({region.save_collectives.begin(), region.save_collectives.end()});
    }
    out_ += "}";
  }

  void value_facts(const ValueInfo& value) {
    if (!value.strides.empty()) (out_ += ", \"strides\": "), integers(value.strides);
    const Hold& hold = value.held;
    if (hold.until == Hold::Until::LastUse) return;
    static constexpr std::string_view kUntil[] = {"", "", "call", "forward", "step", "", "next", "run"};
    out_ += ", \"held_until\": ";
    if (hold.until == Hold::Until::Op || hold.until == Hold::Until::Autocast) {
      (out_ += hold.until == Hold::Until::Op ? "{\"op\": " : "{\"autocast\": "), integer(hold.op), out_ += "}";
    } else if (hold.until == Hold::Until::Next && hold.op >= 0) {
      (out_ += "{\"next\": "), text(m_.buffers[static_cast<std::size_t>(hold.op)].fqn), out_ += "}";
    } else {
      text(kUntil[static_cast<std::size_t>(hold.until)]);
    }
    if (hold.by.valid()) (out_ += ", \"held_by\": "), text(m_.modules[hold.by.index()].fqn);
  }

  void result(ValueId id) {
    if (!id.valid()) {
      out_ += "null";
      return;
    }
    const ValueInfo& value = m_.values[id.index()];
    (out_ += "{\"name\": "), text(value.name);
    if (!made_[id.index()]) {  // else it was changed in place
      shape_and_dtype(value.shape, value.dtype);
      if (value.requires_grad) out_ += ", \"requires_grad\": true";
      value_facts(value);
    }
    made_[id.index()] = true;
    out_ += "}";
  }

  void arguments(const ArgList& args) {
    out_ += "[";
    for (std::size_t i = 0; i < args.size(); ++i) {
      if (i > 0) out_ += ", ";
      argument(args[i]);
    }
    out_ += "]";
  }

  void argument(const Arg& arg) {
    std::visit([this](const auto& value) { constant(value); }, arg.value);
  }
  void constant(std::monostate) { out_ += "null"; }
  void constant(bool value) { out_ += value ? "true" : "false"; }
  void constant(std::int64_t value) { integer(value); }
  void constant(double value) {
    if (std::isfinite(value)) return number(value);
    out_ += std::isnan(value) ? "{\"float\": \"nan\"}" : value > 0 ? "{\"float\": \"inf\"}" : "{\"float\": \"-inf\"}";
  }
  void constant(const std::string& value) {
    const bool reference = value.starts_with('%') || value.starts_with('@');
    if (reference) out_ += "{\"text\": ";
    text(value);
    if (reference) out_ += "}";
  }
  void constant(DType value) { (out_ += "{\"dtype\": "), text(dtype_name(value)), out_ += "}"; }
  void constant(ValueRef ref) { text(m_.values[ref.id.index()].name, "%"); }
  void constant(ParamRef ref) { text(m_.params[ref.id.index()].fqn, "@"); }
  void constant(BufferRef ref) { text(m_.buffers[static_cast<std::size_t>(ref.index)].fqn, "@"); }
  void constant(const ArgList& value) { arguments(value); }

  void outputs() {
    std::vector<std::string> names;
    for (const CallGraph& graph : m_.calls) {
      if (graph.module.index() == 0 && m_.outputs.empty()) names = graph.outputs;
    }
    for (const ValueId id : m_.outputs) names.push_back(m_.values[id.index()].name);
    (out_ += ",\n \"outputs\": "), texts(names);
  }

  void shape_and_dtype(const Shape& shape, DType dtype) {
    out_ += ", \"shape\": ";
    integers(shape);
    (out_ += ", \"dtype\": "), text(dtype_name(dtype));
  }

  void integers(const std::vector<std::int64_t>& numbers) {
    out_ += "[";
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      if (i > 0) out_ += ", ";
      integer(numbers[i]);
    }
    out_ += "]";
  }

  void texts(const std::vector<std::string>& words) {
    out_ += "[";
    for (std::size_t i = 0; i < words.size(); ++i) {
      if (i > 0) out_ += ", ";
      text(words[i]);
    }
    out_ += "]";
  }

  void text(std::string_view word, std::string_view prefix = {}) {
    static constexpr char kHex[] = "0123456789abcdef";
    (out_ += '"') += prefix;
    for (const char c : word) {
      const auto byte = static_cast<unsigned char>(c);
      if (c == '"' || c == '\\') {
        (out_ += '\\') += c;
      } else if (byte < 0x20) {
        ((out_ += "\\u00") += kHex[byte >> 4]) += kHex[byte & 15];
      } else {
        out_ += c;
      }
    }
    out_ += '"';
  }

  void integer(std::int64_t value) {
    char digits[24];
    out_.append(digits, std::to_chars(digits, digits + sizeof digits, value).ptr);
  }

  /// Shortest text that gives the same number, and that reads as a number with a fraction.
  void number(double value) {
    char digits[40];
    const std::string_view shortest(
        digits, static_cast<std::size_t>(std::to_chars(digits, digits + sizeof digits, value).ptr - digits));
    out_ += shortest;
    if (shortest.find_first_of(".e") == std::string_view::npos) out_ += ".0";
  }

  const Model& m_;
  std::vector<bool> made_;
  std::string out_;
};

}  // namespace

std::string write_model_json(const Model& model) { return Writer(model).write(); }

}  // namespace foreshard
