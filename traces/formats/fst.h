// `.fst`: Foreshard's own compact form of a Timeline. Columns of varints in zstd blocks, every byte under a checksum.
//
// The layout is docs/formats/fst.md, version 1. Reading back what was written gives an equal Timeline. Truncated,
// corrupted or foreign bytes are an Error with the offset where they were noticed, never a crash, and never more memory
// than the limit.
#pragma once

#include <string>
#include <string_view>

#include "core/result.h"
#include "core/timeline.h"
#include "core/units.h"
#include "traces/timeline/slice_arguments.h"

namespace foreshard {

inline constexpr int kFstMajor = 1;  // readers refuse another one
inline constexpr int kFstMinor = 3;  // readers ignore tables and columns that they do not know

std::string fst_bytes(const Timeline& timeline, const SliceArguments& arguments = {});
/// What a reader takes, unpacked.
inline constexpr Bytes kMostFstBytes = 4 * kGiB;

Result<void> write_fst(const Timeline& timeline, const std::string& path, const SliceArguments& arguments = {});

/// `file` is only for the Error's text; `arguments` gets what the file has of them.
Result<Timeline> parse_fst(std::string_view bytes, const std::string& file = "", SliceArguments* arguments = nullptr);
Result<Timeline> read_fst(const std::string& path);

}  // namespace foreshard
