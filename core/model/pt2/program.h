// A .pt2 archive's program as data, one to one with its JSON: what torch.export wrote, checked, nothing decided yet.
//
// core/model/pt2/model.h turns it into a Model. Names are the graph's own; a name is one value, every value read is
// written before, every tensor has its metadata. Inner graphs of higher-order operators stand beside the root's.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/dtype.h"
#include "core/model/pt2/archive.h"
#include "core/model/pt2/symbols.h"
#include "core/result.h"

namespace foreshard {

/// A size: a number, or an expression with the example's value.
struct Pt2Dim {
  std::int64_t value = 0;  // the number, or the hint; -1 = no hint
  std::int32_t expr = -1;  // Pt2Program::exprs
};

struct Pt2Tensor {
  DType dtype = DType::Float32;
  std::vector<Pt2Dim> sizes;
  std::vector<Pt2Dim> strides;
  std::string device;  // "cpu", "cuda", "meta"
  bool requires_grad = false;
};

struct Pt2Arg {
  enum class Kind : std::uint8_t {
    None,
    Tensor,  // text: the name
    Symbol,  // text: the name of a symbolic scalar
    Int,
    Float,
    Bool,
    Text,  // strings, devices, operators' names, custom objects
    DType,
    Enum,   // layout and memory format, by number
    Graph,  // integer: Pt2Program::graphs; text: its name
    List,
  } kind = Kind::None;
  std::int64_t integer = 0;
  double real = 0.0;
  std::string text;
  std::vector<Pt2Arg> items;
};

struct Pt2Input {
  std::string name;  // the schema's argument; empty for higher-order operators
  Pt2Arg arg;
  bool keyword = false;
};

/// One module around an operator, outermost first.
struct Pt2Frame {
  std::string key;  // without the call's suffix
  std::string path;
  std::string class_name;  // qualified
  std::int32_t call = 0;   // the @n of the key
  bool operator==(const Pt2Frame&) const = default;
};

/// One line of the source that was running when an operator was traced.
struct Pt2Line {
  std::string file, function, code;
  std::int64_t number = 0;
};

struct Pt2Node {
  std::string name;
  std::string target;  // as written: "torch.ops.aten.linear.default", "_operator.mul"
  std::vector<Pt2Input> inputs;
  std::vector<Pt2Arg> outputs;
  std::int32_t stack = -1;  // Pt2Program::stacks; -1 = none written
  std::int32_t trace = -1;  // Pt2Program::traces; -1 = none written
};

struct Pt2Graph {
  std::string name;
  std::vector<Pt2Arg> inputs, outputs;
  std::vector<Pt2Node> nodes;
  std::unordered_map<std::string, Pt2Tensor> tensors;
  std::unordered_map<std::string, Pt2Dim> scalars;  // sym_int_values
};

struct Pt2InputSpec {
  enum class Kind : std::uint8_t {
    Parameter,
    Buffer,
    TensorConstant,
    CustomObject,
    Token,
    User,
    ConstantInput
  } kind = Kind::User;
  std::string arg;     // graph name; empty for plain values
  std::string target;  // fqn
  bool persistent = true;
};

struct Pt2OutputSpec {
  std::string kind;  // as written: "user_output", "buffer_mutation", ...
  Pt2Arg arg;
  std::string target;
};

struct Pt2Range {
  std::optional<std::int64_t> min, max;
};

/// What the weights configuration says of one name.
struct Pt2Weight {
  std::string fqn;
  std::string path_name;
  bool is_param = false;
  std::vector<std::int64_t> sizes;
  std::int64_t offset = 0;
  DType dtype = DType::Float32;
};

struct Pt2Program {
  std::int64_t schema_major = 0, schema_minor = 0;
  std::string torch_version;
  bool training_ir = true;       // false: after run_decompositions, not what training executes
  std::vector<Pt2Graph> graphs;  // [0] is the root
  std::vector<Pt2InputSpec> inputs;
  std::vector<Pt2OutputSpec> outputs;
  std::map<std::string, Pt2Range> ranges;
  std::vector<SymExpr> exprs;
  std::vector<std::vector<Pt2Frame>> stacks;  // distinct ones
  std::vector<std::vector<Pt2Line>> traces;   // distinct ones; outermost line first
  std::vector<std::string> module_fqns;       // module_call_graph, in its order
  std::vector<Pt2Weight> weights;             // by fqn
  std::unordered_map<std::string, Bytes> payload_bytes;
  std::vector<std::string> notes;  // what was read differently than written
};

Result<Pt2Program> parse_pt2_program(Pt2Members members, const std::string& file, const Pt2Limits& limits = {});

/// One nn_module_stack. False (and nothing added) if it is malformed: the caller falls back to the root.
bool parse_module_stack(std::string_view text, std::vector<Pt2Frame>& frames);

}  // namespace foreshard
