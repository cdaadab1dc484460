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

/// When PyTorch takes memory for cuBLAS and cuBLASLt (ATen/cuda/CublasHandlePool.cpp).
enum class BlasWorkspaceUse : std::uint8_t {
  Apart,     // until 2.11: each keeps its own, from a thread's and stream's first product (addmm or _scaled_mm) on
  Shared,    // 2.12 to 2.14: cuBLASLt uses cuBLAS's
  OfProduct  // since 2.15: each product has its own while it runs
};
/// Of fsdp.quirks, the release.
BlasWorkspaceUse blas_workspace_use(std::string_view release);

struct BlasWorkspaceSizes {
  Bytes blas = 0, lt = 0;  // lt 0: it needs none of its own
};
/// 32 MiB on sm_90, since 2.12 on Blackwell too, 4096:2:16:8 KiB on every other card of NVIDIA, and 1 MiB (2.11, 2.12,
/// 2.15 tried from 7.0 to 12.1 on the virtual device); 128 MiB on gfx94x and gfx95x, 32 MiB on others of AMD, and 76
/// MiB (read, not tried).
BlasWorkspaceSizes blas_workspaces(const CardArchitecture& card, BlasWorkspaceUse use);

}  // namespace foreshard
