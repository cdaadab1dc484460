// One long file on purpose: one reader of one JSON document, whose parts share its place and its first error.
#include "core/model/pt2/program.h"

#include <simdjson.h>

#include <algorithm>
#include <limits>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "core/model/json_input.h"
#include "core/model/pt2/fields.h"
#include "core/model/pt2/lifetimes.h"

namespace foreshard {
namespace {

constexpr std::int64_t kKnownMajor = 8;
constexpr std::int64_t kLargestSize = std::int64_t{1} << 48;

/// Reads one program; the first error ends it.
class ProgramReader {
 public:
  ProgramReader(const std::string& file, const Pt2Limits& limits) : file_(file), limits_(limits) {}

  Result<Pt2Program> run(Pt2Members members) {
    const bool good = read_document(members) && read_weights(members) && check_constants(members);
    if (!good) return fail(std::move(fields_.error));
    program_.payload_bytes = std::move(members.payload_bytes);
    return std::move(program_);
  }

 private:
  using In = Pt2Field;

  bool stop(ErrorCode code, const In& at, std::string message, std::string expected, std::string got,
            std::string hint = {}) {
    return fields_.stop(code, at, std::move(message), std::move(expected), std::move(got), std::move(hint));
  }

  bool read_document(Pt2Members& members) {
    Pt2Json json;
    if (!json.parse(members.program, members.program_name, file_, limits_, fields_)) return false;
    const In top = json.top();
    In schema, module;
    if (!fields_.member(top, "graph_module", module) || !read_schema(top)) return false;
    In list, graph, signature;
    if (In calls; fields_.optional(module, "module_call_graph", calls) && !read_module_calls(calls)) return false;
    if (In ranges; fields_.optional(top, "range_constraints", ranges) && !read_ranges(ranges)) return false;
    if (!fields_.member(module, "graph", graph) || !fields_.member(module, "signature", signature)) return false;
    program_.graphs.emplace_back();
    return read_graph(graph, 0) && read_signature(signature, graph);
  }

  bool read_schema(const In& top) {
    In version, at;
    if (!fields_.member(top, "schema_version", version) || !fields_.member(version, "major", at) ||
        !fields_.integer(at, program_.schema_major))
      return false;
    if (program_.schema_major != kKnownMajor && program_.schema_major != 0) {
      return stop(ErrorCode::Unsupported, at, "schema_version of the program is one that this reader does not know",
                  "schema_version with major " + std::to_string(kKnownMajor),
                  "major " + std::to_string(program_.schema_major), "export with PyTorch 2.5 to 2.11");
    }
    if (fields_.optional(version, "minor", at) && !fields_.integer(at, program_.schema_minor)) return false;
    if (fields_.optional(top, "torch_version", at) && at.value.is_string() && !fields_.text(at, program_.torch_version))
      return false;
    if (fields_.optional(top, "verifiers", at) && at.value.is_array()) {
      bool training = false, any = false;
      fields_.each(at, [&](const In& name) {
        std::string text;
        any = true;
        if (!fields_.text(name, text)) return false;
        training = training || text == "TRAINING";
        return true;
      });
      program_.training_ir = training || !any;
    }
    if (!program_.training_ir)
      program_.notes.push_back("this is inference IR (run_decompositions), not what training executes");
    return !fields_.failed;
  }

  bool read_module_calls(const In& calls) {
    return fields_.each(calls, [&](const In& entry) {
      In fqn;
      std::string text;
      if (!fields_.member(entry, "fqn", fqn) || !fields_.text(fqn, text)) return false;
      program_.module_fqns.push_back(std::move(text));
      return true;
    });
  }

  bool read_ranges(const In& ranges) {
    return fields_.each_member(ranges, [&](std::string_view name, const In& entry) {
      Pt2Range range;
      const auto bound = [&](std::string_view key, std::optional<std::int64_t>& into) {
        In at;
        std::int64_t value = 0;
        if (!fields_.optional(entry, key, at) || !at.value.is_int64()) return;
        if (fields_.integer(at, value)) into = value;
      };
      bound("min_val", range.min);
      bound("max_val", range.max);
      program_.ranges.emplace(name, range);
      return true;
    });
  }

