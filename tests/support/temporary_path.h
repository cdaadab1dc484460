// Files that a test writes: tests run beside each other, so no two processes may share a name.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <string>

namespace foreshard::testing {

/// A path of this process's own that ends in `name`; nothing is made there.
inline std::string temporary_path(const std::string& name) {
  return ::testing::TempDir() + "foreshard_" + std::to_string(getpid()) + "_" + name;
}

}  // namespace foreshard::testing
