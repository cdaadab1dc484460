// What a script does otherwise than a plan says, one thing each, in words and as fields.
#pragma once

#include <string>
#include <vector>

namespace foreshard::shadow {

struct Difference {
  std::string kind;    // unit, setting, gather, reduce, cast, bytes, order, memory
  std::string where;   // unit, key of the job, step
  std::string script;  // what the script does
  std::string plan;    // what the plan says
  std::string text;    // one sentence
  bool operator==(const Difference&) const = default;
};

}  // namespace foreshard::shadow
