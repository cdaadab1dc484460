#include "exec/cuda/allocator_settings.h"

#include <c10/core/AllocatorConfig.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <vector>

namespace foreshard::exec {
namespace {

Error refused(const std::string& settings, std::string message, std::string hint) {
  return Error{.code = ErrorCode::Unsupported,
               .message = std::move(message),
               .place = "allocator",
               .expected = "settings that LibTorch's caching allocator takes",
               .got = settings,
               .hint = std::move(hint)};
}

/// Whether the process has memory of a device already.
bool has_handed_out() {
  auto* const allocator = c10::cuda::CUDACachingAllocator::get();
  return allocator->initialized() && !c10::cuda::CUDACachingAllocator::snapshot().segments.empty();
}

}  // namespace

std::string allocator_settings(const AllocatorOptions& options) {
  std::vector<std::string> settings;
  if (options.expandable_segments) settings.emplace_back("expandable_segments:True");
  if (options.max_split_size_mb > 0) settings.push_back(fmt::format("max_split_size_mb:{}", options.max_split_size_mb));
  if (options.roundup_power2_divisions > 0) {
    settings.push_back(fmt::format("roundup_power2_divisions:{}", options.roundup_power2_divisions));
  }
  if (options.garbage_collection_threshold > 0) {
    settings.push_back(fmt::format("garbage_collection_threshold:{}", options.garbage_collection_threshold));
  }
  return fmt::format("{}", fmt::join(settings, ","));
}

Result<void> apply_allocator_settings(const AllocatorOptions& options) {
  const std::string settings = allocator_settings(options);
  if (settings.empty()) return {};
  if (has_handed_out()) {
    return fail(refused(settings, "the allocator has handed out memory already",
                        "a process takes the settings of one job: start another one"));
  }
  try {
    c10::CachingAllocator::setAllocatorSettings(settings);
  } catch (const c10::Error& error) {
    return fail(refused(settings, error.what_without_backtrace(), "docs/formats/job.md lists the keys"));
  }
  return {};
}

}  // namespace foreshard::exec
