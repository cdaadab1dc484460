// What the help of a verb shows a new user to type.
#pragma once

#include <string>
#include <string_view>

namespace foreshard::cli {

/// A command line of this verb; of the program where there is no such verb.
std::string example_of(std::string_view verb);

}  // namespace foreshard::cli