  // --- graphs ---

  bool read_graph(const In& in, std::size_t index) {
    In at;
    Pt2Graph graph;
    graph.name = std::move(program_.graphs[index].name);
    if (!fields_.member(in, "tensor_values", at) || !read_tensors(at, graph)) return false;
    for (const std::string_view key : {"sym_int_values", "sym_float_values", "sym_bool_values"}) {
      if (fields_.optional(in, key, at) && !read_scalars(at, graph)) return false;
    }
    Scope scope;
    if (!fields_.member(in, "inputs", at) || !read_args(at, graph.inputs) || !write_all(at, graph, graph.inputs, scope))
      return false;
    if (!fields_.member(in, "nodes", at)) return false;
    const bool nodes = fields_.each(at, [&](const In& entry) {
      graph.nodes.emplace_back();
      return read_node(entry, graph, graph.nodes.back(), scope);
    });
    if (!nodes || !fields_.member(in, "outputs", at) || !read_args(at, graph.outputs)) return false;
    for (const Pt2Arg& arg : graph.outputs) {
      if (!check_reads(at, arg, scope)) return false;
    }
    program_.graphs[index] = std::move(graph);
    return true;
  }

  bool read_tensors(const In& in, Pt2Graph& graph) {
    return fields_.each_member(in, [&](std::string_view name, const In& entry) {
      Pt2Tensor tensor;
      if (!read_tensor(entry, tensor)) return false;
      if (!graph.tensors.emplace(name, std::move(tensor)).second)
        return stop(ErrorCode::Inconsistent, entry, "the tensor is described twice", "one description", "two");
      return true;
    });
  }

  bool read_tensor(const In& in, Pt2Tensor& tensor) {
    In at;
    if (!fields_.member(in, "dtype", at) || !read_dtype(at, tensor.dtype)) return false;
    if (!fields_.member(in, "sizes", at) || !read_dims(at, tensor.sizes, true)) return false;
    if (fields_.optional(in, "strides", at) && !read_dims(at, tensor.strides, false)) return false;
    if (fields_.optional(in, "requires_grad", at) && !fields_.boolean(at, tensor.requires_grad)) return false;
    In type;
    if (fields_.optional(in, "device", at) && at.value.is_object() && fields_.optional(at, "type", type))
      return fields_.text(type, tensor.device);
    return !fields_.failed;
  }

  bool read_dims(const In& in, std::vector<Pt2Dim>& dims, bool sizes) {
    std::int64_t numel = 1;
    return fields_.each(in, [&](const In& entry) {
      Pt2Dim dim;
      if (!read_dim(entry, dim)) return false;
      const bool overflow = sizes && dim.value > 0 && __builtin_mul_overflow(numel, dim.value, &numel);
      if ((dim.expr < 0 && dim.value < 0) || overflow || (sizes && numel > kLargestSize)) {
        return stop(ErrorCode::OutOfRange, entry,
                    std::string(sizes ? "sizes" : "strides") + " of a tensor cannot be this",
                    "0 or more, and a product that fits", std::to_string(dim.value));
      }
      dims.push_back(dim);
      return true;
    });
  }

