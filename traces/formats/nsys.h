// NVIDIA Nsight Systems' sqlite export (`nsys export --type sqlite`): kernels, copies, memsets, runtime calls and NVTX
// ranges. Tables and columns that a release does not write are gone without, with a warning. Built where libsqlite3 is.
#pragma once

#include <string>
#include <string_view>

#include "core/result.h"
#include "traces/formats/open_trace.h"

namespace foreshard {

Result<OpenedTrace> read_nsys(const std::string& path, const OpenOptions& options = {});

/// The same of a database's bytes.
Result<OpenedTrace> parse_nsys(std::string_view bytes, const std::string& file, const OpenOptions& options = {});

}  // namespace foreshard
