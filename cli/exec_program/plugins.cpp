#include "cli/exec_program/plugins.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <exception>
#include <filesystem>

namespace foreshard::cli {
namespace {

Error plugin_error(const std::string& file, ErrorCode code, std::string message, std::string expected,
                   std::string got) {
  return {code,
          std::move(message),
          file,
          "--load",
          std::move(expected),
          std::move(got),
          "examples/comm-hook has a library of one hook, and how it is compiled"};
}

Result<void> load_plugin(const std::string& file, exec::CommHookRegistry& registry) {
  // A name without a slash would be looked for in the system's folders.
  const std::string path = std::filesystem::absolute(file).string();
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    return fail(plugin_error(file, ErrorCode::NotFound, "the library cannot be loaded", "a shared library", dlerror()));
  }
  using Version = int();
  using Register = void(exec::CommHookRegistry&);
  auto* version = reinterpret_cast<Version*>(dlsym(library, "foreshard_plugin_version"));
  auto* enter = reinterpret_cast<Register*>(dlsym(library, "foreshard_plugin"));
  if (version == nullptr || enter == nullptr) {
    return fail(plugin_error(file, ErrorCode::NotFound, "the library registers nothing",
                             "FORESHARD_PLUGIN(registry) { ... } in one of its sources", "none"));
  }
  if (version() != FORESHARD_PLUGIN_VERSION) {
    return fail(plugin_error(file, ErrorCode::Unsupported, "the library was compiled against another Foreshard",
                             fmt::format("version {} of exec/units/comm_hook.h", FORESHARD_PLUGIN_VERSION),
                             fmt::format("version {}", version())));
  }
  try {
    enter(registry);
  } catch (const std::exception& error) {
    return fail(plugin_error(file, ErrorCode::Inconsistent, "the library's own code failed", "FORESHARD_PLUGIN to end",
                             error.what()));
  }
  return {};
}

}  // namespace

Result<exec::CommHookRegistry> load_plugins(const std::vector<std::string>& libraries) {
  exec::CommHookRegistry registry;
  for (const std::string& file : libraries) {
    if (auto loaded = load_plugin(file, registry); !loaded) return fail(loaded.error());
  }
  return registry;
}

}  // namespace foreshard::cli