  bool read_dim(const In& in, Pt2Dim& dim) {
    std::string_view variant;
    In at, text;
    if (!fields_.variant(in, variant, at, kSizes)) return false;
    if (variant == "as_int") return fields_.integer(at, dim.value);
    if (variant == "as_float" || variant == "as_bool") return true;  // a scalar that is no size
    if (variant != "as_expr") return unknown_variant(in, variant, kSizes);
    std::string expression;
    if (!fields_.member(at, "expr_str", text) || !fields_.text(text, expression)) return false;
    auto [entry, fresh] = expr_numbers_.emplace(expression, static_cast<std::int32_t>(program_.exprs.size()));
    if (fresh) {
      std::optional<SymExpr> parsed = parse_sym_expr(expression);
      if (!parsed) {
        return stop(ErrorCode::BadSyntax, text, "this symbolic size is not understood",
                    "sympy's srepr of integers, symbols and functions", in_quotes(expression));
      }
      program_.exprs.push_back(std::move(*parsed));
    }
    dim.expr = entry->second;
    dim.value = -1;
    In hint, number;
    if (fields_.optional(at, "hint", hint) && hint.value.is_object() && fields_.optional(hint, "as_int", number))
      return fields_.integer(number, dim.value);
    return !fields_.failed;
  }

  bool read_scalars(const In& in, Pt2Graph& graph) {
    return fields_.each_member(in, [&](std::string_view name, const In& entry) {
      Pt2Dim dim;
      if (!read_dim(entry, dim)) return false;
      graph.scalars.emplace(name, dim);
      return true;
    });
  }

  bool read_dtype(const In& in, DType& dtype) {
    std::int64_t number = 0;
    if (!fields_.integer(in, number)) return false;
    // The archive's own numbers, not c10's.
    static constexpr std::pair<int, DType> kKnown[] = {
        {1, DType::UInt8},      {2, DType::Int8},        {3, DType::Int16},       {4, DType::Int32},
        {5, DType::Int64},      {6, DType::Float16},     {7, DType::Float32},     {8, DType::Float64},
        {10, DType::Complex64}, {11, DType::Complex128}, {12, DType::Bool},       {13, DType::BFloat16},
        {28, DType::Int16},     {29, DType::Float8E4M3}, {30, DType::Float8E5M2}, {31, DType::Float8E4M3},
        {32, DType::Float8E5M2}};
    for (const auto& [known, value] : kKnown) {
      if (known == number) return dtype = value, true;
    }
    return stop(ErrorCode::OutOfRange, in, "dtype of a tensor is a number that nobody knows",
                "1 to 13 and 28 to 32 (complex32 and complex128 are not read)", std::to_string(number));
  }

  // What a union may be, as messages name it.
  static constexpr std::string_view kSizes = "as_int|as_expr";
  static constexpr std::string_view kArguments =
      "as_none|as_tensor|as_int|as_float|as_bool|as_string|as_sym_int|as_scalar_type|as_device|as_graph|as_ints|as_"
      "tensors|...";
  static constexpr std::string_view kSymbols = "as_name|as_int|as_float|as_bool";
  static constexpr std::string_view kInputs =
      "parameter|buffer|tensor_constant|custom_obj|token|user_input|constant_input";
  static constexpr std::string_view kOutputs = "user_output|loss_output|buffer_mutation|gradient_to_parameter|...";

  bool unknown_variant(const In& in, std::string_view variant, std::string_view kinds) {
    return stop(ErrorCode::Unsupported, in, "this kind of argument is not known", std::string(kinds),
                in_quotes(variant));
  }

  // --- arguments ---

  bool read_args(const In& in, std::vector<Pt2Arg>& args) {
    return fields_.each(in, [&](const In& entry) { return read_arg(entry, args.emplace_back()); });
  }

  bool read_named(const In& in, Pt2Arg::Kind kind, Pt2Arg& arg) {
    In name;
    arg.kind = kind;
    return fields_.member(in, "name", name) && fields_.text(name, arg.text);
  }

  bool read_arg(const In& in, Pt2Arg& arg) {
    std::string_view variant;
    In at;
    return fields_.variant(in, variant, at, kArguments) && read_variant(in, variant, at, arg);
  }

  bool read_list(const In& in, std::string_view element, Pt2Arg& arg) {
    arg.kind = Pt2Arg::Kind::List;
    return fields_.each(in,
                        [&](const In& entry) { return read_variant(in, element, entry, arg.items.emplace_back()); });
  }

