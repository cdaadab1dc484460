// Memory snapshots as PyTorch writes them (torch.cuda.memory._dump_snapshot), for memory_viz and all that reads them:
// one device, with what the allocator did and what it held at the end. docs/explain.md shows the fields.
#pragma once

#include <string>

#include "core/memory_log.h"
#include "core/result.h"

namespace foreshard {

/// A pickle of protocol 2, plain data only; gzipped if the name ends in .gz. A file that cannot be written is an Error.
Result<void> write_memory_snapshot(const MemoryLog& log, const std::string& path);

/// The bytes of that file.
std::string memory_snapshot_pickle(const MemoryLog& log);

}  // namespace foreshard
