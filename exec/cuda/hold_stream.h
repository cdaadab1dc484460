// Two kernels that make a CUDA stream stand still for a while, as a collective would: for emulations.
#pragma once

#include <cstdint>

struct CUstream_st;

namespace foreshard::exec {

/// Writes the device's clock (ns) to *mark.
void mark_stream_time(CUstream_st* stream, std::uint64_t* mark);

/// `blocks` thread blocks stay on the multiprocessors until `duration` ns after *mark.
void hold_stream(CUstream_st* stream, const std::uint64_t* mark, std::int64_t duration, int blocks);

}  // namespace foreshard::exec
