#include "exec/calibrate/calibration_journal.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>

#include "core/output_file.h"

namespace foreshard::exec {
namespace {

using nlohmann::json;

constexpr const char* kFormat = "foreshard.calibration-journal/1";

using Lists = std::map<std::string, std::vector<std::int64_t>>;

/// Nothing where the file is of another calibration.
Lists lists_in(const std::string& path, const std::string& key) {
  Lists lists;
  std::ifstream file(path, std::ios::binary);
  std::string line;
  bool first = true;
  while (std::getline(file, line) && !file.eof()) {  // a line without its end was cut off
    const json entry = json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!entry.is_object()) return first ? Lists{} : lists;
    if (std::exchange(first, false)) {
      if (entry.value("format", json()) != kFormat || entry.value("key", json()) != key) return {};
      continue;
    }
    const json name = entry.value("name", json()), numbers = entry.value("numbers", json());
    if (!name.is_string() || !numbers.is_array()) return lists;
    std::vector<std::int64_t> list;
    for (const json& number : numbers) {
      if (!number.is_number_integer()) return lists;
      list.push_back(number.get<std::int64_t>());
    }
    lists[name.get<std::string>()] = std::move(list);
  }
  return lists;
}

std::string line_of(const std::string& name, const std::vector<std::int64_t>& numbers) {
  return json({{"name", name}, {"numbers", numbers}}).dump() + '\n';
}

/// 0, or the errno of what went wrong; then the file is as it was.
int append_to(const std::string& path, const std::string& text) {
  const int file = ::open(path.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC);
  if (file < 0) return errno;
  struct stat before {};
  if (::fstat(file, &before) != 0) {
    const int why = errno;
    ::close(file);
    return why;
  }
  int wrong = 0;
  for (std::size_t at = 0; wrong == 0 && at < text.size();) {
    const ssize_t written = ::write(file, text.data() + at, text.size() - at);
    if (written > 0)
      at += static_cast<std::size_t>(written);
    else if (errno != EINTR)
      wrong = errno;
  }
  if (wrong == 0 && ::fdatasync(file) != 0) wrong = errno;
  if (wrong != 0) static_cast<void>(::ftruncate(file, before.st_size));  // half a line would cut off what comes later
  ::close(file);
  return wrong;
}

}  // namespace

Result<CalibrationJournal> CalibrationJournal::open(const std::string& path, const std::string& key, Failed failed) {
  Lists kept = lists_in(path, key);
  // Written anew: without what was cut off.
  std::string text =
      json({{"format", kFormat}, {"key", key}}).dump(-1, ' ', false, json::error_handler_t::replace) + '\n';
  for (const auto& [name, numbers] : kept) text += line_of(name, numbers);
  if (const auto written = write_whole_file(path, text); !written) return fail(written.error());
  return CalibrationJournal(path, std::move(kept), std::move(failed));
}

const std::vector<std::int64_t>* CalibrationJournal::find(const std::string& name) const {
  const auto found = kept_.find(name);
  return found == kept_.end() ? nullptr : &found->second;
}

void CalibrationJournal::keep(const std::string& name, const std::vector<std::int64_t>& numbers) const {
  if (full_) return;
  const int wrong = append_to(path_, line_of(name, numbers));
  if (wrong == 0) return;
  full_ = true;
  if (!failed_) return;
  Error error = output_error(path_, wrong);
  error.place = name;
  failed_(error);
}

void CalibrationJournal::remove() const {
  std::error_code ignored;
  std::filesystem::remove(path_, ignored);
}

}  // namespace foreshard::exec
