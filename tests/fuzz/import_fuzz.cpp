// Whatever the bytes are, `foreshard import` answers with a job, notes or an Error. The first byte chooses the syntax.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "core/job/import/import_job.h"
#include "core/job/job_file.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  static const std::string kFiles[] = {"x.yaml", "x.json", "x.toml"};
  const std::string& file = kFiles[data[0] % 3];
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  if (const auto imported = foreshard::import_job(text, file)) {
    const std::string job = foreshard::write_imported_job(*imported, file, "config.json");
    // What is written is always a job file; whether the values agree with each other is another question.
    if (!foreshard::parse_job(job, "", std::vector<std::string>{})) return 0;
  }
  return 0;
}