  /// `variant` names the union's member; lists are read as their elements.
  bool read_variant(const In& in, std::string_view variant, const In& at, Pt2Arg& arg) {
    using Kind = Pt2Arg::Kind;
    if (variant == "as_none") return true;
    if (variant == "as_tensor") return read_named(at, Kind::Tensor, arg);
    if (variant == "as_int") return arg.kind = Kind::Int, fields_.integer(at, arg.integer);
    if (variant == "as_bool") {
      bool value = false;
      arg.kind = Kind::Bool;
      if (!fields_.boolean(at, value)) return false;
      arg.integer = value ? 1 : 0;
      return true;
    }
    if (variant == "as_float") return arg.kind = Kind::Float, fields_.number(at, arg.real);
    if (variant == "as_string" || variant == "as_operator") return arg.kind = Kind::Text, fields_.text(at, arg.text);
    if (variant == "as_sym_int" || variant == "as_sym_bool" || variant == "as_sym_float" || variant == "union")
      return read_symbolic(at, arg);
    if (variant == "as_optional_tensor" || variant == "any") return read_arg(at, arg);
    if (variant == "as_memory_format" || variant == "as_layout")
      return arg.kind = Kind::Enum, fields_.integer(at, arg.integer);
    if (variant == "as_scalar_type") {
      DType dtype = DType::Float32;
      arg.kind = Kind::DType;
      if (!read_dtype(at, dtype)) return false;
      arg.integer = static_cast<std::int64_t>(dtype);
      return true;
    }
    if (variant == "as_device") {
      In type;
      arg.kind = Kind::Text;
      return fields_.member(at, "type", type) && fields_.text(type, arg.text);
    }
    if (variant == "as_complex") {
      In real;
      arg.kind = Kind::Float;
      return fields_.member(at, "real", real) && fields_.number(real, arg.real);
    }
    if (variant == "as_custom_obj") return read_named(at, Kind::Text, arg);
    if (variant == "as_graph") return read_inner_graph(at, arg);
    if (variant == "as_string_to_argument") return arg.kind = Kind::None, true;
    for (const auto& [list, element] : kLists) {
      if (variant == list) return read_list(at, element, arg);
    }
    return unknown_variant(in, variant, kArguments);
  }

  static constexpr std::pair<std::string_view, std::string_view> kLists[] = {
      {"as_tensors", "as_tensor"},        {"as_ints", "as_int"},
      {"as_floats", "as_float"},          {"as_bools", "as_bool"},
      {"as_strings", "as_string"},        {"as_sym_ints", "union"},
      {"as_sym_bools", "union"},          {"as_sym_floats", "union"},
      {"as_optional_tensors", "any"},     {"as_int_lists", "as_ints"},
      {"as_nested_tensors", "as_tensors"}};

  bool read_symbolic(const In& in, Pt2Arg& arg) {
    std::string_view variant;
    In at;
    if (!fields_.variant(in, variant, at, kSymbols)) return false;
    if (variant == "as_name") return arg.kind = Pt2Arg::Kind::Symbol, fields_.text(at, arg.text);
    return read_variant(in, variant, at, arg);
  }

  bool read_inner_graph(const In& in, Pt2Arg& arg) {
    In graph;
    if (!read_named(in, Pt2Arg::Kind::Graph, arg) || !fields_.member(in, "graph", graph)) return false;
    const std::size_t index = program_.graphs.size();
    arg.integer = static_cast<std::int64_t>(index);
    program_.graphs.emplace_back().name = arg.text;
    return read_graph(graph, index);
  }

  // --- nodes ---

  using Scope = std::unordered_set<std::string>;

