// The program: reads the command line, runs one verb, turns its answer into an exit code.

#include <new>

#include "cli/verbs/program.h"
#include "core/output_file.h"

int main(int argc, char** argv) {
  foreshard::write_errors_as_errors();
  try {
    return static_cast<int>(foreshard::cli::run_program({argv + 1, argv + argc}));
  } catch (const std::bad_alloc&) {  // beyond ulimit -v, or the machine's end
    return static_cast<int>(foreshard::cli::no_memory({argv + 1, argv + argc}));
  }
}
