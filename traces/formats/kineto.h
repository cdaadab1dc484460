// Chrome JSON as PyTorch's profiler (Kineto), other profilers and we ourselves (traces/formats/chrome_trace.h) write
// it.
//
// Streamed: memory does not grow with the text, only with the slices. What the fields mean: docs/traces.md.
#pragma once

#include <string>

#include "core/result.h"
#include "traces/encodings/byte_source.h"
#include "traces/formats/open_trace.h"

namespace foreshard {

/// `source` gives unpacked JSON; `file` names it in warnings, and gives the rank where the events do not say it.
Result<OpenedTrace> read_chrome_json(ByteSource& source, const std::string& file, const OpenOptions& options = {});

}  // namespace foreshard
