#include "exec/cuda/loaded_libraries.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <link.h>

#include <algorithm>
#include <filesystem>
#include <set>

namespace foreshard::exec {
namespace {

namespace fs = std::filesystem;

int note(dl_phdr_info* info, std::size_t, void* data) {
  auto& libraries = *static_cast<std::vector<LoadedLibrary>*>(data);
  const fs::path path = info->dlpi_name;
  for (LoadedLibrary& library : libraries) {
    if (path.filename().string().rfind(library.kind + ".so", 0) != 0) continue;
    std::error_code unresolved;
    const fs::path file = fs::canonical(path, unresolved);
    library.files.push_back(unresolved ? path.string() : file.string());
  }
  return 0;
}

/// ".../site-packages/nvidia" of a wheel's library, else its folder.
std::string source_of(const fs::path& file) {
  for (fs::path at = file.parent_path(); at.has_relative_path(); at = at.parent_path()) {
    if (at.filename() == "nvidia") return at.string();
  }
  return file.parent_path().string();
}

}  // namespace

std::vector<LoadedLibrary> loaded_libraries() {
  std::vector<LoadedLibrary> libraries = {{"libcudart", {}}, {"libcupti", {}}, {"libnccl", {}}};
  dl_iterate_phdr(note, &libraries);
  return libraries;
}

std::string wrong_with(const std::vector<LoadedLibrary>& libraries) {
  std::set<std::string> sources;
  for (const LoadedLibrary& library : libraries) {
    if (library.files.empty()) return fmt::format("{} is not loaded", library.kind);
    if (library.files.size() > 1) {
      return fmt::format("{} is loaded {} times: {}", library.kind, library.files.size(),
                         fmt::join(library.files, ", "));
    }
    if (library.kind != "libnccl") sources.insert(source_of(library.files.front()));
  }
  if (sources.size() > 1) return fmt::format("they come from several places: {}", fmt::join(sources, ", "));
  return {};
}

}  // namespace foreshard::exec
