#include "cli/session/exported_files.h"

#include <filesystem>
#include <system_error>

#include "core/output_file.h"

namespace foreshard::cli {

Result<std::vector<std::string>> write_exported(const ExportedJob& exported, const std::string& folder) {
  std::error_code code;
  std::filesystem::create_directories(folder, code);
  if (code || !std::filesystem::is_directory(folder, code)) {
    return fail({.code = ErrorCode::NotFound,
                 .message = "the folder cannot be made",
                 .file = folder,
                 .place = "--out",
                 .expected = "a folder, or a place for one",
                 .got = code ? code.message() : "something else of this name",
                 .hint = {}});
  }
  std::vector<std::string> paths;
  for (const ExportedFile& file : exported.files) {
    paths.push_back((std::filesystem::path(folder) / file.name).string());
    if (auto written = write_whole_file(paths.back(), file.text); !written) return fail(written.error());
  }
  return paths;
}

}  // namespace foreshard::cli
