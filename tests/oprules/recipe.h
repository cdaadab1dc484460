// Recipes of operators: one line of tests/data/oprules/recipes.txt, and the cases that are drawn from it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/lowering/facts/operator_facts.h"

namespace foreshard::oprules {

struct Recipe {
  std::int32_t line = 0;
  std::string text;  // without comments
  std::string name() const { return text.substr(0, text.find(' ')); }
};

/// All lines of the file. Throws std::runtime_error if there is no such file.
std::vector<Recipe> read_recipes(const std::string& path);

/// The recipe with sizes drawn by `trial`, in `dtype`, for every subset of the tensors that may have a gradient (of
/// more than three: each alone, and all). Throws std::runtime_error, naming the line, if it cannot be read.
std::vector<OperatorCase> draw_cases(const Recipe& recipe, std::uint32_t trial, DType dtype);

}  // namespace foreshard::oprules
