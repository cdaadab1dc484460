// What export_job() made, on the disk: each file whole or not at all.
#pragma once

#include <string>
#include <vector>

#include "core/job/export/export_job.h"
#include "core/result.h"

namespace foreshard::cli {

/// Makes the folder where there is none. Gives the paths, in the order of `exported.files`.
Result<std::vector<std::string>> write_exported(const ExportedJob& exported, const std::string& folder);

}  // namespace foreshard::cli
