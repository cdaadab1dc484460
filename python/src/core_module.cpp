// The module foreshard._core: the program's verbs in process. Python's face is foreshard/api.py.
//
// Every call gives the GIL back while it works; nothing is shared between calls, so they may run side by side.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <vector>

#include "cli/verbs/program.h"

namespace nb = nanobind;

namespace {

nb::tuple run(const std::vector<std::string>& arguments) {
  foreshard::cli::Heard heard;
  foreshard::cli::ExitCode code = foreshard::cli::ExitCode::Ok;
  {
    const nb::gil_scoped_release released;
    code = foreshard::cli::run_program(arguments, &heard);
  }
  // Names from foreign files may be no UTF-8.
  const auto text = [](const std::string& bytes) {
    return nb::steal(PyUnicode_DecodeUTF8(bytes.data(), static_cast<Py_ssize_t>(bytes.size()), "replace"));
  };
  return nb::make_tuple(static_cast<int>(code), text(heard.results), text(heard.notes));
}

}  // namespace

NB_MODULE(_core, m) {
  m.doc() = "Foreshard's planning core. Use the functions of the package foreshard.";
  m.def("run", &run, nb::arg("arguments"), nb::sig("def run(arguments: list[str]) -> tuple[int, str, str]"),
        "Runs a verb of the program: its exit code, its results and its notes. Other threads run on meanwhile.");
  m.attr("version") = FORESHARD_VERSION;
}
