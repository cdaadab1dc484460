// What hangs on the kind of a card alone: what NCCL's and PyTorch's own tables are asked by.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "core/units.h"

namespace foreshard {

/// As its compiler names it: sm_90 (compute capability 9.0), gfx942.
struct CardArchitecture {
  enum class Maker : std::uint8_t { None, Nvidia, Amd };
  Maker maker = Maker::None;
  int number = 0;  // 90 of sm_90 and sm_90a; the hexadecimal 0x942 of gfx942
  bool operator==(const CardArchitecture&) const = default;
};

/// "sm_90", "sm_100a", "gfx942", or "none" for a machine without cards. nullopt: none of these.
std::optional<CardArchitecture> parse_architecture(std::string_view text);
std::string architecture_name(const CardArchitecture& card);

/// Rows of NCCL's tables (specification, 5.1), by the least compute capability of a communicator.
enum class NcclRow : std::uint8_t { Volta, Ampere, Hopper, Blackwell };
/// Cards of AMD take Hopper's, assumed: RCCL has tables of its own.
NcclRow nccl_row(const CardArchitecture& card);

/// What PyTorch 2.11 allocates for cuBLAS with a stream's first matrix product (ATen/cuda/CublasHandlePool.cpp):
/// 32 MiB on sm_90, 4096:2:16:8 KiB on every other card of NVIDIA (tried from 7.0 to 12.0 on the virtual device);
/// 128 MiB on gfx94x and gfx95x, 32 MiB on others of AMD (read, not tried).
Bytes blas_workspace(const CardArchitecture& card);
/// For cuBLASLt, with a stream's first addmm or _scaled_mm: 1 MiB; hipBLASLt 76 MiB (read, not tried).
Bytes blas_lt_workspace(const CardArchitecture& card);

}  // namespace foreshard
