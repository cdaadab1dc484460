#include <fmt/format.h>
#include <fmt/ranges.h>

#include <string>
#include <vector>

#include "core/job/job_file.h"
#include "core/job/job_keys.h"

namespace foreshard {

std::string job_to_toml(const Job& job) {
  std::string out, section, group;
  std::vector<std::string> inline_parts;
  const auto close_group = [&] {
    if (!group.empty()) out += fmt::format("{} = {{{}}}\n", group, fmt::join(inline_parts, ", "));
    group.clear();
    inline_parts.clear();
  };
  // Sections may not be reopened, so tables inside a section follow its own keys: the order of job_keys() sees to it.
  for (std::size_t i = 0; i < job_keys().size(); ++i) {
    const auto [key_section, rest] = split_job_key(i);
    const std::size_t dot = rest.find('.');
    if (key_section != section || dot == std::string::npos || rest.substr(0, dot) != group) close_group();
    if (key_section != section) {
      out += fmt::format("{}[{}]\n", out.empty() ? "" : "\n", key_section);
      section = key_section;
    }
    // Whether seq was asked for is part of the value: models with a shorter maximum clamp the default only.
    if (job_keys()[i].name == "model.seq" && !job.model.seq_given && job.model.seq == ModelOptions{}.seq) continue;
    if (dot == std::string::npos) {
      out += fmt::format("{} = {}\n", rest, write_job_key(i, job));
    } else {
      group = rest.substr(0, dot);
      inline_parts.push_back(fmt::format("{} = {}", rest.substr(dot + 1), write_job_key(i, job)));
    }
  }
  close_group();
  return out;
}

}  // namespace foreshard
