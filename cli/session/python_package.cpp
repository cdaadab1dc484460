#include "cli/session/python_package.h"

#include <filesystem>

#include "cli/console/environment.h"
#include "cli/session/sibling_program.h"

namespace foreshard::cli {
namespace {

namespace fs = std::filesystem;

}  // namespace

Result<std::string> first_that_is(const std::string& what, const std::vector<std::string>& places,
                                  const std::string& hint) {
  std::error_code code;
  for (const std::string& place : places) {
    if (fs::exists(place, code)) return fs::weakly_canonical(place, code).string();
  }
  Error error;
  error.code = ErrorCode::NotFound;
  error.message = "a part of foreshard is not installed";
  error.place = what;
  error.got = "nothing there";
  for (const std::string& place : places)
    error.expected += (error.expected.empty() ? "" : " or ") + fs::path(place).lexically_normal().string();
  error.hint = hint;
  return fail(error);
}

Result<std::string> find_python_package() {
  std::vector<std::string> places{sibling_path(".."), sibling_path("../lib/foreshard/python/foreshard")};
  fs::path folder = fs::path(sibling_path("foreshard")).parent_path();
  for (int up = 0; up < 5; ++up, folder = folder.parent_path())
    places.push_back((folder / "python/foreshard").string());
  if (const std::string given = variable("FORESHARD_PACKAGE_FOLDER"); !given.empty())
    places.insert(places.begin(), given);
  for (std::string& place : places) place += "/from_code.py";
  auto file = first_that_is("the Python package foreshard", places,
                            "pip install foreshard, or start the program where it was built");
  if (!file) return file;
  return fs::path(*file).parent_path().string();
}

}  // namespace foreshard::cli
