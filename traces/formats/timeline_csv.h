// A Timeline as a table: one line a span. Columns: rank, stream, label, kind, name, start_ns, duration_ns, unit, phase,
// instruction, bytes.
#pragma once

#include <string>

#include "core/result.h"
#include "core/timeline.h"

namespace foreshard {

/// Gzipped if the name ends in ".gz". Written in pieces.
Result<void> write_timeline_csv(const Timeline& timeline, const std::string& path);

}  // namespace foreshard
