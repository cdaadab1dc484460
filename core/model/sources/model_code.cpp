#include "core/model/sources/model_code.h"

#include <utility>

namespace foreshard {
namespace {

CodeRunner& the_runner() {
  static CodeRunner runner;
  return runner;
}

}  // namespace

void set_code_runner(CodeRunner runner) { the_runner() = std::move(runner); }

const CodeRunner& code_runner() { return the_runner(); }

}  // namespace foreshard
