// Packed bytes and archives: gzip, zstd, tar, one in another.
#include <cstdint>
#include <vector>

#include "traces/encodings/tar_entries.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto archive = foreshard::unpacked(foreshard::memory_source({reinterpret_cast<const char*>(data), size}));
  foreshard::TarEntries entries(*archive);
  std::vector<char> bytes(1U << 14U);
  std::size_t total = 0;
  while (total < (1U << 24U) && entries.next()) {
    const auto content = foreshard::unpacked(entries.content());
    for (std::size_t got = 1; got > 0 && total < (1U << 24U); total += got)
      got = content->read(bytes.data(), bytes.size());
  }
  return 0;
}