  bool read_node(const In& in, const Pt2Graph& graph, Pt2Node& node, Scope& scope) {
    In at;
    if (!fields_.member(in, "target", at) || !fields_.text(at, node.target) || !check_target(at, node.target))
      return false;
    note_control_flow(node.target);
    if (fields_.optional(in, "name", at) && at.value.is_string() && !fields_.text(at, node.name)) return false;
    if (!fields_.member(in, "inputs", at)) return false;
    const bool inputs = fields_.each(at, [&](const In& entry) {
      Pt2Input& input = node.inputs.emplace_back();
      In field;
      if (fields_.optional(entry, "name", field) && field.value.is_string() && !fields_.text(field, input.name))
        return false;
      if (std::int64_t kind = 1;
          fields_.optional(entry, "kind", field) && field.value.is_int64() && fields_.integer(field, kind))
        input.keyword = kind == 2;
      return fields_.member(entry, "arg", field) && read_arg(field, input.arg) && check_reads(field, input.arg, scope);
    });
    if (!inputs || !fields_.member(in, "outputs", at) || !read_args(at, node.outputs)) return false;
    if (!write_all(at, graph, node.outputs, scope)) return false;
    if (node.name.empty() && !node.outputs.empty()) node.name = node.outputs.front().text;
    In metadata, stack;
    if (!fields_.optional(in, "metadata", metadata) || !metadata.value.is_object()) return !fields_.failed;
    std::string text;
    if (fields_.optional(metadata, "stack_trace", stack) && stack.value.is_string()) {
      if (!fields_.text(stack, text)) return false;
      node.trace = trace_number(std::move(text));
      text.clear();
    }
    if (!fields_.optional(metadata, "nn_module_stack", stack) || !stack.value.is_string()) return !fields_.failed;
    if (!fields_.text(stack, text)) return false;
    node.stack = stack_number(std::move(text));
    return true;
  }

  /// What the program says of control flow that depends on data; once for each kind.
  void note_control_flow(const std::string& target) {
    static constexpr std::pair<std::string_view, std::string_view> kNotes[] = {
        {"cond", "torch.cond: both branches are planned and run, and the predicate picks from their results"},
        {"while_loop", "while_loop: how often it runs is data; it is an operator without a rule and cannot be run"},
        {"scan", "scan: planned as one operator without a rule; it cannot be run"},
        {"map_impl", "map: planned as one operator without a rule; it cannot be run"}};
    constexpr std::string_view kPrefix = "torch.ops.higher_order.";
    if (!target.starts_with(kPrefix)) return;
    for (const auto& [name, note] : kNotes) {
      const bool said = std::find(program_.notes.begin(), program_.notes.end(), note) != program_.notes.end();
      if (std::string_view(target).substr(kPrefix.size()) == name && !said) program_.notes.emplace_back(note);
    }
  }

