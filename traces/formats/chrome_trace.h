// A Timeline as Chrome JSON ("trace event format") that Perfetto and chrome://tracing open. Layout:
// docs/formats/chrome.md.
//
// A rank is a process, a stream is a thread with a spoken name ("D compute"), rows sorted host first. Times are
// microseconds with three decimals, so that nanoseconds survive. Equal timelines give equal bytes.
#pragma once

#include <string>
#include <string_view>

#include "core/result.h"
#include "core/timeline.h"
#include "traces/timeline/slice_arguments.h"

namespace foreshard {

std::string chrome_trace_json(const Timeline& timeline);

/// Gzipped if the name ends in ".gz". Written in pieces: memory does not grow with the timeline.
Result<void> write_chrome_trace(const Timeline& timeline, const std::string& path,
                                const SliceArguments& arguments = {});

/// "D compute", "U all-gather", ...: how people call the stream with that letter. Unknown names stay as they are.
std::string_view spoken_stream_name(std::string_view stream);

/// Rows from top to bottom: host, D, U and C, A, G and S, Q, H, the rest.
int stream_row(std::string_view stream);

}  // namespace foreshard
