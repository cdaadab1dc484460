// Until when Python names the values of an archive, by one rule: the lines of the source that torch.export wrote beside
// the operators say which statement made a value, and a statement that assigns gives it a name. A name lasts until it
// is assigned again or its function returns.
//
// An archive without lines (stack_trace) keeps the rule of module boundaries alone: what is handed to a module is named
// until that has returned. Either is assumed, never recorded: Model::lifetimes says so.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/model/model.h"
#include "core/model/pt2/program.h"

namespace foreshard {

/// Where an operator of the model comes from; indices into the program, -1: not written.
struct Pt2Origin {
  std::int32_t trace = -1;  // Pt2Program::traces
  std::int32_t stack = -1;  // Pt2Program::stacks
};

/// Sets ValueInfo::held. `origins` is parallel to the model's operators; those behind its end come from nowhere.
void assume_lifetimes(const Pt2Program& program, const std::vector<Pt2Origin>& origins, Model& model);

/// The plain names that a line of Python assigns to: {"q", "k"} of "q, k = rotate(q, k)".
std::vector<std::string> assigned_names(std::string_view line);

/// One stack_trace of an archive, outermost line first; what is no "File ..., line ..., in ..." is left out.
std::vector<Pt2Line> parse_stack_trace(std::string_view text);

}  // namespace foreshard
