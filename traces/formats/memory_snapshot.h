// PyTorch's memory snapshots (torch.cuda.memory._dump_snapshot): what the caching allocator did, as counters
// "allocated", "active" and "reserved", and each allocation as a named range with its bytes and the frame that asked
// for it.
//
// A snapshot keeps only the last events. Its segments tell where the counters ended, so they are right throughout.
#pragma once

#include <string>
#include <string_view>

#include "core/result.h"
#include "traces/formats/open_trace.h"

namespace foreshard {

Result<OpenedTrace> parse_memory_snapshot(std::string_view bytes, const std::string& file);

}  // namespace foreshard
