// A model named by its code instead of a file that holds it: FILE.py:FUNCTION, timm:NAME (docs/models.md).
#pragma once

#include <string>

namespace foreshard {

/// Whether `source` is spelt like one; the file need not be there.
bool is_code_name(const std::string& source);

/// FILE.py of FILE.py:FUNCTION; empty for others.
std::string file_of_code(const std::string& source);

}  // namespace foreshard
