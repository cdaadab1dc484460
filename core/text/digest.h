// One number for a text, the same on every machine: FNV-1a of 64 bits. Tells texts apart that nobody forges.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace foreshard {

constexpr std::uint64_t fnv1a(std::string_view text) {
  std::uint64_t hash = 0xcbf29ce484222325ULL;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ULL;
  return hash;
}

/// 16 hexadecimal digits.
std::string digest_of(std::string_view text);

}  // namespace foreshard
