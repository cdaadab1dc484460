// The instructions that LibTorch's CPU kernels may use: a fact of the machine, stated in its profile (host.isa) and
// asked by the rules of lowering. A plain value.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

namespace foreshard {

/// Ascending, by what oneDNN does with matrices of bfloat16: nothing, sums in float, block products, tiles.
enum class CpuIsa : std::uint8_t { Avx2, Avx512, Avx512Bf16, Amx };

inline constexpr std::array<std::string_view, 4> kCpuIsaNames{"avx2", "avx512", "avx512_bf16", "amx"};
constexpr std::string_view cpu_isa_name(CpuIsa isa) { return kCpuIsaNames[static_cast<std::size_t>(isa)]; }
constexpr std::optional<CpuIsa> parse_cpu_isa(std::string_view name) {
  for (std::size_t i = 0; i < kCpuIsaNames.size(); ++i)
    if (kCpuIsaNames[i] == name) return static_cast<CpuIsa>(i);
  return std::nullopt;
}

}  // namespace foreshard
