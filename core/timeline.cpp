#include "core/timeline.h"

#include <array>

namespace foreshard {
namespace {

constexpr std::array<std::string_view, 15> kSpanKinds{
    "host_issue", "host_wait", "compute",   "all_gather", "reduce_scatter", "all_reduce", "broadcast", "copy",
    "cast",       "memset",    "optimizer", "wait",       "other",          "send_recv",  "annotation"};
static_assert(kSpanKinds.size() == static_cast<std::size_t>(kLastSpanKind) + 1);

}  // namespace

std::string_view span_kind_name(SpanKind kind) { return kSpanKinds[static_cast<std::size_t>(kind)]; }

}  // namespace foreshard
