// What stands on this machine that Foreshard can use. Looks at files only: loads no library, starts no program, never
// fails.
#pragma once

#include <string>
#include <vector>

namespace foreshard::cli {

struct Finding {
  std::string name;  // "NCCL"
  bool found = false;
  std::string detail;  // version, place
  std::string gives;   // what it is good for
  std::string remedy;  // how to get it, if it is missing
};

std::vector<Finding> look_at_machine();

}  // namespace foreshard::cli
