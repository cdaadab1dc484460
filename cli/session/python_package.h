// Where this program's Python package is: beside a wheel's program, where it is installed, in a checkout.
#pragma once

#include <string>
#include <vector>

#include "core/result.h"

namespace foreshard::cli {

/// The folder `foreshard` of the package. Error (NotFound): with where it was looked for.
Result<std::string> find_python_package();

/// The first of these files that there is, as it is spelt without links; else an error that names `what`.
Result<std::string> first_that_is(const std::string& what, const std::vector<std::string>& places);

}  // namespace foreshard::cli
