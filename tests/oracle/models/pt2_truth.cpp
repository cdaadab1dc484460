#include "tests/oracle/models/pt2_truth.h"

#include <cctype>
#include <map>
#include <set>

#include "core/model/model_json.h"
#include "core/model/pt2/model.h"

namespace foreshard::oracle {
namespace {

struct Differs {
  std::string place, expected, got;
};

void same(const std::string& place, const Json& expected, const Json& got) {
  if (expected != got) throw Differs{place, expected.dump(), got.dump()};
}

std::string short_dtype(DType dtype) {
  static const std::map<DType, std::string> names = {
      {DType::Float32, "f32"}, {DType::BFloat16, "bf16"}, {DType::Float16, "f16"},
      {DType::Float64, "f64"}, {DType::Int64, "i64"},     {DType::Int32, "i32"},
      {DType::Bool, "b8"},     {DType::UInt8, "u8"},      {DType::Complex64, "c64"}};
  const auto found = names.find(dtype);
  return found == names.end() ? "torch." + std::string(dtype_name(dtype)) : found->second;
}

/// As sympy prints the few forms that sizes take.
std::string printed(const SymExpr& expr) {
  if (expr.kind == SymExpr::Kind::Integer) return std::to_string(expr.value);
  if (expr.kind == SymExpr::Kind::Symbol) return expr.name;
  std::string text;
  for (const SymExpr& arg : expr.args)
    text += (text.empty() ? "" : expr.name == "Mul" ? "*" : expr.name == "Add" ? " + " : ",") + printed(arg);
  return expr.name == "Mul" || expr.name == "Add" ? text : expr.name + "(" + text + ")";
}

Json shown(const Pt2Program& program, const Pt2Dim& dim) {
  if (dim.expr < 0) return dim.value;
  return printed(program.exprs[static_cast<std::size_t>(dim.expr)]);
}

Json shape_of(const Pt2Program& program, const Pt2Tensor& tensor) {
  Json shape = Json::array();
  for (const Pt2Dim& dim : tensor.sizes) shape.push_back(shown(program, dim));
  return shape;
}

std::string kind_of(const Pt2InputSpec& spec) {
  switch (spec.kind) {
    case Pt2InputSpec::Kind::Parameter: return "PARAMETER";
    case Pt2InputSpec::Kind::Buffer: return "BUFFER";
    case Pt2InputSpec::Kind::TensorConstant: return "CONSTANT_TENSOR";
    case Pt2InputSpec::Kind::CustomObject: return "CUSTOM_OBJ";
    case Pt2InputSpec::Kind::Token: return "TOKEN";
    default: return "USER_INPUT";
  }
}

void compare_signature(const Pt2Program& program, const Json& truth) {
  same("inputs", truth.at("inputs").size(), program.inputs.size());
  for (std::size_t i = 0; i < program.inputs.size(); ++i) {
    const Json& expected = truth.at("inputs")[i];
    const Pt2InputSpec& spec = program.inputs[i];
    const std::string place = "inputs[" + std::to_string(i) + "]";
    same(place + ".kind", expected.at("kind"), kind_of(spec));
    if (!spec.arg.empty()) same(place + ".arg", expected.at("arg"), spec.arg);
    if (!expected.at("target").is_null()) same(place + ".target", expected.at("target"), spec.target);
    if (!expected.at("persistent").is_null()) same(place + ".persistent", expected.at("persistent"), spec.persistent);
  }
  same("outputs", truth.at("outputs").size(), program.outputs.size());
  for (std::size_t i = 0; i < program.outputs.size(); ++i) {
    const Json& expected = truth.at("outputs")[i];
    const Pt2OutputSpec& spec = program.outputs[i];
    std::string kind = spec.kind;
    for (char& c : kind) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
    const std::string place = "outputs[" + std::to_string(i) + "]";
    same(place + ".kind", expected.at("kind"), kind);
    same(place + ".arg", expected.at("arg"), spec.arg.text);
    if (!expected.at("target").is_null()) same(place + ".target", expected.at("target"), spec.target);
  }
}

void compare_named(const Pt2Program& program, const Json& truth, const char* key, Pt2InputSpec::Kind kind) {
  Json names = Json::array();
  for (const Pt2InputSpec& spec : program.inputs) {
    if (spec.kind != kind) continue;
    const Pt2Tensor& tensor = program.graphs[0].tensors.at(spec.arg);
    const std::size_t at = names.size();
    names.push_back(spec.target);
    if (at >= truth.at(key).size()) continue;
    const Json& expected = truth.at(key)[at];
    const std::string place = std::string(key) + "[" + std::to_string(at) + "] " + spec.target;
    if (expected.is_string()) {
      same(place, expected, spec.target);
      continue;
    }
    same(place + ".name", expected.at("name"), spec.target);
    if (expected.contains("shape")) same(place + ".shape", expected.at("shape"), shape_of(program, tensor));
    if (expected.contains("dtype")) same(place + ".dtype", expected.at("dtype"), short_dtype(tensor.dtype));
    if (expected.contains("requires_grad"))
      same(place + ".requires_grad", expected.at("requires_grad"), tensor.requires_grad);
  }
  same(key, truth.at(key).size(), names.size());
}

std::string truth_target(const std::string& target) {
  for (const std::string prefix : {"torch.ops.higher_order.", "torch.ops."}) {
    if (target.starts_with(prefix)) return target.substr(prefix.size());
  }
  if (target.starts_with("_operator.")) return "<built-in function " + target.substr(10) + ">";
  return target;
}

void gather_inputs(const Pt2Arg& arg, Json& names) {
  if (arg.kind == Pt2Arg::Kind::Tensor || arg.kind == Pt2Arg::Kind::Symbol) names.push_back(arg.text);
  for (const Pt2Arg& item : arg.items) gather_inputs(item, names);
}

/// Graphs and custom objects are nodes for Python, names of their own for archives; lists of results are getitems.
void compare_ops(const Pt2Program& program, const Pt2Graph& graph, const Json& truth, const std::string& where) {
  std::map<std::string, Json> produced;  // results by name, from Python's getitems
  std::vector<const Json*> expected;
  std::set<std::string> inner;
  for (const Json& op : truth) {
    if (op.at("target") == "<built-in function getitem>") {
      produced[op.at("name")] = op.at("out");
    } else {
      expected.push_back(&op);
    }
  }
  same(where, expected.size(), graph.nodes.size());
  for (std::size_t i = 0; i < graph.nodes.size(); ++i) {
    const Pt2Node& node = graph.nodes[i];
    const Json& op = *expected[i];
    const std::string place = where + "[" + std::to_string(i) + "] " + op.at("name").get<std::string>();
    same(place + ".target", op.at("target"), truth_target(node.target));
    Json reads = Json::array(), wanted = Json::array();
    for (const Pt2Input& input : node.inputs) gather_inputs(input.arg, reads);
    for (const Json& name : op.at("inputs")) {
      const std::string text = name;
      const bool known = graph.tensors.contains(text) || graph.scalars.contains(text);
      if (known) wanted.push_back(text);
    }
    if (std::set<std::string>(reads.begin(), reads.end()) != std::set<std::string>(wanted.begin(), wanted.end()))
      same(place + ".inputs", wanted, reads);
    const auto compare_out = [&](const Pt2Arg& out, const Json& want) {
      if (out.kind == Pt2Arg::Kind::Symbol && want.contains("value") && graph.scalars.contains(out.text)) {
        const Json value = shown(program, graph.scalars.at(out.text));
        const std::string a =
            want.at("value").is_string() ? want.at("value").get<std::string>() : want.at("value").dump();
        same(place + ".out", a, value.is_string() ? value.get<std::string>() : value.dump());
      }
      if (out.kind != Pt2Arg::Kind::Tensor || !want.contains("shape")) return;
      const Pt2Tensor& tensor = graph.tensors.at(out.text);
      Json shape = shape_of(program, tensor), wanted_shape = want.at("shape");
      for (Json* sizes : {&shape, &wanted_shape}) {  // sympy's own integers are recorded as text
        for (Json& size : *sizes) size = size.is_string() ? size.get<std::string>() : size.dump();
      }
      same(place + ".out.shape", wanted_shape, shape);
      same(place + ".out.dtype", want.at("dtype"), short_dtype(tensor.dtype));
      same(place + ".out.device", want.at("device"), tensor.device);
    };
    const Json& out = op.at("out");
    std::vector<const Pt2Arg*> flat;
    for (const Pt2Arg& o : node.outputs) {
      if (o.kind != Pt2Arg::Kind::List) flat.push_back(&o);
      for (const Pt2Arg& item : o.items) flat.push_back(&item);
    }
    if (out.is_object() && !flat.empty()) {
      same(place + ".name", op.at("name"), flat[0]->text);
      compare_out(*flat[0], out);
    }
    for (std::size_t o = 0; out.is_array() && o < std::min(flat.size(), out.size()); ++o) {
      if (out[o].is_object()) compare_out(*flat[o], out[o]);
      if (const auto named = produced.find(flat[o]->text); named != produced.end())
        compare_out(*flat[o], named->second);
    }
    Json stack = Json::array();
    if (node.stack >= 0) {
      for (const Pt2Frame& frame : program.stacks[static_cast<std::size_t>(node.stack)])
        stack.push_back({{"path", frame.path}, {"class", frame.class_name}});
    }
    Json want = op.at("module_stack");
    if (want.size() == 1 && want[0].at("path") == "_empty_nn_module_stack_from_metadata_hook") want = Json::array();
    same(place + ".module_stack", want, stack);
  }
}

/// Graphs that the root's operators call: only these have a truth, and graphs inside them may repeat their names.
std::set<std::int64_t> called_by_root(const Pt2Program& program) {
  std::set<std::int64_t> graphs;
  for (const Pt2Node& node : program.graphs[0].nodes) {
    for (const Pt2Input& input : node.inputs) {
      if (input.arg.kind == Pt2Arg::Kind::Graph) graphs.insert(input.arg.integer);
    }
  }
  return graphs;
}

void compare_model(const Model& model, const Json& truth) {
  std::map<std::string, std::set<std::string>> groups;
  Numel distinct = 0;
  for (std::size_t i = 0; i < model.params.size(); ++i) {
    groups[model.params[model.storage_of(ParamId(i)).index()].fqn].insert(model.params[i].fqn);
    if (!model.params[i].shares.valid()) distinct += numel_of(model.params[i].shape);
  }
  std::set<std::set<std::string>> got, expected;
  for (const auto& [first, names] : groups) {
    if (names.size() > 1) got.insert(names);
  }
  for (const Json& group : truth.at("shared_groups_in_module")) {
    std::set<std::string> names;
    for (const Json& name : group) names.insert(name.get<std::string>());
    expected.insert(names);
  }
  if (got != expected) throw Differs{"shared_groups_in_module", Json(expected).dump(), Json(got).dump()};
  same("module_parameters_distinct", truth.at("module_parameters_distinct"), distinct);
  // What the Model promises is what the reader of model.json checks.
  const auto again = parse_model_json(write_model_json(model), "model.json");
  if (!again) throw Differs{"model.json", "a valid model", to_text(again.error())};
}

}  // namespace

RowResult compare_archive(const std::string& archive) {
  RowResult row;
  const Json truth = Json::parse(read_text(archive.substr(0, archive.size() - 4) + ".truth.json.gz"));
  auto members = read_pt2_archive(archive);
  if (!members) return {{}, Verdict::Fail, "archive", "an archive", to_text(members.error()), {}};
  const auto program = parse_pt2_program(std::move(*members), archive);
  if (!program) return {{}, Verdict::Fail, "program", "a program", to_text(program.error()), {}};
  const auto model = model_from_pt2_program(*program, archive, {});
  if (!model) return {{}, Verdict::Fail, "model", "a model", to_text(model.error()), {}};
  try {
    same("dialect", truth.at("dialect"), program->training_ir ? "TRAINING" : "ATEN");
    compare_signature(*program, truth);
    compare_named(*program, truth, "parameters", Pt2InputSpec::Kind::Parameter);
    compare_named(*program, truth, "buffers", Pt2InputSpec::Kind::Buffer);
    compare_ops(*program, program->graphs[0], truth.at("ops"), "ops");
    if (truth.contains("subgraphs")) {
      for (const std::int64_t g : called_by_root(*program)) {
        const Pt2Graph& graph = program->graphs.at(static_cast<std::size_t>(g));
        if (truth.at("subgraphs").contains(graph.name))
          compare_ops(*program, graph, truth.at("subgraphs").at(graph.name), "subgraphs." + graph.name);
      }
    }
    compare_model(*model, truth);
  } catch (const Differs& differs) {
    row = {{}, Verdict::Fail, differs.place, differs.expected, differs.got, {}};
  }
  return row;
}

}  // namespace foreshard::oracle
