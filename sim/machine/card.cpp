#include "sim/machine/card.h"

#include <fmt/format.h>

#include <charconv>

namespace foreshard {
namespace {

constexpr std::string_view kNvidia = "sm_", kAmd = "gfx", kNone = "none";
using Maker = CardArchitecture::Maker;

/// The whole text but for one letter at its end ("90a"), in `base`.
std::optional<int> number_of(std::string_view text, int base) {
  int number = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, number, base);
  if (error != std::errc() || number <= 0) return std::nullopt;
  const bool variant = base == 10 && end - stop == 1 && *stop >= 'a' && *stop <= 'z';
  if (stop != end && !variant) return std::nullopt;
  return number;
}

}  // namespace

std::optional<CardArchitecture> parse_architecture(std::string_view text) {
  if (text == kNone) return CardArchitecture();
  const bool nvidia = text.starts_with(kNvidia);
  if (!nvidia && !text.starts_with(kAmd)) return std::nullopt;
  const auto number = nvidia ? number_of(text.substr(kNvidia.size()), 10) : number_of(text.substr(kAmd.size()), 16);
  if (!number || (nvidia && *number < 50)) return std::nullopt;
  return CardArchitecture{nvidia ? Maker::Nvidia : Maker::Amd, *number};
}

std::string architecture_name(const CardArchitecture& card) {
  if (card.maker == Maker::None) return std::string(kNone);
  if (card.maker == Maker::Nvidia) return fmt::format("{}{}", kNvidia, card.number);
  return fmt::format("{}{:x}", kAmd, card.number);
}

NcclRow nccl_row(const CardArchitecture& card) {
  if (card.maker != Maker::Nvidia || (card.number >= 90 && card.number < 100)) return NcclRow::Hopper;
  if (card.number >= 100) return NcclRow::Blackwell;
  return card.number >= 80 ? NcclRow::Ampere : NcclRow::Volta;
}

BlasWorkspaceUse blas_workspace_use(std::string_view release) {
  if (release == "torch-2.15") return BlasWorkspaceUse::OfProduct;
  const bool shared = release == "torch-2.12" || release == "torch-2.13" || release == "torch-2.14";
  return shared ? BlasWorkspaceUse::Shared : BlasWorkspaceUse::Apart;
}

BlasWorkspaceSizes blas_workspaces(const CardArchitecture& card, BlasWorkspaceUse use) {
  constexpr Bytes kLarge = 32 * kMiB, kSmall = 2 * 4096 * kKiB + 8 * 16 * kKiB;
  if (card.maker == Maker::Nvidia) {
    const int major = card.number / 10;
    const bool large = major == 9 || (use != BlasWorkspaceUse::Apart && (major == 10 || major == 12));
    return {large ? kLarge : kSmall, use == BlasWorkspaceUse::Shared ? 0 : kMiB};
  }
  const bool instinct = card.number >> 4 == 0x94 || card.number >> 4 == 0x95;
  if (card.maker == Maker::Amd) return {instinct ? 128 * kMiB : kLarge, 76 * kMiB};
  return {kLarge, kMiB};
}

}  // namespace foreshard