  bool check_target(const In& at, const std::string& target) {
    static constexpr std::string_view kPrefixes[] = {"torch.ops.", "_operator.", "operator.",
                                                     "math.",      "torch.sym_", "torch._sym_"};
    const bool known = std::any_of(std::begin(kPrefixes), std::end(kPrefixes),
                                   [&](std::string_view prefix) { return target.starts_with(prefix); });
    const bool plain = std::all_of(target.begin(), target.end(), [](char c) {
      return c == '_' || c == '.' || (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    });
    if (known && plain) return true;
    return stop(ErrorCode::Unsupported, at, "this target is no operator", "torch.ops.<namespace>.<operator>.<overload>",
                in_quotes(target));
  }

  std::int32_t stack_number(std::string text) {
    const auto [entry, fresh] =
        stack_numbers_.emplace(std::move(text), static_cast<std::int32_t>(program_.stacks.size()));
    if (!fresh) return entry->second;
    std::vector<Pt2Frame> frames;
    if (!parse_module_stack(entry->first, frames)) {
      frames = {{"L__self__", "", "", 0}};
      program_.notes.push_back("a module stack is malformed, its operators are the root's: " + in_quotes(entry->first));
    }
    program_.stacks.push_back(std::move(frames));
    return entry->second;
  }

  std::int32_t trace_number(std::string text) {
    const auto [entry, fresh] =
        trace_numbers_.emplace(std::move(text), static_cast<std::int32_t>(program_.traces.size()));
    if (fresh) program_.traces.push_back(parse_stack_trace(entry->first));
    return entry->second;
  }

  bool check_reads(const In& at, const Pt2Arg& arg, const Scope& scope) {
    for (const Pt2Arg& item : arg.items) {
      if (!check_reads(at, item, scope)) return false;
    }
    const bool reads = arg.kind == Pt2Arg::Kind::Tensor || arg.kind == Pt2Arg::Kind::Symbol;
    if (!reads || scope.contains(arg.text)) return true;
    return stop(ErrorCode::Inconsistent, at, "a value is read that nobody wrote", "an input or an earlier result",
                in_quotes(arg.text));
  }

  bool write_all(const In& at, const Pt2Graph& graph, const std::vector<Pt2Arg>& args, Scope& scope) {
    for (const Pt2Arg& arg : args) {
      if (!write_all(at, graph, arg.items, scope)) return false;
      if (arg.kind != Pt2Arg::Kind::Tensor && arg.kind != Pt2Arg::Kind::Symbol) continue;
      if (!scope.insert(arg.text).second)
        return stop(ErrorCode::Inconsistent, at, "two operators write " + in_quotes(arg.text), "one", "a second one");
      if (arg.kind == Pt2Arg::Kind::Tensor && !graph.tensors.contains(arg.text)) {
        return stop(ErrorCode::MissingKey, at, in_quotes(arg.text) + " has no entry in tensor_values",
                    "its dtype and sizes", "nothing");
      }
    }
    return true;
  }

  // --- signature ---

  bool read_signature(const In& in, const In& graph) {
    In inputs, outputs;
    if (!fields_.member(in, "input_specs", inputs) || !fields_.member(in, "output_specs", outputs)) return false;
    if (!fields_.each(inputs, [&](const In& entry) { return read_input_spec(entry); })) return false;
    if (!fields_.each(outputs, [&](const In& entry) { return read_output_spec(entry); })) return false;
    const Pt2Graph& root = program_.graphs[0];
    const auto counts_differ = [&](const In& at, std::string_view what, std::size_t specs, std::size_t values) {
      return stop(ErrorCode::Inconsistent, at, std::string(what) + " and the graph do not agree",
                  std::to_string(values) + ", one for each of the graph's", std::to_string(specs));
    };
    if (program_.inputs.size() != root.inputs.size())
      return counts_differ(inputs, "input_specs", program_.inputs.size(), root.inputs.size());
    if (program_.outputs.size() != root.outputs.size())
      return counts_differ(outputs, "output_specs", program_.outputs.size(), root.outputs.size());
    for (std::size_t i = 0; i < root.inputs.size(); ++i) {
      const Pt2InputSpec& spec = program_.inputs[i];
      const bool tensor = spec.kind != Pt2InputSpec::Kind::User && spec.kind != Pt2InputSpec::Kind::ConstantInput &&
                          spec.kind != Pt2InputSpec::Kind::CustomObject && spec.kind != Pt2InputSpec::Kind::Token;
      if (tensor && (root.inputs[i].kind != Pt2Arg::Kind::Tensor || root.inputs[i].text != spec.arg)) {
        return stop(ErrorCode::Inconsistent, graph, "input_specs and the graph's inputs do not agree",
                    in_quotes(spec.arg), in_quotes(root.inputs[i].text));
      }
    }
    return true;
  }

  bool read_input_spec(const In& in) {
    using Kind = Pt2InputSpec::Kind;
    static constexpr std::pair<std::string_view, Kind> kKinds[] = {
        {"parameter", Kind::Parameter},         {"buffer", Kind::Buffer}, {"tensor_constant", Kind::TensorConstant},
        {"custom_obj", Kind::CustomObject},     {"token", Kind::Token},   {"user_input", Kind::User},
        {"constant_input", Kind::ConstantInput}};
    std::string_view variant;
    In spec, at;
    Pt2InputSpec out;
    if (!fields_.variant(in, variant, spec, kInputs)) return false;
    const auto known =
        std::find_if(std::begin(kKinds), std::end(kKinds), [&](const auto& k) { return k.first == variant; });
    if (known == std::end(kKinds)) return unknown_variant(in, variant, kInputs);
    out.kind = known->second;
    if (out.kind == Kind::User) {
      Pt2Arg arg;
      if (!fields_.member(spec, "arg", at) || !read_arg(at, arg)) return false;
      out.arg = arg.text;
    } else if (out.kind == Kind::ConstantInput) {
      if (fields_.optional(spec, "name", at) && !fields_.text(at, out.arg)) return false;
    } else {
      Pt2Arg arg;
      if (!fields_.member(spec, "arg", at) || !read_named(at, Pt2Arg::Kind::Tensor, arg)) return false;
      out.arg = arg.text;
    }
    for (const std::string_view key : {"parameter_name", "buffer_name", "tensor_constant_name", "custom_obj_name"}) {
      if (fields_.optional(spec, key, at) && !fields_.text(at, out.target)) return false;
    }
    if (out.kind == Kind::Parameter || out.kind == Kind::Buffer) {
      if (out.target.empty())
        return stop(ErrorCode::MissingKey, spec, "a parameter or buffer has no name", "parameter_name or buffer_name",
                    "nothing");
      if (!registered_.insert(out.target).second)
        return stop(ErrorCode::Inconsistent, spec, "two inputs are the same parameter or buffer", "one",
                    "a second " + in_quotes(out.target));
    }
    if (fields_.optional(spec, "persistent", at) && at.value.is_bool() && !fields_.boolean(at, out.persistent))
      return false;
    program_.inputs.push_back(std::move(out));
    return !fields_.failed;
  }

  bool read_output_spec(const In& in) {
    std::string_view variant;
    In spec, at;
    Pt2OutputSpec out;
    if (!fields_.variant(in, variant, spec, kOutputs)) return false;
    out.kind = variant;
    if (fields_.optional(spec, "arg", at)) {
      const bool named = variant != "user_output";
      if (named ? !read_named(at, Pt2Arg::Kind::Tensor, out.arg) : !read_arg(at, out.arg)) return false;
    }
    for (const std::string_view key : {"parameter_name", "buffer_name", "user_input_name"}) {
      if (fields_.optional(spec, key, at) && !fields_.text(at, out.target)) return false;
    }
    program_.outputs.push_back(std::move(out));
    return !fields_.failed;
  }

  // --- configurations of weights and constants ---

  bool read_weights(Pt2Members& members) {
    std::unordered_map<std::string_view, const Pt2Tensor*> described;
    for (const Pt2InputSpec& spec : program_.inputs) {
      if (spec.kind != Pt2InputSpec::Kind::Parameter && spec.kind != Pt2InputSpec::Kind::Buffer) continue;
      const auto tensor = program_.graphs[0].tensors.find(spec.arg);
      if (tensor != program_.graphs[0].tensors.end()) described.emplace(spec.target, &tensor->second);
    }
    return read_config(members.weights, members.weights_name, [&](std::string_view fqn, const In& entry) {
      Pt2Weight weight;
      weight.fqn = fqn;
      In at, meta;
      if (!read_path(fqn, entry, weight.path_name)) return false;
      if (fields_.optional(entry, "is_param", at) && !fields_.boolean(at, weight.is_param)) return false;
      if (bool pickled = false; fields_.optional(entry, "use_pickle", at)) {
        if (!fields_.boolean(at, pickled)) return false;
        if (pickled)
          return stop(ErrorCode::Refused, at, "the weight " + in_quotes(fqn) + " is a pickle, which is never read",
                      "raw bytes", "a pickle", "export plain tensors");
      }
      if (fields_.optional(entry, "tensor_meta", meta) && meta.value.is_object()) {
        Pt2Tensor tensor;
        Pt2Dim offset;
        if (!read_tensor(meta, tensor)) return false;
        if (fields_.optional(meta, "storage_offset", at) && !read_dim(at, offset)) return false;
        if (const auto spec = described.find(fqn); spec != described.end() && !same_sizes(tensor, *spec->second))
          return stop(ErrorCode::Inconsistent, meta,
                      "the sizes of the weight " + in_quotes(fqn) + " are not the program's", sizes_text(*spec->second),
                      sizes_text(tensor));
        const auto payload = members.payload_bytes.find(weight.path_name);
        if (payload != members.payload_bytes.end() && payload->second > 0 && !fits(tensor, offset, payload->second))
          return stop(ErrorCode::Inconsistent, meta, "the weight " + in_quotes(fqn) + " reaches beyond its storage",
                      std::to_string(payload->second) + " bytes", sizes_text(tensor));
        for (const Pt2Dim& dim : tensor.sizes) weight.sizes.push_back(dim.value);
        weight.dtype = tensor.dtype;
        weight.offset = offset.value;
      }
      program_.weights.push_back(std::move(weight));
      return true;
    });
  }

  static bool same_sizes(const Pt2Tensor& a, const Pt2Tensor& b) {
    return std::equal(
        a.sizes.begin(), a.sizes.end(), b.sizes.begin(), b.sizes.end(),
        [](const Pt2Dim& x, const Pt2Dim& y) { return x.expr >= 0 || y.expr >= 0 || x.value == y.value; });
  }

  static std::string sizes_text(const Pt2Tensor& tensor) {
    std::string text;
    for (const Pt2Dim& dim : tensor.sizes) text += (text.empty() ? "" : ", ") + std::to_string(dim.value);
    return "sizes [" + text + "]";
  }

  /// The last element that the view reaches lies in the storage.
  static bool fits(const Pt2Tensor& tensor, const Pt2Dim& offset, Bytes storage) {
    std::int64_t last = offset.value;
    for (std::size_t i = 0; i < std::min(tensor.sizes.size(), tensor.strides.size()); ++i) {
      std::int64_t reach = 0;
      if (tensor.sizes[i].value == 0) return true;
      if (__builtin_mul_overflow(tensor.sizes[i].value - 1, tensor.strides[i].value, &reach) ||
          __builtin_add_overflow(last, reach, &last))
        return false;
    }
    return last < storage / itemsize(tensor.dtype);
  }

  bool check_constants(Pt2Members& members) {
    return read_config(members.constants, members.constants_name, [&](std::string_view fqn, const In& entry) {
      std::string path;
      return read_path(fqn, entry, path);
    });
  }

  bool read_path(std::string_view fqn, const In& entry, std::string& path) {
    In at;
    if (!fields_.member(entry, "path_name", at) || !fields_.text(at, path)) return false;
    if (!path.empty() && path != "." && path != ".." && path.find_first_of(std::string_view("/\\:\0", 4)) == path.npos)
      return true;
    return stop(ErrorCode::Refused, at, "the path of " + in_quotes(fqn) + " leads out of the archive",
                "the plain path_name of a member", in_quotes(path), "do not trust this archive");
  }

  template <class F>
  bool read_config(std::string& text, const std::string& name, F each) {
    if (text.empty()) return true;
    Pt2Json json;
    if (!json.parse(text, name, file_, limits_, fields_)) return false;
    In config;
    const In top = json.top();
    if (!fields_.optional(top, "config", config)) return !fields_.failed;
    return fields_.each_member(config, each);
  }

  const std::string& file_;
  const Pt2Limits& limits_;
  Pt2Fields fields_;
  Pt2Program program_;
  std::unordered_map<std::string, std::int32_t> expr_numbers_, stack_numbers_, trace_numbers_;
  std::unordered_set<std::string> registered_;  // names of parameters and buffers
};

}  // namespace

Result<Pt2Program> parse_pt2_program(Pt2Members members, const std::string& file, const Pt2Limits& limits) {
  return ProgramReader(file, limits).run(std::move(members));
}

}  // namespace foreshard
