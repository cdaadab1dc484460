// What ran on the devices, counted by name, operator, module or layer, with the spread of its durations; and two such
// tables side by side.
//
// The operator is the innermost one around the launch, the module the innermost `nn.Module` frame where Python's stack
// was recorded, else FSDP's unit; the layer is the module's path up to its first number ("layers.3"). Durations are
// sums over kernels: those that run at the same time count twice. Pure functions; times in nanoseconds.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/timeline.h"

namespace foreshard {

enum class KernelKey : std::uint8_t { Kernel, Operator, Module, Layer };
std::string_view kernel_key_name(KernelKey key);  // "kernel", "operator", "module", "layer"
std::optional<KernelKey> kernel_key_of_name(std::string_view name);

struct KernelTableOptions {
  KernelKey by = KernelKey::Kernel;
  std::optional<std::int32_t> rank;  // else all
  std::optional<SimTime> from, to;   // work that begins in [from, to); else all
};

struct KernelRow {
  std::string name;                   // "" = launched outside of every operator, of no module
  SpanKind kind = SpanKind::Compute;  // of the longest one
  std::int64_t count = 0;
  SimDuration total = 0, least = 0, p50 = 0, p90 = 0, p99 = 0, most = 0;
  double share = 0;  // of the sum of all rows
  double mean() const { return count > 0 ? static_cast<double>(total) / static_cast<double>(count) : 0; }
};

/// Longest total first.
std::vector<KernelRow> kernel_table(const Timeline& timeline, const KernelTableOptions& options = {});

/// One name in both tables; what one of them lacks has a count of 0.
struct KernelDifference {
  KernelRow a, b;
  SimDuration difference() const { return a.total - b.total; }
};
std::vector<KernelDifference> kernel_differences(const std::vector<KernelRow>& a,
                                                 const std::vector<KernelRow>& b);  // largest first

/// "void at::native::elementwise_kernel<...>(...)" without arguments of templates and calls.
std::string folded_kernel_name(std::string_view name);

}  // namespace foreshard
