// The job's allocator.* keys, given to LibTorch's caching allocator as PYTORCH_CUDA_ALLOC_CONF would. It takes them
// before it has handed anything out, or not at all.
#pragma once

#include <string>

#include "core/job.h"
#include "core/result.h"

namespace foreshard::exec {

/// "expandable_segments:True,max_split_size_mb:128": what differs from the defaults; empty: nothing.
std::string allocator_settings(const AllocatorOptions& options);

/// Before the first memory of the process. Keys that the job does not set stay as the environment has them. Errors: an
/// allocator that has handed out memory; a value that LibTorch refuses, in its words.
Result<void> apply_allocator_settings(const AllocatorOptions& options);

}  // namespace foreshard::exec
