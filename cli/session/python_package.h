// Where this program's Python package is: $FORESHARD_PACKAGE_FOLDER (a verb that runs inside of a Python says so),
// beside a wheel's program, where it is installed, in a checkout.
#pragma once

#include <string>
#include <vector>

#include "core/result.h"

namespace foreshard::cli {

/// The folder `foreshard` of the package. Error (NotFound): with where it was looked for.
Result<std::string> find_python_package();

/// The first of these files that there is, as it is spelt without links; else an error that names `what` and `hint`.
Result<std::string> first_that_is(const std::string& what, const std::vector<std::string>& places,
                                  const std::string& hint);

}  // namespace foreshard::cli
