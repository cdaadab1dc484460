// Configuration files of other programs, written: a plain tree in, YAML, JSON or TOML out. The reverse of
// core/job/import/import_tree.h, which reads what is written here to an equal tree.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/job/job_keys.h"

namespace foreshard {

JobValue tree_text_value(std::string_view text);
JobValue tree_number(double number);
JobValue tree_integer(std::int64_t integer);
JobValue tree_flag(bool flag);
JobValue tree_texts(const std::vector<std::string>& texts);

/// Sets the value under a dotted path ("fsdp_config.version"); tables on the way are made.
void put_in_tree(JobValue& tree, std::string_view path, JobValue value);

/// `comment` stands on top, each line after a `#`. Numbers carry a dot, as PyYAML wants them.
std::string write_yaml(const JobValue& tree, const std::vector<std::string>& comment);
std::string write_toml(const JobValue& tree, const std::vector<std::string>& comment);
std::string write_json(const JobValue& tree);

}  // namespace foreshard
